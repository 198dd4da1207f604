"""Results that AOT autograd copies into arguments after a call, and that a program may store there itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch._functorch._aot_autograd.schemas import PlainTensorMeta
from torch._guards import TracingContext

from torchipu.backend.results import Shown, layout_of
from torchipu.capture.fx_import import Imported
from torchipu.host.generic import TORCH_DTYPES
from torchipu.ir.graph import Graph, Tensor


def written_arguments(count: int) -> dict[int, int]:
    """Return by number of a result that of the argument that AOT autograd copies it into after the call.

    Args:
        count: How many arguments the graph has: others are meant where tensors were taken apart, or tokens put before.
    """
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    if metadata is None or metadata.tokens or len(metadata.input_info) != count:
        return {}
    if not all(isinstance(tensor, PlainTensorMeta) for tensor in metadata.subclass_inp_meta):
        return {}
    about = ((place, argument, metadata.input_info[argument])
             for place, argument in enumerate(metadata.mutated_inp_runtime_indices))
    return {
        place: argument for place, argument, info in about
        if info.mutates_data and not info.mutates_metadata and not info.mutates_storage_metadata
    }


def stored_over(
    imported: Imported, graph: Graph, written: Mapping[int, int], shown: Sequence[Shown | None],
) -> dict[int, int]:
    """Return by number of an output that of the input which it may be stored over: one of its size, and it alone.

    Args:
        imported: The graph as imported.
        graph: The same graph after all passes.
        written: As `written_arguments` returns it.
        shown: How torch expects each result to lie.
    """
    outputs = {tensor: index for index, tensor in enumerate(imported.graph.outputs)}
    inputs = {tensor: index for index, tensor in enumerate(graph.inputs)}
    found = {}
    for place, argument in written.items():
        value, target, layout = imported.results[place], imported.placeholders[argument], layout_of(shown[place])
        if not isinstance(value, Tensor) or target is None or imported.results.count(value) > 1:
            continue
        is_alike = layout is not None and layout.is_as_made(TORCH_DTYPES[target.dtype])
        if value in outputs and target in inputs and is_alike and value.shape == target.shape:
            found[outputs[value]] = inputs[target]
    return found
