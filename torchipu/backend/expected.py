"""What torch has and expects at the edge of a compiled graph: how results lie, their types, and which may be shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from torchipu.backend.results import Kind, Layout
from torchipu.capture.fx_import import Imported
from torchipu.capture.fx_types import NARROWED
from torchipu.host.complex_pairs import COMPLEX, strides_of_pairs
from torchipu.host.edge import Edge
from torchipu.host.generic import TORCH_DTYPES
from torchipu.ir.graph import Graph, Tensor


@dataclass(frozen=True, slots=True)
class Expected:
    """A result that is an output of the graph.

    Attributes:
        number: Of the output.
        layout: How torch expects it to lie; None where it does not say.
        kind: What it is to torch.
        visible: Whether it reaches the caller.
        is_written: Whether it is copied into an argument after the call.
    """

    number: int
    layout: Layout | None
    kind: Kind
    visible: bool
    is_written: bool


def expected_of(
    imported: Imported, layouts: Sequence[Layout | None], kinds: Sequence[Kind], num_results: int | None,
    written: Mapping[int, int],
) -> list[Expected]:
    """Return the results that are outputs of a graph.

    Args:
        imported: The graph as imported.
        layouts: How torch expects each result to lie.
        kinds: What each is.
        num_results: How many reach the caller, the first ones; None for all.
        written: By number those that are copied into arguments after the call.
    """
    number = {tensor: index for index, tensor in enumerate(imported.graph.outputs)}
    about = enumerate(zip(imported.results, layouts, kinds, strict=True))
    return [
        Expected(number[value], layout, kind, num_results is None or place < num_results, place in written)
        for place, (value, layout, kind) in about if isinstance(value, Tensor) and value in number
    ]


def edge_of(
    graph: Graph, expected: Sequence[Expected], stored_over: Mapping[int, int], bfloats: frozenset[Tensor],
    complexes: frozenset[Tensor], *, has_sizes: bool, is_observed: bool, are_gradients: bool,
) -> Edge:
    """Return what torch expects of a graph as a plan takes it.

    Args:
        graph: After all passes.
        expected: Results that are outputs.
        stored_over: By number of an output that of the input which it may be stored over.
        bfloats: Inputs that come as bfloat16.
        complexes: Inputs, pairs of the graph, that come as complex numbers of their type.
        has_sizes: Whether its plans are made for many sizes: these know of floats alone, and show what they can.
        is_observed: Whether every result is looked at, as floats.
        are_gradients: Whether they are a backward's, of which none may share memory with another one.
    """
    strides: dict[int, tuple[int, ...]] = {}
    plain: set[int] = set()
    for each in expected:
        if each.visible and each.layout is not None:
            strides |= _strides_to_make(each.layout, each.number, graph.outputs[each.number])
            if each.layout.strides is None and each.layout.offset is None:
                plain.add(each.number)
    copied = {
        each.number for each in expected if each.visible and each.kind is Kind.COMPUTED and not each.is_written
    }
    complex_outputs = _complex_made(expected, graph)
    converts, saved = not has_sizes and not is_observed, _saved_alone(expected) - complex_outputs
    return Edge(
        strides, saved, frozenset(plain), in_blocks=saved if converts else frozenset(),
        copied=frozenset() if has_sizes else frozenset(copied),
        apart=frozenset(copied) if are_gradients and not has_sizes else frozenset(),
        written=stored_over, bfloat_inputs=bfloats if converts else frozenset(),
        bfloat_outputs=_bfloats_made(expected) if converts else frozenset(),
        complex_inputs=complexes, complex_outputs=complex_outputs,
    )


def held_as_pairs(imported: Imported, complexes: Mapping[int, torch.dtype]) -> frozenset[Tensor]:
    """Return the inputs that are the pairs, ``[..., 2]``, of complex numbers without a conversion.

    Args:
        imported: The graph as imported.
        complexes: By place the types of placeholders that are complex numbers.
    """
    inputs = ((imported.placeholders[place], dtype) for place, dtype in complexes.items())
    return frozenset(
        tensor for tensor, dtype in inputs if tensor is not None and COMPLEX.get(TORCH_DTYPES[tensor.dtype]) is dtype
    )


def _strides_to_make(layout: Layout, number: int, output: Tensor) -> dict[int, tuple[int, ...]]:
    """Return by its number the strides in which an output is made, where it is not row-major.

    What is converted afterwards to a type that float stands in for keeps them.
    """
    if layout.dtype.is_complex:
        is_plain = _are_pairs_of(layout, output) and layout.offset is None and layout.strides is not None
        return {number: strides_of_pairs(layout.strides or ())} if is_plain else {}
    is_of_type = TORCH_DTYPES[output.dtype] is layout.dtype or NARROWED.get(layout.dtype) is output.dtype
    is_plain = is_of_type and layout.offset is None
    if layout.strides is None or not is_plain or len(layout.strides) != len(output.shape):
        return {}
    return {number: layout.strides}


def _saved_alone(expected: Sequence[Expected]) -> frozenset[int]:
    """Return the numbers of the outputs that are saved for the backward and reach no caller."""
    visible = {each.number for each in expected if each.visible}
    return frozenset(each.number for each in expected) - visible


def _are_pairs_of(layout: Layout, output: Tensor) -> bool:
    """Whether an output holds the parts, ``[..., 2]``, of the complex numbers that torch expects, in their type."""
    return COMPLEX.get(TORCH_DTYPES[output.dtype]) is layout.dtype and len(output.shape) > 0 and output.shape[-1] == 2


def _complex_made(expected: Sequence[Expected], graph: Graph) -> frozenset[int]:
    """Return the numbers of the outputs that reach torch as complex numbers and as nothing else."""
    others = {
        each.number for each in expected
        if each.layout is None or not _are_pairs_of(each.layout, graph.outputs[each.number])
    }
    return frozenset(each.number for each in expected) - others


def _bfloats_made(expected: Sequence[Expected]) -> frozenset[int]:
    """Return the numbers of the outputs that reach torch as bfloat16 and as nothing else."""
    dtypes: dict[int, set[torch.dtype | None]] = {}
    for each in expected:
        dtypes.setdefault(each.number, set()).add(None if each.layout is None else each.layout.dtype)
    return frozenset(number for number, found in dtypes.items() if found == {torch.bfloat16})
