"""Complex numbers as pairs of floats: a graph with complex values becomes one with none.

At the border a complex tensor is the float tensor ``[..., 2]`` that its memory holds; within, real and imaginary parts
are tensors of their own, and torch's `ComplexTensor` says what an operator does with them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from operator import attrgetter
from typing import Any, cast

import torch
from torch import Tensor
from torch._guards import tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Interpreter, Node, traceback
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from torchipu.capture.complex_operators import OWN
from torchipu.capture.complex_pairs import (
    REAL,
    ComplexTensor,
    as_complex,
    as_pair,
    is_complex,
    is_pair,
    memory_of,
    of_pair,
    typed,
)
from torchipu.capture.complex_transforms import TRANSFORMS, first_frequencies, without_zeros
from torchipu.capture.fx_import import Imported
from torchipu.capture.fx_source import source_of
from torchipu.capture.joined_parts import join_parts
from torchipu.errors import ConstraintError, UnsupportedOpError
from torchipu.host import complex_calls

aten = torch.ops.aten
RESULTS = "complex_results"
"""In the meta of a graph without complex numbers: fake values of the results that were complex, by position."""

_LOG_OF_SIZES = logging.getLogger("torch.fx.experimental.symbolic_shapes")
_VIEWS = (aten.view.default, aten._unsafe_view.default)
_MOST_TIMES = 8
_REMEDY = "compute with real and imaginary parts as two real tensors, or leave this call outside of the compiled region"
_NO_NEGATIVE_VIEWS: Any = {aten._neg_view.default: torch.neg}
"""Which torch 2.10 makes of the imaginary parts of a conjugate."""


def without_complex(module: GraphModule) -> GraphModule:
    """Return a graph of real values that computes what another one does; that one, if nothing in it is complex.

    Placeholders and results keep their order and their marks.

    Args:
        module: Functional ATen graph.

    Raises:
        UnsupportedOpError: An operator on complex numbers has no counterpart on pairs.
        RuntimeError: The graph is one of any size, and what computes on parts decides something by a size.
    """
    if ComplexTensor is None:
        return module
    for _ in range(_MOST_TIMES):  # again where torch has put complex constants into what it gave for an operator
        if not any(is_complex(value) for node in module.graph.nodes for value in _values(node)):
            return module
        with _disable_current_modes():  # constants have values
            module = _in_parts(module)
    left = next(node for node in module.graph.nodes if any(map(is_complex, _values(node))))
    raise UnsupportedOpError(
        f"{left.target}: torch makes complex numbers of this operator's parts again", op=left.format_node(),
        source=source_of(left), remedy=_REMEDY,
    )


def _values(node: Node) -> list[Any]:
    return pytree.tree_leaves(node.meta.get("val"))


def _in_parts(module: GraphModule) -> GraphModule:
    """Return a graph in which operators on complex values are operators on their parts."""
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    sizes = _sizes_of(placeholders)
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=sizes)
    constants = {
        node.target: memory_of(attrgetter(str(node.target))(module))
        for node in module.graph.find_nodes(op="get_attr") if any(map(is_complex, _values(node)))
    }
    with mode:
        given = [_stand_in(node.meta.get("val")) for node in placeholders]

    def run(*values: Any) -> Any:
        with traceback.preserve_node_meta():
            return _Parts(module, constants).run(*values, enable_io_processing=False)

    # The mode is this graph's own: torch 2.10 refuses one beside that of whoever is tracing.
    with torch.no_grad(), tracing(None), _undecided(sizes), mode:
        made: GraphModule = make_fx(run, _NO_NEGATIVE_VIEWS, tracing_mode="real")(*given)
        if sizes is None:  # what it compares would be decided by a size
            join_parts(made)
    _keep_marks(module, made)
    return made


def _sizes_of(placeholders: Sequence[Node]) -> ShapeEnv | None:
    """Return what torch knows of the sizes of a graph of any size."""
    for node in placeholders:
        value = node.meta.get("val")
        for size in value.shape if isinstance(value, Tensor) else [value]:
            if isinstance(size, (torch.SymInt, torch.SymFloat)):
                return cast(ShapeEnv, size.node.shape_env)
    return None


@contextmanager
def _undecided(sizes: ShapeEnv | None) -> Iterator[None]:
    """Raise RuntimeError where something is decided by a size: nobody would ask it of the next one."""
    if sizes is None:
        yield
        return
    refuse = getattr(sizes, "error_on_new_guards", None)
    if refuse is None:
        raise RuntimeError("this release of torch does not say what it decides by a size")
    was_silent, _LOG_OF_SIZES.disabled = _LOG_OF_SIZES.disabled, True  # each size is captured by itself then
    try:
        with refuse():
            yield
    finally:
        _LOG_OF_SIZES.disabled = was_silent


def complex_placeholders(module: GraphModule) -> dict[int, torch.dtype]:
    """Return by their place the types of placeholders that are complex numbers, of a graph as torch captured it."""
    given = [node.meta.get("val") for node in module.graph.find_nodes(op="placeholder")]
    return {place: value.dtype for place, value in enumerate(given) if is_complex(value)}


def with_complex_results(imported: Imported, module: GraphModule) -> Imported:
    """Return what was imported of a graph, with the fake values that its results had as complex numbers."""
    complex_values: Mapping[int, Tensor] = module.meta.get(RESULTS, {})
    values = tuple(complex_values.get(place, value) for place, value in enumerate(imported.result_values))
    return replace(imported, result_values=values)


def _keep_marks(old: GraphModule, new: GraphModule) -> None:
    """Give placeholders their names, and placeholders and results what is known of them."""
    given, taken = (graph.find_nodes(op="placeholder") for graph in (old.graph, new.graph))
    for before, after in zip(given, taken, strict=True):
        after.meta = {**before.meta, "val": after.meta.get("val", before.meta.get("val"))}
        after._rename(before.name)
        after.target = before.name
    (returned,) = old.graph.find_nodes(op="output")
    (returns,) = new.graph.find_nodes(op="output")
    returns.meta = dict(returned.meta)
    new.meta = dict(old.meta)
    new.meta[RESULTS] = old.meta.get(RESULTS, {}) | {
        position: member.meta["val"] for position, member in enumerate(pytree.tree_leaves(returned.args[0]))
        if isinstance(member, Node) and is_complex(member.meta.get("val"))
    }
    new.graph.eliminate_dead_code()
    new.recompile()


def _stand_in(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    if is_complex(value):
        return torch.empty((*value.shape, 2), dtype=REAL[value.dtype])
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)


class _Parts(Interpreter):
    """Runs a graph with a `ComplexTensor` for each complex value.

    Args:
        module: The graph.
        constants: The memory of complex constants, ``[..., 2]``, by the attributes that hold them.
    """

    def __init__(self, module: GraphModule, constants: Mapping[Any, Tensor]) -> None:
        super().__init__(module, garbage_collect_values=False)  # a transform reads what lies before a padding
        self.constants = constants

    def run_node(self, n: Node) -> Any:
        """Run one node; what comes from outside, or goes there, has its parts side by side."""
        self.node = n
        value = super().run_node(n)
        if n.op == "placeholder" and is_complex(n.meta.get("val")):
            return of_pair(value)
        if n.op == "output":
            return pytree.tree_map(lambda leaf: as_pair(leaf) if is_pair(leaf) else leaf, value)
        return value

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Return a constant; the parts of a complex one are constants too."""
        held = self.constants.get(target)
        return super().get_attr(target, args, kwargs) if held is None else of_pair(held)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Call an operator; those on real numbers alone as they are."""
        node = self.node
        expected = node.meta.get("val")
        has_complex = any(map(is_pair, pytree.tree_leaves((args, kwargs))))
        if not isinstance(target, torch._ops.OpOverload) or not (
            has_complex or any(map(is_complex, pytree.tree_leaves(expected)))
        ):
            # What is computed of parts may lie otherwise than torch's result, of which this is a view.
            is_view = target in _VIEWS and isinstance(args[0], Tensor)
            return args[0].reshape(args[1]) if is_view else super().call_function(target, args, kwargs)
        if not has_complex and target is aten._conj.default:
            return args[0].conjugate()  # a number
        first = first_frequencies(node, self.env) if target is aten.slice.Tensor else None
        if first is not None:
            return typed(first, expected)
        if target in TRANSFORMS:
            args, kwargs = without_zeros(node, args, self.env)
        try:
            return typed(_computed(target, args, kwargs, has_complex), expected)
        except ConstraintError as error:
            error.op, error.source = node.format_node(), source_of(node)
            raise
        except (TypeError, NotImplementedError, KeyError, RuntimeError) as error:
            if _is_for_aten(target, args, kwargs):
                return _by_aten(target, args, kwargs, expected)
            raise UnsupportedOpError(
                f"{target}: there is no such operator on complex numbers", op=node.format_node(),
                source=source_of(node), detail=str(error).partition("\n")[0], remedy=_REMEDY,
            ) from error


def _computed(target: Any, args: Any, kwargs: Mapping[str, Any], has_complex: bool) -> Any:
    own = OWN.get(target)
    if own is not None:
        return own(*args, **kwargs)
    if target in PARTWISE and has_complex:
        place = VALUES.get(target)
        if place is not None and place < len(args) and not isinstance(args[place], Tensor):
            args = (*args[:place], complex(args[place]), *args[place + 1 :])  # its imaginary part is 0
        return _by_part(target, args, kwargs)
    if has_complex:
        args, kwargs = pytree.tree_map(as_complex, (args, dict(kwargs)))
        return target(*args, **kwargs)
    if kwargs.get("dtype") in REAL:
        return _by_part(target, args, {**kwargs, "dtype": REAL[kwargs["dtype"]]})
    # A real tensor and a complex number: the first tensor becomes complex.
    leaves, spec = pytree.tree_flatten((args, kwargs))
    first = next(place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor))
    leaves[first] = ComplexTensor(leaves[first], torch.zeros_like(leaves[first]))
    args, kwargs = pytree.tree_unflatten(leaves, spec)
    return target(*args, **kwargs)


def _by_part(target: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Call an operator that takes and gives real and imaginary parts apart: one that moves, or adds."""

    def part(of_pair: Callable[[Any], Any], of_real: Callable[[Any], Any], of_number: Callable[[Any], Any]) -> Any:
        def choose(leaf: Any) -> Any:
            if is_pair(leaf):
                return of_pair(leaf)
            if isinstance(leaf, Tensor):
                return of_real(leaf)
            if isinstance(leaf, torch.dtype):
                return REAL.get(leaf, leaf)
            return of_number(leaf) if isinstance(leaf, complex) else leaf

        return pytree.tree_map(choose, (args, dict(kwargs)))

    real_args, real_kwargs = part(lambda p: p.re, lambda t: t, lambda c: c.real)
    real = target(*real_args, **real_kwargs)
    leaves = pytree.tree_leaves((args, kwargs))
    if not any(is_pair(leaf) or isinstance(leaf, complex) for leaf in leaves):
        return ComplexTensor(real, torch.zeros_like(real))
    imaginary_args, imaginary_kwargs = part(
        lambda p: p.im, lambda t: torch.zeros_like(t) if t.is_floating_point() else t, lambda c: c.imag,
    )
    imaginary = target(*imaginary_args, **imaginary_kwargs)
    if isinstance(real, Tensor):
        return ComplexTensor(real, imaginary)
    return [ComplexTensor(re, im) for re, im in zip(real, imaginary, strict=True)]


BY_ATEN = ("linalg_", "_linalg_", "cholesky", "geqrf", "lu_", "ormqr", "triangular_solve")
"""What the names of operators begin with that the generic codelet calls: decompositions and solutions of matrices."""
NOT_BY_ATEN = frozenset({aten.linalg_pinv, aten.linalg_householder_product})
"""Of those, the ones that come out wrong on pairs."""


def _is_for_aten(target: Any, args: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether ATen can be called by the generic codelet: with numbers and types that a program can hold, no draws."""
    leaves = pytree.tree_leaves((args, kwargs))
    name = target._schema.name.removeprefix("aten::")
    is_known = name.startswith(BY_ATEN) and target.overloadpacket not in NOT_BY_ATEN and not target._schema.is_mutable
    return is_known and torch.Tag.nondeterministic_seeded not in target.tags and not any(
        isinstance(leaf, complex) or (isinstance(leaf, torch.dtype) and leaf.is_complex) for leaf in leaves
    )


def _by_aten(target: Any, args: Any, kwargs: Mapping[str, Any], expected: Any) -> Any:
    """Call an operator of ATen whose complex tensors are pairs."""
    given = {argument.name: kwargs[argument.name] for argument in target._schema.arguments if argument.name in kwargs}
    tensors = [leaf for leaf in pytree.tree_leaves((args, given)) if isinstance(leaf, Tensor)]
    results = [leaf for leaf in pytree.tree_leaves(expected) if isinstance(leaf, Tensor)]
    name = complex_calls.name_of(target, [*map(is_pair, tensors)], [*map(is_complex, results)])
    args, given = pytree.tree_map(lambda leaf: as_pair(leaf) if is_pair(leaf) else leaf, (args, given))
    kinds = iter(results)
    returned = complex_calls.operator(name)(*args, **given)
    return pytree.tree_map_only(
        Tensor, lambda leaf: of_pair(leaf) if is_complex(next(kinds)) else leaf, returned,
    )


PARTWISE = frozenset({
    aten.slice_scatter.default, aten.select_scatter.default, aten.diagonal_scatter.default, aten.copy.default,
    aten.as_strided.default, aten.slice_backward.default, aten.select_backward.default, aten.unfold.default,
    aten.unfold_backward.default, aten.index.Tensor, aten.index_put.default, aten.index_select.default,
    aten.gather.default, aten.roll.default, aten.flip.default, aten.cumsum.default, aten.constant_pad_nd.default,
    aten.repeat.default, aten.split_with_sizes.default, aten.split.Tensor, aten.unsafe_split.Tensor,
    aten.unsafe_split_with_sizes.default, aten.unbind.int, aten.tril.default,
    aten.triu.default, aten.mean.default, aten.mean.dim, aten.sum.default, aten.sum.dim_IntList,
    aten.embedding.default, aten.embedding_dense_backward.default, aten.index_copy.default, aten.detach.default,
    aten.scatter.src, aten.rot90.default, aten.new_empty_strided.default, aten.new_zeros.default,
    aten.new_full.default, aten.new_empty.default,
    aten.empty_like.default, aten.expand.default, aten.view.default, aten._unsafe_view.default, aten.permute.default,
    aten.transpose.int, aten.t.default, aten.unsqueeze.default, aten.squeeze.default, aten.squeeze.dim,
    aten.squeeze.dims, aten.slice.Tensor, aten.select.int, aten.diagonal.default, aten.neg.default,
    aten.alias.default, aten.lift_fresh_copy.default, aten.stack.default, aten.cat.default,
    aten.expand_copy.default, aten.view_copy.default, aten.alias_copy.default, aten.permute_copy.default,
    aten.transpose_copy.int, aten.t_copy.default, aten.unsqueeze_copy.default, aten.squeeze_copy.default,
    aten.squeeze_copy.dim, aten.squeeze_copy.dims, aten.slice_copy.Tensor, aten.select_copy.int,
    aten.diagonal_copy.default, aten.unbind_copy.int, aten.split_copy.Tensor, aten.split_with_sizes_copy.default,
    aten.unfold_copy.default, aten.detach_copy.default, aten.diag_embed.default,
    aten.diagonal_backward.default, aten.masked_fill.Scalar, aten.masked_fill.Tensor, aten.masked_scatter.default,
    aten.scatter_add.default, aten.index_add.default, aten.take.default, aten.put.default,
    aten.full_like.default, aten.scatter.value, aten.index_fill.int_Scalar,
    aten.fill.Scalar, aten.trace.default, aten.diff.default, aten.reflection_pad1d.default,
    aten.reflection_pad2d.default, aten.reflection_pad3d.default, aten.replication_pad1d.default,
    aten.replication_pad2d.default, aten.replication_pad3d.default, aten.im2col.default, aten.col2im.default,
    aten.reflection_pad1d_backward.default, aten.reflection_pad2d_backward.default,
    aten.reflection_pad3d_backward.default, aten.replication_pad1d_backward.default,
    aten.replication_pad2d_backward.default, aten.replication_pad3d_backward.default,
    aten.as_strided_copy.default, aten.as_strided_scatter.default, aten.narrow_copy.default,
    aten._unsafe_index.Tensor, aten._unsafe_index_put.default,
})
"""Operators that real and imaginary parts go through apart."""
VALUES = {
    aten.fill.Scalar: 1, aten.masked_fill.Scalar: 2, aten.full_like.default: 1, aten.new_full.default: 2,
    aten.scatter.value: 3, aten.index_fill.int_Scalar: 3, aten.constant_pad_nd.default: 2,
}
"""Of those, the ones that take a value as a number: which argument it is."""
