"""Operators as PopTorch's programs use them, against eager PyTorch: what is not the plain way of a capture."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import prune

from torchipu import poptorch

GENERATOR = torch.Generator().manual_seed(7)
X, W = torch.randn(2, 4, generator=GENERATOR), torch.randn(4, 3, generator=GENERATOR)
LABELS = torch.tensor([3, 0, 3, 1, 4])
TYPES = {torch.int64: torch.int32, torch.float64: torch.float32}


def close(got: Any, expected: Any) -> None:
    """Compare with eager's result, whose 64-bit types come back with 32 bits."""
    assert got.dtype == TYPES.get(expected.dtype, expected.dtype)
    torch.testing.assert_close(got, expected.detach(), rtol=1e-5, atol=1e-6, check_dtype=False)


# --------------------------------------------------------------------------- sizes that values make
COUNTS: list[tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]] = [
    (lambda x: torch.bincount(x, minlength=7), (LABELS,)),
    (lambda x: x.bincount(minlength=5), (LABELS.int(),)),
    (lambda x, w: torch.bincount(x, w, 5), (LABELS, torch.linspace(0, 1, 5))),
    (lambda x, w: torch.bincount(x, weights=w, minlength=6), (LABELS, LABELS)),
]


@pytest.mark.parametrize(("count", "inputs"), COUNTS)
def test_values_are_counted_where_their_bound_is_given(count: Any, inputs: Any) -> None:
    close(poptorch.inferenceModel(count)(*inputs), count(*inputs))


def test_counting_without_a_bound_is_refused() -> None:
    with pytest.raises(poptorch.Error, match="Bincount `minlength` must be specified and must be a constant"):
        poptorch.inferenceModel(torch.bincount)(LABELS)


# --------------------------------------------------------------------------- gradients that are not wanted
def test_a_kernel_may_compute_a_gradient_that_its_mask_turns_off() -> None:
    class Sampled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.image = nn.Parameter(torch.arange(16.0).reshape(1, 1, 4, 4))

        def forward(self, grid: torch.Tensor) -> Any:
            return poptorch.identity_loss(F.grid_sample(self.image, grid, align_corners=False) ** 2, "sum")

    grid = torch.rand(1, 3, 3, 2, generator=GENERATOR)
    model, twin = Sampled(), Sampled()
    twin(grid).backward()
    poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=1e-3))(grid)
    close(model.image.detach(), twin.image.detach() - 1e-3 * twin.image.grad)


# --------------------------------------------------------------------------- masks, and torch's own refusals
def test_a_transformer_applies_a_mask_that_it_cannot_read() -> None:
    torch.manual_seed(3)
    model = nn.Transformer(8, 2, 1, 1, 16, 0.0, batch_first=True).eval()
    x, mask = torch.randn(2, 5, 8), nn.Transformer.generate_square_subsequent_mask(5)
    for given in (mask, mask.flip(0).clamp(min=-1.0)):
        with torch.no_grad():
            expected = model(x, x, tgt_mask=given)
        got = poptorch.inferenceModel(lambda x, mask: model(x, x, tgt_mask=mask))(x, given)
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


REFUSED: list[Callable[[torch.Tensor], Any]] = [
    lambda x: x.split([1, 2]), lambda x: F.max_pool2d(x[0], 2),
    lambda x: x.gather(0, torch.zeros(3, dtype=torch.int64)),
    lambda x: x.view(5),
]


@pytest.mark.parametrize("call", REFUSED)
def test_what_torch_refuses_is_refused_as_torch_does(call: Callable[[torch.Tensor], Any]) -> None:
    with pytest.raises((RuntimeError, IndexError, ValueError)) as expected:
        call(X)
    with pytest.raises(type(expected.value), match=re.escape(str(expected.value))):
        poptorch.inferenceModel(call)(X)


# --------------------------------------------------------------------------- half beside float
PRODUCTS: list[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = [
    lambda x, w: x @ w, lambda x, w: torch.einsum("ij,jk->ik", x, w), lambda x, w: torch.einsum("ij,jk->ik", [x, w]),
    lambda x, w: torch.tensordot(x, w, 1), lambda x, w: torch.dot(x[0], w[:, 0]), lambda x, w: torch.inner(x, w.t()),
    lambda x, w: torch.bmm(x[None], w[None]), lambda x, w: F.linear(x, w.t(), w[0]),
]


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize(("first", "second"), [(torch.half, torch.float), (torch.float, torch.half)])
def test_products_of_half_and_float_follow_the_first(product: Any, first: torch.dtype, second: torch.dtype) -> None:
    got = poptorch.inferenceModel(product)(X.to(first), W.to(second))
    assert got.dtype == first
    torch.testing.assert_close(got.double(), product(X.double(), W.double()), rtol=5e-3, atol=5e-3)  # eps of half 1e-3


# --------------------------------------------------------------------------- masks of bytes
@pytest.mark.filterwarnings("ignore:where received a uint8 condition")
@pytest.mark.parametrize("choose", [
    lambda x, mask: torch.where(mask, x, -x), lambda x, mask: x.where(mask, 0.5),
    lambda x, mask: torch.where(condition=mask, input=x, other=x + 1),
])
def test_a_condition_may_be_of_bytes(choose: Any) -> None:
    mask = (X > 0).byte()
    close(poptorch.inferenceModel(choose)(X, mask), choose(X, mask))


# --------------------------------------------------------------------------- statistics of all batches
class Normalised(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.factor = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> Any:
        y = self.factor * self.layer(x)
        return y, poptorch.identity_loss(y ** 2, "sum")


@pytest.mark.parametrize(("layer", "shape"), [
    (nn.BatchNorm1d(3, momentum=None), (8, 3)),
    (nn.BatchNorm2d(3, momentum=None, affine=False), (2, 3, 4, 4)),
    (nn.BatchNorm1d(3, momentum=None, track_running_stats=False), (8, 3)),
])
def test_running_statistics_may_be_the_mean_over_all_batches(layer: nn.Module, shape: tuple[int, ...]) -> None:
    model = Normalised(layer)
    exact = copy.deepcopy(model).double()
    options = poptorch.Options().deviceIterations(2)
    training = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.0))
    for _ in range(2):
        first, second = (torch.randn(shape, generator=GENERATOR) * 2 + 1 for _ in range(2))
        got = training(torch.cat([first, second]))[0]
        exact(first.double())
        torch.testing.assert_close(got.double(), exact(second.double())[0].detach(), rtol=1e-4, atol=1e-5)
    for name, value in exact.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name].double(), value.double(), rtol=1e-5, atol=1e-6)
    model.eval()
    got, expected = poptorch.inferenceModel(model)(first)[0], exact.eval()(first.double())[0].detach()
    torch.testing.assert_close(got.double(), expected, rtol=1e-4, atol=1e-5)


# --------------------------------------------------------------------------- weights made of others
WRAPPED: list[Callable[[], nn.Module]] = [
    lambda: nn.utils.weight_norm(nn.Linear(4, 3)), lambda: nn.utils.weight_norm(nn.Conv1d(1, 3, 2), dim=None),
    lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), lambda: nn.utils.spectral_norm(nn.Linear(4, 3)),
    lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)),
    lambda: prune.random_unstructured(nn.Linear(4, 3), "weight", 0.5),
]


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated:FutureWarning")
@pytest.mark.parametrize("make", WRAPPED)
@pytest.mark.parametrize("is_split", [False, True])
def test_weights_that_are_made_of_others_are_trained(make: Callable[[], nn.Module], is_split: bool) -> None:
    def made() -> Normalised:
        torch.manual_seed(11)
        return Normalised(make())

    model, exact = made(), made().double()
    options = poptorch.Options()
    if is_split:  # the layer is on another IPU than the loss
        options.Training.gradientAccumulation(3)
        poptorch.BeginBlock(model.layer, ipu_id=1)
    training = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.05))
    judge = torch.optim.SGD(exact.parameters(), lr=0.05)
    parts = 3 if is_split else 1
    for _ in range(3):
        x = torch.randn(parts, 2, 4, generator=GENERATOR)
        x = x.unsqueeze(2) if isinstance(model.layer, nn.Conv1d) else x
        training(x.flatten(0, 1))
        judge.zero_grad()
        for part in x.double():
            (exact(part)[1] / parts).backward()
        judge.step()
    for name, value in exact.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name].double(), value.double(), rtol=1e-4, atol=1e-5)


# --------------------------------------------------------------------------- whole numbers at random
@pytest.mark.parametrize(("fill", "low", "high"), [
    (lambda x: x.random_(0, 9), 0, 8), (lambda x: x.random_(5), 0, 4), (lambda x: x.random_(-3, 3), -3, 2),
    (lambda x: x.random_(**{"from": 2, "to": 4}), 2, 3), (lambda x: x.random_(), 0, 2**24),
])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
def test_tensors_are_filled_with_whole_numbers_in_bounds(fill: Any, low: int, high: int, dtype: torch.dtype) -> None:
    step = poptorch.inferenceModel(lambda x: fill(x * 1), poptorch.Options().randomSeed(1))
    x = torch.zeros(4000, dtype=dtype)
    first, second = step(x), step(x)
    assert first.dtype == dtype
    assert not first.equal(second)
    assert first.min() >= low
    assert first.equal(first.round())
    if high < 10:
        assert first.unique().tolist() == list(range(low, high + 1))
    else:
        assert first.double().std() > 0.2 * high


def test_a_check_of_a_matrix_has_no_result_of_its_own() -> None:
    matrix = torch.tensor([[2.0, 1.0], [1.0, 3.0]])
    close(poptorch.inferenceModel(torch.linalg.inv)(matrix), torch.linalg.inv(matrix))
