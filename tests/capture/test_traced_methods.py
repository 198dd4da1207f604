"""Methods of modules and tensors that ask for values are one graph of Dynamo's too, through both of its doors."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchipu

X = torch.arange(30.0).square().sin().reshape(5, 6)
IMAGE = torch.arange(300.0).square().sin().reshape(2, 6, 5, 5)
TOKENS = torch.arange(48.0).square().sin().reshape(2, 4, 6)
CLASSES = torch.tensor([0, 3, 5, 12, 19])
COUNTED = torch.tensor([1, 4, 4, 0, 2])


class Called(nn.Module):
    """Calls a function on a module and tensors, and returns the results with a loss.

    Args:
        function: What is called.
        inner: The module.
    """

    def __init__(self, function: Callable[..., Any], inner: nn.Module) -> None:
        super().__init__()
        self.function, self.inner = function, inner
        self.factor = nn.Parameter(torch.ones(()))

    def forward(self, *given: Tensor) -> tuple[Tensor, Tensor]:
        result = self.function(self.inner, *given)
        return result, result.square().mean() * self.factor


def plainly(layer: nn.Module, *given: Tensor) -> Any:
    return layer(*given)


def masked(layer: nn.Module, x: Tensor) -> Any:
    return layer(x, mask=nn.Transformer.generate_square_subsequent_mask(x.shape[1]).to(x.dtype))


CASES: dict[str, tuple[Callable[..., Any], Callable[[], nn.Module], tuple[Tensor, ...]]] = {
    "adaptive softmax": (lambda layer, x, to: layer(x, to).output,
                         lambda: nn.AdaptiveLogSoftmaxWithLoss(6, 20, [4, 10], 2.0), (X, CLASSES)),
    "its prediction": (lambda layer, x: layer.predict(x).to(x.dtype),
                       lambda: nn.AdaptiveLogSoftmaxWithLoss(6, 20, [4, 10], 2.0), (X,)),
    "across channels": (plainly, lambda: nn.CrossMapLRN2d(3, 0.5, 0.6, 1.5), (IMAGE,)),
    "cumulative averages": (plainly, lambda: nn.BatchNorm2d(6, momentum=None), (IMAGE,)),
    "plain averages": (plainly, lambda: nn.BatchNorm2d(6), (IMAGE,)),
    "causal mask": (masked, lambda: nn.TransformerEncoder(
        nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True), 1, enable_nested_tensor=False), (TOKENS,)),
    "bincount": (lambda _, x, to: to.bincount(minlength=5) + x.sum(), nn.Identity, (X, COUNTED)),
    "cov": (lambda _, x: x.cov(), nn.Identity, (X,)),
    "corrcoef": (lambda _, x: x.corrcoef(), nn.Identity, (X,)),
}


@pytest.mark.parametrize("name", CASES)
def test_they_train_as_in_eager(name: str) -> None:
    function, make, given = CASES[name]
    torch.manual_seed(0)
    model = Called(function, make())
    twin = copy.deepcopy(model).double()
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    doubles = [tensor.double() if tensor.is_floating_point() else tensor for tensor in given]
    expected = []
    for _ in range(2):
        optimizer.zero_grad()
        result, loss = twin(*doubles)
        loss.backward()
        optimizer.step()
        expected.append((result.detach().float(), loss.detach().float()))
    for door in (compiled, stepped):
        mine = copy.deepcopy(model)
        step = door(mine)
        for wanted in expected:
            torch.testing.assert_close(step(*given), wanted, rtol=1e-3, atol=1e-4)
        for (path, ours), theirs in zip(mine.state_dict().items(), twin.state_dict().values(), strict=True):
            torch.testing.assert_close(
                ours, theirs.to(ours.dtype), rtol=1e-3, atol=1e-4, msg=lambda text, path=path: f"{path}: {text}")


def compiled(model: nn.Module) -> Callable[..., Any]:
    torch._dynamo.reset()
    run, optimizer = torch.compile(model, backend="ipu", fullgraph=True), torch.optim.SGD(model.parameters(), lr=0.1)

    def step(*given: Tensor) -> Any:
        optimizer.zero_grad()
        result, loss = run(*given)
        loss.backward()
        optimizer.step()
        return result.detach(), loss.detach()

    return step


def stepped(model: nn.Module) -> Callable[..., Any]:
    return torchipu.TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1))


@pytest.mark.parametrize("bounds", [{"from": 2, "to": 7}, {"from": 2, "to": 5}])
def test_whole_numbers_are_drawn_in_one_graph(bounds: dict[str, int]) -> None:
    def draw(x: Tensor) -> Tensor:
        return torch.empty_like(x).random_(**bounds) + x

    torch._dynamo.reset()
    drawn = torch.compile(draw, backend="ipu", fullgraph=True)(torch.zeros(300))
    assert set(drawn.tolist()) == set(range(bounds["from"], bounds["to"]))


def test_a_target_beyond_the_classes_ends_a_compiled_call() -> None:
    layer = nn.AdaptiveLogSoftmaxWithLoss(6, 20, [4, 10], 2.0)
    with pytest.raises(RuntimeError, match=r"Target values should be in \[0, 19\]"):
        torch.compile(layer, backend="ipu", fullgraph=True)(X, CLASSES + 1)


class Words(nn.AdaptiveLogSoftmaxWithLoss):
    """Calls the method that it stands in for."""

    def forward(self, x: Tensor, words: Tensor) -> Any:
        return super().forward(x * 2, words)


def test_a_subclass_calls_them_by_super() -> None:
    torch._dynamo.reset()
    layer = Words(6, 20, [4, 10], 2.0)
    found = torch.compile(layer, backend="ipu", fullgraph=True)(X, CLASSES)
    torch.testing.assert_close(tuple(found), tuple(layer(X, CLASSES)))


def test_eager_code_and_scripts_call_torchs_own() -> None:
    layer = nn.AdaptiveLogSoftmaxWithLoss(6, 20, [4, 10], 2.0)
    with pytest.raises(RuntimeError, match=r"Target values should be in \[0, 19\], but values in range \[1, 20\]"):
        layer(X, CLASSES + 1)  # with the range, which only eager code knows
    batch_norm = torch.jit.script(nn.BatchNorm1d(6))
    torch.testing.assert_close(batch_norm(X), nn.BatchNorm1d(6)(X))


def test_where_a_weight_has_no_gradient_is_not_where_the_next_function_finds_what_it_returns() -> None:
    torch._dynamo.reset()
    model = nn.Linear(3, 3)

    def step(x: Tensor) -> Tensor:
        model.zero_grad()
        loss = model(x).sum()
        loss.backward()
        return loss.detach()

    def update(x: Tensor) -> Any:
        loss = None
        x.add_(1)
        return loss

    compiled, x = torch.compile(step, backend="ipu"), torch.zeros(3)
    for _ in range(2):
        compiled(x)
    assert torch.compile(update, backend="ipu")(x) is None
    assert torch.equal(x, torch.ones(3))
