"""Complex numbers as pairs of floats: a graph with complex values becomes one with none.

At the border a complex tensor is the float tensor ``[..., 2]`` that its memory holds; within, real and imaginary parts
are tensors of their own, and torch's `ComplexTensor` says what an operator does with them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch._guards import tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Interpreter, Node, traceback
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from torchipu.capture import complex_functions, zero_tails
from torchipu.capture.fourier import DIRECT_REAL, Pair, half_of_real, real_of_half, transform
from torchipu.capture.fx_import import Imported
from torchipu.capture.fx_source import source_of
from torchipu.errors import ConstraintError, UnsupportedOpError
from torchipu.host import complex_calls

try:
    from torch._subclasses.complex_tensor import ComplexTensor
except ImportError:  # torch before 2.10
    ComplexTensor = None  # type: ignore[assignment, misc]

aten = torch.ops.aten
REAL = {torch.complex128: torch.float64, torch.complex64: torch.float32, torch.complex32: torch.float16}
RESULTS = "complex_results"
"""In the meta of a graph without complex numbers: fake values of the results that were complex, by position."""


_VIEWS = (aten.view.default, aten._unsafe_view.default)
_MOST_TIMES = 8
_REMEDY = "compute with real and imaginary parts as two real tensors, or leave this call outside of the compiled region"


def without_complex(module: GraphModule) -> GraphModule:
    """Return a graph of real values that computes what another one does; that one, if nothing in it is complex.

    Placeholders and results keep their order and their marks.

    Args:
        module: Functional ATen graph of static sizes.

    Raises:
        UnsupportedOpError: An operator on complex numbers has no counterpart on pairs.
    """
    if ComplexTensor is None:
        return module
    for _ in range(_MOST_TIMES):  # again where torch has put complex constants into what it gave for an operator
        if not any(_is_complex(value) for node in module.graph.nodes for value in _values(node)):
            return module
        with _disable_current_modes():  # constants have values
            module = _in_parts(module)
    left = next(node for node in module.graph.nodes if any(map(_is_complex, _values(node))))
    raise UnsupportedOpError(
        f"{left.target}: torch makes complex numbers of this operator's parts again", op=left.format_node(),
        source=source_of(left), remedy=_REMEDY,
    )


def _values(node: Node) -> list[Any]:
    return pytree.tree_leaves(node.meta.get("val"))


def _in_parts(module: GraphModule) -> GraphModule:
    """Return a graph in which operators on complex values are operators on their parts."""
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    constants = {
        node.target: _memory_of(attrgetter(str(node.target))(module))
        for node in module.graph.find_nodes(op="get_attr") if any(map(_is_complex, _values(node)))
    }
    with mode:
        given = [_stand_in(node.meta.get("val")) for node in placeholders]

    def run(*values: Any) -> Any:
        with traceback.preserve_node_meta():
            return _Parts(module, constants).run(*values, enable_io_processing=False)

    # The mode is this graph's own: torch 2.10 refuses one beside that of whoever is tracing.
    with torch.no_grad(), tracing(None), mode:
        made: GraphModule = make_fx(run, tracing_mode="real")(*given)
    _keep_marks(module, made)
    return made


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
        if isinstance(member, Node) and _is_complex(member.meta.get("val"))
    }
    new.graph.eliminate_dead_code()
    new.recompile()


def _is_complex(value: object) -> bool:
    return isinstance(value, Tensor) and value.dtype.is_complex


def _stand_in(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    if _is_complex(value):
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
        if n.op == "placeholder" and _is_complex(n.meta.get("val")):
            return _of_pair(value)
        if n.op == "output":
            return pytree.tree_map(lambda leaf: _as_pair(leaf) if _is_pair(leaf) else leaf, value)
        return value

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Return a constant; the parts of a complex one are constants too."""
        held = self.constants.get(target)
        return super().get_attr(target, args, kwargs) if held is None else _of_pair(held)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Call an operator; those on real numbers alone as they are."""
        node = self.node
        expected = node.meta.get("val")
        has_complex = any(map(_is_pair, pytree.tree_leaves((args, kwargs))))
        if not isinstance(target, torch._ops.OpOverload) or not (
            has_complex or any(map(_is_complex, pytree.tree_leaves(expected)))
        ):
            # What is computed of parts may lie otherwise than torch's result, of which this is a view.
            is_view = target in _VIEWS and isinstance(args[0], Tensor)
            return args[0].reshape(args[1]) if is_view else super().call_function(target, args, kwargs)
        if not has_complex and target is aten._conj.default:
            return args[0].conjugate()  # a number
        first = self._first_frequencies(node) if target is aten.slice.Tensor else None
        if first is not None:
            return _typed(first, expected)
        if target in TRANSFORMS:
            args, kwargs = self._without_zeros(node, args)
        try:
            return _typed(_computed(target, args, kwargs, has_complex), expected)
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


    def _without_zeros(self, node: Node, args: Any) -> tuple[Any, dict[str, Any]]:
        """Return the arguments of a transform whose first one lacks the zeros known of it, and what else is known.

        Zeros lie behind the values, or are the imaginary parts of real ones.
        """
        source, value = node.args[0], args[0]
        held = source
        lengths: dict[int, int] = {}
        for dim in (one % value.dim() for one in args[1]):
            begins = zero_tails.without_tail(source, dim) if isinstance(source, Node) else None
            if begins is not None and begins is not source and not lengths:
                lengths[dim], value, held = value.shape[dim], self.env[begins], begins
        real = zero_tails.real_values(held) if isinstance(held, Node) and _is_pair(value) else None
        if real is not None:
            value = self.env[real]
        if node.target is aten._fft_c2r.default:
            return (value, *args[1:]), {"lengths": lengths}
        return (value, *args[1:]), {"lengths": lengths, "to_real": zero_tails.is_read_as_real(node)}

    def _first_frequencies(self, node: Node) -> Any:
        """Return the first frequencies of real values where a slice takes no others; None for any other slice."""
        source = node.args[0]
        if not isinstance(source, Node) or source.target is not aten._fft_r2c.default or len(source.args[1]) != 1:  # type: ignore[arg-type]
            return None
        value, dims, normalization, onesided = self.fetch_args_kwargs_from_env(source)[0]
        dim = dims[0] % value.dim()
        kept = zero_tails.first_taken(node, dim)
        if kept is None or not onesided or value.shape[dim] > DIRECT_REAL:
            return None
        (value, *_), known = self._without_zeros(source, (value, dims))
        length = known["lengths"].get(dim, value.shape[dim])
        shape = [known["lengths"].get(one, size) for one, size in enumerate(value.shape)]
        return _scaled(half_of_real(value, dim, length, kept), _norm_factor(normalization, shape, dims))


# ---------------------------------------------------------------------- pairs
def _is_pair(value: object) -> bool:
    return ComplexTensor is not None and isinstance(value, ComplexTensor)


def _of_pair(value: Tensor) -> Any:
    return ComplexTensor(value.select(-1, 0), value.select(-1, 1))


def _memory_of(value: Tensor) -> Tensor:
    """Return a complex tensor that has values as its memory, ``[..., 2]``."""
    return torch.view_as_real(value.detach().resolve_conj().resolve_neg()).clone()


def _as_pair(value: Any) -> Tensor:
    return torch.stack((value.re, value.im), -1)


def _parts(value: Any) -> Pair:
    return (value.re, value.im) if _is_pair(value) else (value, None)


def _typed(value: Any, expected: Any) -> Any:
    """Return results in the types that the graph says they have."""
    if not isinstance(expected, Tensor):
        return value
    if _is_complex(expected):
        if not _is_pair(value):
            value = ComplexTensor(value, torch.zeros_like(value))
        real = REAL[expected.dtype]
        return value if value.re.dtype is real else ComplexTensor(value.re.to(real), value.im.to(real))
    value = value.re if _is_pair(value) else value
    return value if value.dtype is expected.dtype else value.to(expected.dtype)


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
        args, kwargs = pytree.tree_map(_as_complex, (args, dict(kwargs)))
        return target(*args, **kwargs)
    if kwargs.get("dtype") in REAL:
        return _by_part(target, args, {**kwargs, "dtype": REAL[kwargs["dtype"]]})
    # A real tensor and a complex number: the first tensor becomes complex.
    leaves, spec = pytree.tree_flatten((args, kwargs))
    first = next(place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor))
    leaves[first] = ComplexTensor(leaves[first], torch.zeros_like(leaves[first]))
    args, kwargs = pytree.tree_unflatten(leaves, spec)
    return target(*args, **kwargs)


def _as_complex(leaf: Any) -> Any:
    """Give a real tensor an imaginary part: else torch makes complex memory of it."""
    is_real = isinstance(leaf, Tensor) and not _is_pair(leaf) and leaf.is_floating_point()
    return ComplexTensor(leaf, torch.zeros_like(leaf)) if is_real else leaf


def _by_part(target: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Call an operator that takes and gives real and imaginary parts apart: one that moves, or adds."""

    def part(of_pair: Callable[[Any], Any], of_real: Callable[[Any], Any], of_number: Callable[[Any], Any]) -> Any:
        def choose(leaf: Any) -> Any:
            if _is_pair(leaf):
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
    if not any(_is_pair(leaf) or isinstance(leaf, complex) for leaf in leaves):
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
    name = complex_calls.name_of(target, [*map(_is_pair, tensors)], [*map(_is_complex, results)])
    args, given = pytree.tree_map(lambda leaf: _as_pair(leaf) if _is_pair(leaf) else leaf, (args, given))
    kinds = iter(results)
    returned = complex_calls.operator(name)(*args, **given)
    return pytree.tree_map_only(
        Tensor, lambda leaf: _of_pair(leaf) if _is_complex(next(kinds)) else leaf, returned,
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


# ---------------------------------------------------------------------- operators of our own
def _norm_factor(kind: int, shape: Any, dims: Any) -> float:
    """Return by what a transform is multiplied: 0 for nothing, 1 for the root of the length, 2 for the length."""
    length = 1
    for dim in dims:
        length *= shape[dim]
    return {0: 1.0, 1: length ** -0.5, 2: 1.0 / length}[kind]


def _scaled(parts: tuple[Tensor, Tensor], factor: float) -> Any:
    real, imaginary = parts
    return ComplexTensor(real, imaginary) if factor == 1.0 else ComplexTensor(real * factor, imaginary * factor)


def _r2c(
    value: Tensor, dim: list[int], normalization: int, onesided: bool, *, lengths: Mapping[int, int], to_real: bool,
) -> Any:
    dims = [one % value.dim() for one in dim]
    last = dims[-1]
    shape = [lengths.get(one, size) for one, size in enumerate(value.shape)]
    real = half_of_real(value, last, shape[last]) if onesided else transform((value, None), [last], -1, lengths)
    parts = transform(real, dims[:-1], -1, lengths, to_real=to_real)
    return _scaled(parts, _norm_factor(normalization, shape, dims))


def _c2c(
    value: Any, dim: list[int], normalization: int, forward: bool, *, lengths: Mapping[int, int], to_real: bool,
) -> Any:
    dims = [one % value.dim() for one in dim]
    parts = transform(_parts(value), dims, -1 if forward else 1, lengths, to_real=to_real)
    shape = [lengths.get(one, size) for one, size in enumerate(value.shape)]
    return _scaled(parts, _norm_factor(normalization, shape, dims))


def _c2r(
    value: Any, dim: list[int], normalization: int, last_dim_size: int, *, lengths: Mapping[int, int],
) -> Tensor:
    dims = [one % value.dim() for one in dim]
    shape = [lengths.get(one, size) for one, size in enumerate(value.shape)]
    shape[dims[-1]] = last_dim_size
    made = real_of_half(transform(_parts(value), dims[:-1], 1, lengths), dims[-1], last_dim_size)
    factor = _norm_factor(normalization, shape, dims)
    return made if factor == 1.0 else made * factor


def _polar(magnitude: Tensor, angle: Tensor) -> Any:
    _check_one_type(magnitude, angle)
    return ComplexTensor(magnitude * angle.cos(), magnitude * angle.sin())


def _mul(left: Any, right: Any) -> Any:
    """Multiply; what is real has no products with the imaginary part that it lacks."""
    if _is_pair(right) and not _is_pair(left):
        left, right = right, left
    if not _is_pair(left):
        return ComplexTensor(left * right.real, left * right.imag)  # a real tensor and a complex number
    if isinstance(right, Tensor) and not _is_pair(right) or isinstance(right, (int, float)):
        return ComplexTensor(left.re * right, left.im * right)
    real, imaginary = (right.re, right.im) if _is_pair(right) else (right.real, right.imag)
    return ComplexTensor(left.re * real - left.im * imaginary, left.re * imaginary + left.im * real)


def _cumprod(value: Any, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    if not value.dim() or not value.shape[dim]:
        return value
    products = [ComplexTensor(*parts) for parts in zip(value.re.unbind(dim), value.im.unbind(dim), strict=True)]
    for place in range(1, len(products)):
        products[place] = _mul(products[place - 1], products[place])
    return ComplexTensor(torch.stack([one.re for one in products], dim), torch.stack([one.im for one in products], dim))


def _div(left: Any, right: Any, **mode: Any) -> Any:
    if mode or _is_pair(right) or isinstance(right, complex):
        return aten.div(*map(_as_complex, (left, right)), **mode)
    return ComplexTensor(left.re / right, left.im / right)


def _plus(value: Any, product: Any, beta: Any, alpha: Any) -> Any:
    return (value if beta == 1 else value * beta) + (product if alpha == 1 else product * alpha)


def _conj_dot(left: Any, right: Any) -> Any:
    return (left.conj() * right).sum()


def _ones(value: Any, size: Any = None, **_: Any) -> Any:
    like = value.re if _is_pair(value) else value
    size = like.shape if size is None else size
    return ComplexTensor(*(torch.full(size, part, dtype=like.dtype, device=like.device) for part in (1.0, 0.0)))


def _zeros(value: Any, **_: Any) -> Any:
    """Return zeros that do not depend on the values that they are like: nothing else may read these."""
    like = value.re if _is_pair(value) else value
    return ComplexTensor(*(torch.zeros(like.shape, dtype=like.dtype, device=like.device) for _ in range(2)))


def _uniform(value: Any, low: float = 0.0, high: float = 1.0, **_: Any) -> Any:
    return ComplexTensor(*(aten.uniform(part, low, high) for part in (value.re, value.im)))


def _normal(value: Any, mean: complex = 0.0, std: float = 1.0, **_: Any) -> Any:
    """Draw both parts, each with half of the variance."""
    mean, each = complex(mean), std * 0.5**0.5
    return ComplexTensor(
        aten.normal_functional(value.re, mean.real, each), aten.normal_functional(value.im, mean.imag, each),
    )


def _check_one_type(first: Tensor, second: Tensor) -> None:
    if first.dtype is not second.dtype:
        raise ConstraintError(
            f"the parts of a complex number must be of one type: expected {first.dtype}, got {second.dtype}",
            remedy="convert one of them with .to()",
        )


def _of_parts(real: Tensor, imag: Tensor) -> Any:
    _check_one_type(real, imag)
    return ComplexTensor(*torch.broadcast_tensors(real, imag))


def _randn(size: Any, **kwargs: Any) -> Any:
    real = {**kwargs, "dtype": REAL[kwargs["dtype"]]}
    return ComplexTensor(torch.randn(size, **real) * 0.5**0.5, torch.randn(size, **real) * 0.5**0.5)


def _on_pairs(function: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., Any]:
    """Make an operator of a function of pairs of tensors."""
    def call(*values: Any) -> Any:
        return ComplexTensor(*function(*((value.re, value.im) for value in map(_as_complex, values))))
    return call


def _logarithm(base: float) -> Callable[[Any], Any]:
    factor = 1 / math.log(base)

    def call(value: Any) -> Any:
        natural = value.log()
        return ComplexTensor(natural.re * factor, natural.im * factor)
    return call


def _sigmoid(value: Any) -> Any:
    return 1 / ((-value).exp() + 1)


def _sinc(value: Any) -> Any:
    is_zero = (value.re == 0) & (value.im == 0)
    turned: Any = ComplexTensor(torch.where(is_zero, 1.0, value.re * math.pi), value.im * math.pi)
    made: Any = turned.sin() / turned
    return ComplexTensor(torch.where(is_zero, 1.0, made.re), torch.where(is_zero, 0.0, made.im))


def _prod(value: Any, dim: int | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    value = _as_complex(value if dtype is None else _typed(value, torch.empty(0, dtype=dtype)))
    if not value.dim():
        return value
    parts = (value.re, value.im) if dim is not None else (value.re.flatten(), value.im.flatten())
    along = 0 if dim is None else dim
    made = complex_functions.prod(parts, along)
    return ComplexTensor(*(made if keepdim else (part.squeeze(along) for part in made)))


def _var_mean(value: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    parts = (value.re, value.im)
    first, second = (aten.var.correction(part, dim, correction=correction, keepdim=keepdim) for part in parts)
    return first + second, ComplexTensor(*(aten.mean.dim(part, dim, keepdim) for part in parts))


def _std_mean(value: Any, dim: Any = None, **options: Any) -> Any:
    variance, mean = _var_mean(value, dim, **options)
    return variance.sqrt(), mean


OWN: dict[Any, Callable[..., Any]] = {
    aten._fft_r2c.default: _r2c,
    aten._fft_c2c.default: _c2c,
    aten._fft_c2r.default: _c2r,
    aten.polar.default: _polar,
    aten.complex.default: _of_parts,
    aten.view_as_complex.default: _of_pair,
    aten.view_as_real.default: lambda value: _as_pair(value),
    aten.randn.default: _randn,
    aten.uniform.default: _uniform,
    aten.ones_like.default: _ones,
    aten.zeros_like.default: _zeros,
    aten.new_ones.default: _ones,
    aten.normal_functional.default: _normal,
    aten.mv.default: lambda matrix, vector: (matrix @ vector.unsqueeze(-1)).squeeze(-1),
    aten.dot.default: lambda left, right: (left * right).sum(),
    aten.vdot.default: _conj_dot,
    aten.addmm.default: lambda c, a, b, beta=1, alpha=1: _plus(c, a @ b, beta, alpha),
    aten.addmv.default: lambda c, a, b, beta=1, alpha=1: _plus(c, (a @ b.unsqueeze(-1)).squeeze(-1), beta, alpha),
    aten.baddbmm.default: lambda c, a, b, beta=1, alpha=1: _plus(c, a @ b, beta, alpha),
    aten.addcmul.default: lambda c, a, b, value=1: _plus(c, a * b, 1, value),
    aten.addcdiv.default: lambda c, a, b, value=1: _plus(c, a / b, 1, value),
    aten.asin.default: _on_pairs(complex_functions.asin),
    aten.asinh.default: _on_pairs(complex_functions.asinh),
    aten.log1p.default: _on_pairs(complex_functions.log1p),
    aten.log2.default: _logarithm(2),
    aten.log10.default: _logarithm(10),
    aten.logaddexp.default: _on_pairs(complex_functions.logaddexp),
    aten.exp2.default: lambda value: (value * math.log(2)).exp(),
    aten.sinc.default: _sinc,
    aten.silu.default: lambda value: value * _sigmoid(value),
    aten.lerp.Scalar: lambda start, end, weight: start + (end - start) * weight,
    aten.lerp.Tensor: lambda start, end, weight: start + (end - start) * weight,
    aten.ldexp.Tensor: lambda value, other: _mul(value, torch.pow(2.0, other)),
    aten.prod.default: _prod,
    aten.prod.dim_int: _prod,
    aten.var_mean.correction: _var_mean,
    aten.std_mean.correction: _std_mean,
    aten.mul.Tensor: _mul,
    aten.mul.Scalar: _mul,
    aten.cumprod.default: _cumprod,
    aten.div.Tensor: _div,
    aten.div.Scalar: _div,
    aten.clone.default: lambda value, **_: ComplexTensor(value.re.clone(), value.im.clone()),
}
"""What an operator does with pairs where torch does not say, or says it in more steps."""
TRANSFORMS = frozenset({aten._fft_r2c.default, aten._fft_c2c.default, aten._fft_c2r.default})
"""Of those, the ones that are told what of their operands is zero."""
