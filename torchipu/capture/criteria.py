"""Losses, distances and weight norms that are taken apart at capture; see `torchipu.capture.decompositions`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import _reduction

aten = torch.ops.aten

TORCH_OWN = (aten.soft_margin_loss_backward,)
"""Ops for which torch's own decomposition gives parts that we serve."""

MEAN, SUM = 1, 2  # torch.nn._reduction


def reduced(losses: Tensor, reduction: int) -> Tensor:
    """Reduce losses by torch's number of a reduction."""
    if reduction == MEAN:
        return losses.mean()
    return losses.sum() if reduction == SUM else losses


def _soft_margin(self: Tensor, target: Tensor, reduction: int = MEAN) -> Tensor:
    """``log(1 + exp(-target * self))``, which overflows nowhere and stays in float between halves."""
    wide = _wide(self)
    losses = aten.softplus(-wide * target, 1, math.inf)
    return reduced(losses, reduction).to(self.dtype)


def _margin_loss(
    input: Tensor, target: Tensor, p: int = 1, margin: float = 1.0, weight: Tensor | None = None,
    size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean",
) -> Tensor:
    """`F.multi_margin_loss`: how far each class but the target's comes within a margin of the target's."""
    rows, labels = torch.atleast_2d(input), target.reshape(-1, 1)
    violations = (margin - rows.gather(1, labels) + rows).relu()
    if p == 2:
        violations = violations * violations
    if weight is not None:
        violations = violations * weight[labels]
    others = torch.arange(rows.shape[1], device=rows.device) != labels
    losses = torch.where(others, violations, 0.0).mean(1)
    return _per_sample(losses, target, 0, size_average, reduce, reduction)


def _multilabel_margin_loss(
    input: Tensor, target: Tensor, size_average: bool | None = None, reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """`F.multilabel_margin_loss`: likewise for several targets, which end at the first -1.

    Torch's own decomposition also counts what stands behind that end, as targets of class 0.
    """
    rows, labels = torch.atleast_2d(input), torch.atleast_2d(target).unsqueeze(2)
    is_given = (labels == -1).cumsum(1) == 0  # [N, S, 1]
    is_target = ((labels == torch.arange(rows.shape[1], device=rows.device)) & is_given).any(1, keepdim=True)
    chosen = rows.gather(1, torch.where(is_given, labels, 0).squeeze(2)).unsqueeze(2)
    violations = (1 - chosen + rows.unsqueeze(1)).relu()  # [N, S, C]
    losses = torch.where(is_given & ~is_target, violations, 0.0).sum((1, 2)) / rows.shape[1]
    return _per_sample(losses, input, 1, size_average, reduce, reduction)


def _per_sample(
    losses: Tensor, told_by: Tensor, lone_rank: int, size_average: bool | None, reduce: bool | None, reduction: str,
) -> Tensor:
    """Reduce losses as the arguments of a function of torch say; of a sample without a batch, to a scalar.

    Whether there is a batch a function tells by one of its tensors, which has that rank if there is none.
    """
    if size_average is not None or reduce is not None:
        reduction = _reduction.legacy_get_string(size_average, reduce)
    return reduced(losses.squeeze(0) if told_by.dim() == lone_rank else losses, _reduction.get_enum(reduction))


CALLS: dict[Any, Callable[..., Any]] = {
    F.multi_margin_loss: _margin_loss, F.multilabel_margin_loss: _multilabel_margin_loss,
}
"""Functions of torch that are wrong in its own decompositions, which tracing prefers to ours; and what stands in."""


def _binary_cross_entropy_with_logits(
    self: Tensor, target: Tensor, weight: Tensor | None = None, pos_weight: Tensor | None = None, reduction: int = MEAN,
) -> Any:
    """Spread weights that the kernel does not read as they stand over the elements."""
    shape = self.shape
    spread = weight is not None and weight.shape != shape
    # A positive weight of one row repeats; any other broadcast does not.
    repeats = pos_weight is None or pos_weight.shape == shape[len(shape) - pos_weight.dim() :]
    if repeats and not spread:
        return NotImplemented
    return aten.binary_cross_entropy_with_logits(
        self, target, weight.expand(shape) if spread else weight,  # type: ignore[union-attr]
        pos_weight if repeats else pos_weight.expand(shape), reduction,  # type: ignore[union-attr]
    )


def _binary_cross_entropy(
    self: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = MEAN,
) -> Any:
    if weight is None or weight.shape == self.shape:
        return NotImplemented
    return aten.binary_cross_entropy(self, target, weight.expand(self.shape), reduction)


def _binary_cross_entropy_backward(
    grad_output: Tensor, self: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = MEAN,
) -> Any:
    if weight is None or weight.shape == self.shape:
        return NotImplemented
    return aten.binary_cross_entropy_backward(grad_output, self, target, weight.expand(self.shape), reduction)


# --------------------------------------------------------------------------- distances
def _cdist(x1: Tensor, x2: Tensor, p: float, compute_mode: int | None) -> Tensor:
    """Distances of all pairs from the differences of all pairs."""
    differences = x1.unsqueeze(-2) - x2.unsqueeze(-3)
    if math.isinf(p) and 0 in differences.shape:  # the norm refuses to take the largest of nothing, pairs or elements
        return aten.sum(differences, [-1])
    return aten.linalg_vector_norm(differences, p, [-1])


def _cdist_backward(grad: Tensor, x1: Tensor, x2: Tensor, p: float, cdist: Tensor) -> Tensor:
    """Gradient for ``x1``."""
    grad, cdist = _wide(grad), _wide(cdist)  # halves would not hold what a small distance divides
    differences = x1.unsqueeze(-2) - x2.unsqueeze(-3)
    return _slopes(grad.unsqueeze(-1), differences, cdist.unsqueeze(-1), p).sum(-2).to(x1.dtype)


def _slopes(grad: Tensor, differences: Tensor, distances: Tensor, p: float) -> Tensor:
    """Gradient of the p-norm of each difference, ``[..., D]``; a pair without distance gives none.

    What is the same for all elements of a difference, ``[..., 1]``, is computed once for each pair.
    """
    if p == 0:
        return aten.zeros_like(differences)
    if p == 1:
        return grad * differences.sign()
    if p == math.inf:
        return grad * differences.sign() * (differences.abs() == distances)
    if p == 2:
        return torch.where(distances == 0, 0.0, grad / distances) * differences
    if p < 1:
        powers = differences.abs().pow(p - 1) / distances.pow(p - 1)
        return torch.where((distances == 0) | (differences == 0), 0.0, grad * differences.sign() * powers)
    each = torch.where(distances == 0, 0.0, grad / distances.pow(p - 1))
    return each * (differences.sign() * differences.abs().pow(p - 1))


def _pdist(self: Tensor, p: float = 2) -> Tensor:
    """Distances of all pairs of rows: those above the diagonal of the distances of all to all."""
    rows = self.shape[0]
    first, second = torch.triu_indices(rows, rows, 1, device=self.device)
    return _cdist(self, self, p, None).reshape(-1).index_select(0, first * rows + second)


def _pdist_backward(grad: Tensor, self: Tensor, p: float, pdist: Tensor) -> Tensor:
    """Gradient for the rows: each row has that of its distances to all others, of which one to itself gives none."""
    rows = self.shape[0]
    if rows < 2:
        return aten.zeros_like(self)
    place = torch.arange(rows, device=self.device)
    low = torch.minimum(place.unsqueeze(0), place.unsqueeze(1))
    high = torch.maximum(place.unsqueeze(0), place.unsqueeze(1))
    pair = low * (2 * rows - low - 1) // 2 + high - low - 1
    pair = torch.where(low == high, 0, pair).reshape(-1)
    shape, is_same = [rows, rows], low == high
    grads, distances = (
        torch.where(is_same, 0.0, value.index_select(0, pair).view(shape)).to(value.dtype) for value in (grad, pdist)
    )
    return _cdist_backward(grads, self, self, p, distances)


# --------------------------------------------------------------------------- weight norm
def _others(value: Tensor, dim: int) -> list[int]:
    return [other for other in range(value.dim()) if other != dim]


def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> tuple[Tensor, Tensor]:
    """Scale each slice of ``v`` to the length that ``g`` gives; returns the norms of the slices too."""
    norms = aten.linalg_vector_norm(v, 2, _others(v, dim), True)
    return v * (g / norms), norms


def _weight_norm_backward(
    grad_w: Tensor, saved_v: Tensor, saved_g: Tensor, saved_norms: Tensor, dim: int,
) -> tuple[Tensor, Tensor]:
    """Gradients for ``v`` and ``g``; sums over a slice are taken in float."""
    grad, v, g, norms = (_wide(value) for value in (grad_w, saved_v, saved_g, saved_norms))
    along = (grad * v).sum(_others(v, dim), keepdim=True) / norms
    grad_v = g / norms * (grad - v * (along / norms))
    return grad_v.to(saved_v.dtype), along.to(saved_g.dtype)


def _wide(value: Tensor) -> Tensor:
    return value.float() if value.dtype in (torch.half, torch.bfloat16) else value


OURS: dict[torch._ops.OpOverload, Callable[..., Any]] = {
    aten.soft_margin_loss.default: _soft_margin,
    aten.binary_cross_entropy_with_logits.default: _binary_cross_entropy_with_logits,
    aten.binary_cross_entropy.default: _binary_cross_entropy,
    aten.binary_cross_entropy_backward.default: _binary_cross_entropy_backward,
    aten._cdist_forward.default: _cdist,
    aten._cdist_backward.default: _cdist_backward,
    aten._pdist_forward.default: _pdist,
    aten._pdist_backward.default: _pdist_backward,
    aten._weight_norm_interface.default: _weight_norm,
    aten._weight_norm_interface_backward.default: _weight_norm_backward,
}
"""Decompositions of our own."""
