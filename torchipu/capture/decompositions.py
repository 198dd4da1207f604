"""Operators that are taken apart at capture: compositions whose parts have records of their own.

An op is listed here when the device would run its parts as well, or when it is rare. Ops that a kernel serves better
than their parts have a record in `torchipu.ops` instead and are absent here, whatever torch's own tables hold.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch._decomp import get_decompositions
from torch._prims_common import canonicalize_dim

from torchipu.capture import (
    batch_norm,
    criteria,
    determinants,
    embedding_bags,
    float8,
    maps,
    movement,
    transformer_layers,
    triangular,
)

aten = torch.ops.aten

TORCH_OWN = (
    aten._addmm_activation, aten._euclidean_dist, aten.aminmax, aten.count_nonzero, aten.dist, aten.dot, aten.renorm,
    aten.vdot,
)
"""Ops for which torch's own decomposition gives parts that we serve."""

Decompositions = dict[torch._ops.OpOverload, Callable[..., Any]]


def decompositions() -> Decompositions:
    """Return what AOT autograd takes apart while it traces, by overload."""
    ours = {
        **OURS, **maps.OURS, **movement.OURS, **criteria.OURS, **transformer_layers.OURS, **batch_norm.over_replicas(),
        **_of_inductor(),
    }
    return {**_of_torch(), **ours}


@functools.cache
def _of_torch() -> Decompositions:
    """Return torch's own; torch goes through all that it has to find these."""
    return cast(Decompositions, get_decompositions([*TORCH_OWN, *movement.TORCH_OWN, *criteria.TORCH_OWN]))


def _of_inductor() -> Decompositions:
    """Return those of Inductor's own operators that Dynamo writes: optimisers have them, once it has declared them."""
    fma = getattr(torch.ops.prims, "fma", None)
    return {} if fma is None else {fma.default: _fma}


def _fma(a: Tensor, b: Tensor | float, c: Tensor) -> Tensor:
    """Return ``a * b + c``; torch declares a tensor for ``b``, and also hands numbers over."""
    return torch.addcmul(c, a, b) if isinstance(b, Tensor) else torch.add(c, a, alpha=b)


def _addbmm(
    self: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1,
) -> Tensor:
    """Add the sum of a batch of products: one product whose inner dimension spans the batch."""
    batch, rows, inner = batch1.shape
    if alpha == 0:
        return _alone(self, beta, [rows, batch2.shape[2]])
    left = batch1.permute(1, 0, 2).reshape(rows, batch * inner)
    right = batch2.reshape(batch * inner, batch2.shape[2])
    return aten.addmm(self, left, right, beta=beta, alpha=alpha)


def _without_product(self: Tensor, first: Tensor, second: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    """Leave out a product that is taken zero times: what its factors hold does not show, not even NaN."""
    if alpha != 0:
        return NotImplemented
    return _alone(self, beta, [*first.shape[:-1], *second.shape[first.dim() - 1 :]])


def _alone(self: Tensor, beta: float, shape: Sequence[int]) -> Tensor:
    """Return what is left of a sum with a product."""
    return (self * beta if beta else aten.zeros_like(self)).expand(shape).clone()


def _cross(self: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    """Return a cross product by its three parts: views of the operands, where torch's own looks parts up by number."""
    torch._check(self.dim() == other.dim(), lambda: "linalg.cross: inputs must have the same number of dimensions.")
    torch._check(
        self.size(dim) == 3 and other.size(dim) == 3,
        lambda: f"linalg.cross: inputs dim {dim} must have length 3, got {self.size(dim)} and {other.size(dim)}",
    )
    ax, ay, az = self.unbind(dim)
    bx, by, bz = other.unbind(dim)
    return torch.stack([ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx], dim)


def _addr(self: Tensor, vec1: Tensor, vec2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """Add an outer product; with ``beta`` 0 alone, or without the product. Factors decide no type."""
    dtype = torch.promote_types(self.dtype, torch.promote_types(vec1.dtype, vec2.dtype))
    return _sum_with_outer(self, vec1, vec2, beta, alpha).to(dtype)


def _sum_with_outer(self: Tensor, vec1: Tensor, vec2: Tensor, beta: float, alpha: float) -> Tensor:
    if alpha == 0:
        return _alone(self, beta, [len(vec1), len(vec2)])
    product = torch.outer(vec1, vec2) if alpha == 1 else alpha * torch.outer(vec1, vec2)
    if beta == 0:
        return product
    return product + (self if beta == 1 else beta * self)


def _bmm(self: Tensor, mat2: Tensor) -> Any:
    """Multiply all rows by one matrix where a batch shares it: so a linear layer of a transposed input arrives."""
    if not (mat2.dim() == 3 and mat2.shape[0] > 1 and mat2.stride(0) == 0):
        return NotImplemented
    rows = self.reshape(-1, self.shape[2])
    return aten.mm(rows, mat2[0]).view(self.shape[0], self.shape[1], mat2.shape[2])


def _vector_norm(
    self: Tensor, ord: float = 2, dim: Sequence[int] | None = None, keepdim: bool = False, *,
    dtype: torch.dtype | None = None,
) -> Any:
    """Take orders apart that are neither 1, 2 nor infinity, for which there is a kernel."""
    if ord in (1, 2, math.inf) or self.is_complex():
        return NotImplemented
    values = self if dtype is None else self.to(dtype)
    dims = list(range(self.dim())) if dim is None or (not dim and self.dim()) else list(dim)
    if ord == 0:
        return (values != 0).to(values.dtype).sum(dims, keepdim)
    if ord == -math.inf:
        return values.abs().amin(dims, keepdim)
    return _powers(values.abs(), ord, dims, keepdim)


def _powers(magnitudes: Tensor, order: float, dims: list[int], keepdim: bool) -> Tensor:
    """Return ``sum(magnitudes ^ order) ^ (1 / order)``; halves are raised and summed in float."""
    wide = magnitudes.float() if magnitudes.dtype in (torch.half, torch.bfloat16) else magnitudes
    return wide.pow(order).sum(dims, keepdim).pow(1.0 / order).to(magnitudes.dtype)


def _norm(self: Tensor, p: float | None = 2, dim: Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
    """Give the old norm to the new one."""
    return aten.linalg_vector_norm(self, 2 if p is None else p, dim, keepdim)


def _norm_dtype(
    self: Tensor, p: float | None, dim: Sequence[int] | None = None, keepdim: bool = False, *, dtype: torch.dtype,
) -> Tensor:
    return aten.linalg_vector_norm(self, 2 if p is None else p, dim, keepdim, dtype=dtype)


def _norm_full_dtype(self: Tensor, p: float | None, *, dtype: torch.dtype) -> Tensor:
    return aten.linalg_vector_norm(self, 2 if p is None else p, None, False, dtype=dtype)


def _trilinear(
    i1: Tensor, i2: Tensor, i3: Tensor, expand1: Sequence[int], expand2: Sequence[int], expand3: Sequence[int],
    sumdim: Sequence[int], unroll_dim: int = 1,
) -> Tensor:
    """Multiply three tensors spread over each other's dimensions, and sum: two products, not all that is summed.

    The first product is of two tensors that alone have a dimension which is summed, if there are such.
    """
    letters = "".join(chr(ord("a") + dim) for dim in range(i1.dim() + len(expand1)))
    operands = [
        (value, "".join(letter for dim, letter in enumerate(letters) if dim not in dims))
        for value, dims in ((i1, expand1), (i2, expand2), (i3, expand3))
    ]
    result = "".join(letter for dim, letter in enumerate(letters) if dim not in sumdim)
    if not set(result) <= set().union(*(has for _, has in operands)):
        return NotImplemented
    summed = set(letters) - set(result)
    first, second, last = next(
        (order for order in ((0, 1, 2), (1, 2, 0), (0, 2, 1))
         if summed & set(operands[order[0]][1]) & set(operands[order[1]][1]) - set(operands[order[2]][1])),
        (0, 1, 2),
    )
    (left, has_left), (right, has_right), (other, has_other) = operands[first], operands[second], operands[last]
    kept = "".join(letter for letter in letters if letter in {*has_left, *has_right} & {*result, *has_other})
    pair = torch.einsum(f"{has_left},{has_right}->{kept}", left, right)
    return torch.einsum(f"{kept},{has_other}->{result}", pair, other)


def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Any:
    """Scale what each index of ``dim`` holds to the norm ``g``; return the norms it had too."""
    if v.dim() < 2:
        return NotImplemented
    norms = aten.linalg_vector_norm(v, 2, _but(v, dim), True)
    return v * (g / norms), norms


def _weight_norm_backward(grad_w: Tensor, saved_v: Tensor, saved_g: Tensor, saved_norms: Tensor, dim: int) -> Any:
    """Gradients for ``v`` and ``g``."""
    if saved_v.dim() < 2:
        return NotImplemented
    along = (grad_w * saved_v).sum(_but(saved_v, dim), keepdim=True)
    grad_v = saved_g / saved_norms * (grad_w - saved_v * (along / (saved_norms * saved_norms)))
    return grad_v, along / saved_norms


def _but(value: Tensor, dim: int) -> list[int]:
    """Return all dimensions but one."""
    return [other for other in range(value.dim()) if other != dim % value.dim()]


def _block_diag(tensors: Sequence[Tensor]) -> Tensor:
    """Pad each matrix to the width of all, and stack."""
    matrices = [aten.atleast_2d(member) for member in tensors]
    dtype = matrices[0].dtype
    for member in matrices[1:]:
        dtype = torch.promote_types(dtype, member.dtype)
    width, begin, rows = sum(member.shape[1] for member in matrices), 0, []
    for member in matrices:
        rows.append(aten.constant_pad_nd(member.to(dtype), [begin, width - begin - member.shape[1]]))
        begin += member.shape[1]
    return torch.cat(rows)


def _along_a_dimension(self: Tensor, dim: int = -1, *others: Any, **options: Any) -> Any:
    """Refuse a dimension that the operand does not have, as its kernel does: torch's meta functions take any.

    Raises:
        IndexError: There is no such dimension.
    """
    canonicalize_dim(self.dim(), dim)
    return NotImplemented


def _stable_sort(self: Tensor, *, stable: bool | None, dim: int = -1, descending: bool = False) -> Any:
    return _along_a_dimension(self, dim)


def _nansum(
    self: Tensor, dim: Sequence[int] | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None,
) -> Any:
    """Add what is left once NaN is 0, which is one instruction."""
    kept = aten.nan_to_num(self, 0.0, math.inf, -math.inf) if self.is_floating_point() else self
    return aten.sum.dim_IntList(kept, dim, keepdim, dtype=dtype)


OURS: Decompositions = {
    torch.ops.prims.convert_element_type.default: lambda self, dtype: aten._to_copy(self, dtype=dtype),
    aten.nansum.default: _nansum,
    aten._scaled_mm.default: float8.scaled_mm,
    aten._softmax.default: _along_a_dimension,
    aten.sort.default: _along_a_dimension,
    aten.sort.stable: _stable_sort,
    aten.addbmm.default: _addbmm,
    aten.addmm.default: _without_product,
    aten.addmv.default: _without_product,
    aten.addr.default: _addr,
    aten.linalg_cross.default: _cross,
    aten.baddbmm.default: _without_product,
    aten.bmm.default: _bmm,
    aten._embedding_bag_backward.default: embedding_bags.bag_gradient,
    aten._linalg_det.default: determinants.determinant,
    aten._linalg_slogdet.default: determinants.log_determinant,
    aten.linalg_solve_triangular.default: triangular.solved,
    aten.linalg_vector_norm.default: _vector_norm,
    aten.norm.ScalarOpt_dim: _norm,
    aten.norm.Scalar: lambda self, p=2: _norm(self, p),
    aten.norm.ScalarOpt_dim_dtype: _norm_dtype,
    aten.norm.ScalarOpt_dtype: _norm_full_dtype,
    aten.trace.default: lambda self: aten.sum(aten.diagonal(self)),
    aten._trilinear.default: _trilinear,
    aten.block_diag.default: _block_diag,
    aten._weight_norm_interface.default: _weight_norm,
    aten._weight_norm_interface_backward.default: _weight_norm_backward,
}
"""Decompositions of our own."""
