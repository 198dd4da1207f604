"""Losses and distances against eager float64: reductions, weights, broadcasting, degenerate sizes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.ops.judge import judge

DTYPES = [torch.float32, torch.float16]
REDUCTIONS = ["none", "mean", "sum"]


def randn(*shape: int, grad: bool = True) -> torch.Tensor:
    return torch.randn(shape, requires_grad=grad)


def rand(*shape: int, grad: bool = False) -> torch.Tensor:
    return (torch.rand(shape) * 0.9 + 0.05).requires_grad_(grad)


def signs(*shape: int) -> torch.Tensor:
    return torch.randint(0, 2, shape).float() * 2 - 1


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


CLASSES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((7, 5), (7,)), ((5,), ()), ((2, 5, 3), (2, 3)), ((2, 5, 3, 4), (2, 3, 4)), ((2, 5, 2, 3, 2), (2, 2, 3, 2)),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("shapes", CLASSES, ids=str)
def test_nll_and_cross_entropy(shapes: Any, reduction: str, weighted: bool, dtype: torch.dtype) -> None:
    data, wanted = shapes
    labels = torch.randint(0, 5, wanted)
    weight = rand(5) if weighted else None
    judge(lambda x, y, w: F.nll_loss(x, y, w, reduction=reduction), randn(*data), labels, weight, dtype=dtype)
    judge(lambda x, y, w: F.cross_entropy(x, y, w, reduction=reduction), randn(*data), labels, weight, dtype=dtype)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("shapes", [CLASSES[0], CLASSES[3]], ids=str)
def test_cross_entropy_ignores_smooths_and_takes_probabilities(shapes: Any, reduction: str, weighted: bool) -> None:
    data, wanted = shapes
    labels = torch.randint(0, 5, wanted)
    labels.view(-1)[::3] = 2
    weight = rand(5) if weighted else None
    for keywords in ({"ignore_index": 2}, {"label_smoothing": 0.2}, {"ignore_index": 2, "label_smoothing": 0.1}):
        judge(partial(F.cross_entropy, reduction=reduction, **keywords), randn(*data), labels, weight)
    probabilities = torch.softmax(torch.randn(data), 1).requires_grad_()
    for smoothing in (0.0, 0.1):
        judge(partial(F.cross_entropy, reduction=reduction, label_smoothing=smoothing), randn(*data),
              probabilities, weight)


def test_cross_entropy_of_nothing_but_ignored_labels_is_nan() -> None:
    judge(lambda x, y: F.cross_entropy(x, y, ignore_index=1), randn(3, 4), torch.ones(3, dtype=torch.int64))


PAIRS: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "mse": (F.mse_loss, lambda: (randn(4, 5), randn(4, 5))),
    "mse_broadcast": (F.mse_loss, lambda: (randn(4, 5), randn(5))),
    "mse_outer": (F.mse_loss, lambda: (randn(4, 1), randn(1, 5))),
    "mse_weight": (lambda x, y, w, reduction: F.mse_loss(x, y, reduction=reduction, weight=w),
                   lambda: (randn(4, 5), randn(4, 5), rand(4, 5))),
    "mse_scalar": (F.mse_loss, lambda: (randn(), randn())),
    "l1": (F.l1_loss, lambda: (randn(4, 5), randn(4, 5))),
    "l1_broadcast": (F.l1_loss, lambda: (randn(4, 5), randn(4, 1))),
    "smooth_l1": (F.smooth_l1_loss, lambda: (randn(4, 5), randn(4, 5))),
    "smooth_l1_beta": (lambda x, y, reduction: F.smooth_l1_loss(x, y, reduction=reduction, beta=0.3),
                       lambda: (randn(4, 5), randn(4, 5))),
    "smooth_l1_zero": (lambda x, y, reduction: F.smooth_l1_loss(x, y, reduction=reduction, beta=0.0),
                       lambda: (randn(4, 5), randn(4, 5))),
    "smooth_l1_broadcast": (F.smooth_l1_loss, lambda: (randn(4, 5), randn(5))),
    "huber": (lambda x, y, reduction: F.huber_loss(x, y, reduction=reduction, delta=0.7),
              lambda: (randn(4, 5), randn(4, 5))),
    "huber_broadcast": (F.huber_loss, lambda: (randn(5), randn(4, 5))),
    "bce": (F.binary_cross_entropy, lambda: (rand(4, 5, grad=True), rand(4, 5))),
    "bce_weight": (lambda x, y, w, reduction: F.binary_cross_entropy(x, y, w, reduction=reduction),
                   lambda: (rand(4, 5, grad=True), rand(4, 5), rand(4, 5))),
    "bce_row_weight": (lambda x, y, w, reduction: F.binary_cross_entropy(x, y, w, reduction=reduction),
                       lambda: (rand(4, 5, grad=True), rand(4, 5), rand(5))),
    "bce_targets": (F.binary_cross_entropy, lambda: (rand(4, 5, grad=True), rand(4, 5, grad=True))),
    "logits": (F.binary_cross_entropy_with_logits, lambda: (randn(4, 5), rand(4, 5, grad=True))),
    "logits_weight": (lambda x, y, w, reduction: F.binary_cross_entropy_with_logits(x, y, w, reduction=reduction),
                      lambda: (randn(4, 5), rand(4, 5), rand(4, 5))),
    "logits_row_weight": (lambda x, y, w, reduction: F.binary_cross_entropy_with_logits(x, y, w, reduction=reduction),
                          lambda: (randn(4, 5), rand(4, 5), rand(4, 1))),
    "logits_pos": (lambda x, y, p, reduction: F.binary_cross_entropy_with_logits(x, y, pos_weight=p,
                                                                                 reduction=reduction),
                   lambda: (randn(4, 5), rand(4, 5), rand(5))),
    "logits_pos_column": (lambda x, y, p, reduction: F.binary_cross_entropy_with_logits(x, y, pos_weight=p,
                                                                                        reduction=reduction),
                          lambda: (randn(4, 5), rand(4, 5), rand(4, 1))),
    "kl": (F.kl_div, lambda: (randn(4, 5), rand(4, 5, grad=True))),
    "kl_log": (lambda x, y, reduction: F.kl_div(x, y, reduction=reduction, log_target=True),
               lambda: (randn(4, 5), randn(4, 5))),
    "kl_broadcast": (F.kl_div, lambda: (randn(4, 5), rand(5, grad=True))),
    "poisson": (F.poisson_nll_loss, lambda: (randn(4, 5), rand(4, 5))),
    "poisson_linear": (lambda x, y, reduction: F.poisson_nll_loss(x, y, log_input=False, reduction=reduction),
                       lambda: (rand(4, 5, grad=True), rand(4, 5))),
    "poisson_full": (lambda x, y, reduction: F.poisson_nll_loss(x, y, full=True, reduction=reduction),
                     lambda: (randn(4, 5), rand(4, 5) * 5)),
    "gaussian": (lambda x, y, v, reduction: F.gaussian_nll_loss(x, y, v, reduction=reduction),
                 lambda: (randn(4, 5), randn(4, 5), rand(4, 5, grad=True))),
    "gaussian_row": (lambda x, y, v, reduction: F.gaussian_nll_loss(x, y, v, full=True, reduction=reduction),
                     lambda: (randn(4, 5), randn(4, 5), rand(4, grad=True))),
    "hinge": (lambda x, y, reduction: F.hinge_embedding_loss(x, y, 1.2, reduction=reduction),
              lambda: (randn(4, 5), signs(4, 5))),
    "soft_margin": (F.soft_margin_loss, lambda: (randn(4, 5), signs(4, 5))),
    "multilabel_soft_margin": (F.multilabel_soft_margin_loss, lambda: (randn(4, 5), torch.randint(0, 2, (4, 5)))),
    "multilabel_soft_margin_weight": (
        lambda x, y, w, reduction: F.multilabel_soft_margin_loss(x, y, w, reduction=reduction),
        lambda: (randn(4, 5), torch.randint(0, 2, (4, 5)), rand(5))),
    "multi_margin": (F.multi_margin_loss, lambda: (randn(4, 5), torch.randint(0, 5, (4,)))),
    "multi_margin_one": (F.multi_margin_loss, lambda: (randn(5), torch.randint(0, 5, ()))),
    "multi_margin_batch_of_one": (F.multi_margin_loss, lambda: (randn(5), torch.randint(0, 5, (1,)))),
    "multi_margin_square": (
        lambda x, y, w, reduction: F.multi_margin_loss(x, y, p=2, margin=0.7, weight=w, reduction=reduction),
        lambda: (randn(4, 5), torch.randint(0, 5, (4,)), rand(5))),
    "multilabel_margin": (F.multilabel_margin_loss,
                          lambda: (randn(3, 4), torch.tensor([[3, 0, -1, 1], [-1, 0, 1, 2], [0, 1, 2, 3]]))),
    "multilabel_margin_one": (F.multilabel_margin_loss, lambda: (randn(4), torch.tensor([2, 0, -1, 1]))),
    "cosine": (lambda x, y, t, reduction: F.cosine_embedding_loss(x, y, t, 0.2, reduction=reduction),
               lambda: (randn(4, 5), randn(4, 5), signs(4))),
    "cosine_one": (lambda x, y, t, reduction: F.cosine_embedding_loss(x, y, t, 0.2, reduction=reduction),
                   lambda: (randn(5), randn(5), torch.tensor(-1.0))),
    "ranking": (lambda x, y, t, reduction: F.margin_ranking_loss(x, y, t, 0.3, reduction=reduction),
                lambda: (randn(4), randn(4), signs(4))),
    "triplet": (lambda a, p, n, reduction: F.triplet_margin_loss(a, p, n, reduction=reduction),
                lambda: (randn(4, 5), randn(4, 5), randn(4, 5))),
    "triplet_swap": (lambda a, p, n, reduction: F.triplet_margin_loss(a, p, n, p=3, swap=True, reduction=reduction),
                     lambda: (randn(4, 5), randn(4, 5), randn(4, 5))),
    "triplet_distance": (
        lambda a, p, n, reduction: F.triplet_margin_with_distance_loss(
            a, p, n, distance_function=lambda x, y: 1 - F.cosine_similarity(x, y), swap=True, reduction=reduction),
        lambda: (randn(4, 5), randn(4, 5), randn(4, 5))),
    "triplet_default_distance": (F.triplet_margin_with_distance_loss,
                                 lambda: (randn(4, 5), randn(4, 5), randn(4, 5))),
}


@pytest.mark.filterwarnings("ignore:Using a target size", "ignore:reduction")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", PAIRS)
def test_loss_and_its_gradients_equal_eager(name: str, reduction: str, dtype: torch.dtype) -> None:
    function, make = PAIRS[name]
    judge(lambda *args: function(*args, reduction=reduction), *make(), dtype=dtype)


def test_kl_mean_over_the_batch() -> None:
    judge(lambda x, y: F.kl_div(x, y, reduction="batchmean"), randn(4, 5), rand(4, 5, grad=True))


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, float("inf")])
def test_distances_of_all_pairs(power: float) -> None:
    judge(lambda x, y: torch.cdist(x, y, p=power), randn(3, 5), randn(4, 5))
    judge(lambda x, y: torch.cdist(x, y, p=power), randn(2, 3, 5), randn(4, 5))
    judge(lambda x: F.pdist(x, p=power), randn(5, 3))
    judge(lambda x, y: F.pairwise_distance(x, y, p=power), randn(4, 5), randn(4, 5))


@pytest.mark.parametrize("power", [1.0, 1.5, 2.0, 3.0, float("inf")])
@pytest.mark.parametrize("rows", [2, 17, 40])
def test_distances_of_all_pairs_of_rows_of_which_two_are_the_same(power: float, rows: int) -> None:
    x = randn(rows, 6)
    with torch.no_grad():
        x[-1:] = x[:1]
    judge(lambda x: F.pdist(x, p=power), x)
    judge(lambda x, y: torch.cdist(x, y, p=power, compute_mode="donot_use_mm_for_euclid_dist"), x, x[:1].detach())


@pytest.mark.parametrize("rows", [0, 1])
def test_no_pairs_have_no_distances(rows: int) -> None:
    torch._dynamo.reset()
    x = torch.ones(rows, 3, requires_grad=True)
    distances = torch.compile(F.pdist, backend="ipu")(x)
    assert distances.shape == (0,)
    distances.sum().backward()  # of which eager PyTorch dies
    assert x.grad is not None
    assert torch.equal(x.grad, torch.zeros(rows, 3))


def test_gradients_of_small_distances_of_halves() -> None:
    torch._dynamo.reset()
    x, y = (torch.zeros(3, 4) + 2.0**-18).half().requires_grad_(), torch.zeros(2, 4).half()
    torch.compile(lambda x: torch.cdist(x, y, p=2.0), backend="ipu")(x).sum().backward()
    torch.testing.assert_close(x.grad, torch.ones(3, 4).half())


@pytest.mark.parametrize("shapes", [((30, 4), (28, 4)), ((0, 4), (3, 4)), ((3, 4), (0, 4)), ((3, 0), (2, 0))], ids=str)
def test_distances_of_many_and_of_no_rows(shapes: Any) -> None:
    judge(lambda x, y: torch.cdist(x, y), randn(*shapes[0]), randn(*shapes[1]), rtol=1e-4)
    judge(lambda x, y: torch.cdist(x, y, p=float("inf")), randn(*shapes[0]), randn(*shapes[1]))


def test_cosine_similarity_broadcasts() -> None:
    judge(lambda x, y: F.cosine_similarity(x, y, dim=1), randn(4, 5), randn(1, 5))
    judge(lambda x, y: F.cosine_similarity(x, y, dim=-1), randn(2, 4, 5), randn(4, 5))
