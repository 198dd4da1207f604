"""Functions of torch that ask for values are captured as one graph, and give eager's values and gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchipu import InferenceStep, poptorch

TALL, WIDE = torch.arange(18.0).square().sin().reshape(6, 3), torch.arange(18.0).square().cos().reshape(3, 6)
STACK, RIGHT = torch.arange(36.0).square().sin().reshape(2, 6, 3), torch.arange(12.0).sin().reshape(6, 2)
LACKING = torch.stack([TALL[:, 0], TALL[:, 1], TALL[:, 0] - TALL[:, 1]], 1)
VECTOR = torch.arange(5.0).sin()


def in_one_graph(function: Callable[..., Any], *args: Tensor) -> Any:
    torch._dynamo.reset()
    return torch.compile(function, backend="ipu", fullgraph=True)(*args)


@pytest.mark.parametrize(("matrix", "right", "driver"), [
    (TALL, RIGHT, "gelsd"), (WIDE, RIGHT[:3], None), (STACK, RIGHT.expand(2, 6, 2), "gels"),
    (STACK, STACK[..., 0], None), (TALL, RIGHT[:, 0], "gels"),
])
def test_least_squares_are_solved_through_all_doors(matrix: Tensor, right: Tensor, driver: str | None) -> None:
    def solve(matrix: Tensor, right: Tensor) -> Any:
        return torch.linalg.lstsq(matrix, right, driver=driver)

    expected = torch.linalg.lstsq(matrix.double(), right.double(), driver=driver)
    for found in (in_one_graph(solve, matrix, right), poptorch.inferenceModel(solve)(matrix, right)):
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs.to(ours.dtype), rtol=1e-4, atol=1e-5)


def test_least_squares_of_a_matrix_that_lacks_rank_have_least_norm() -> None:
    found = in_one_graph(torch.linalg.lstsq, LACKING, RIGHT)
    expected = torch.linalg.lstsq(LACKING.double(), RIGHT.double(), rcond=1e-6)
    torch.testing.assert_close(found.solution, expected.solution.float(), rtol=1e-4, atol=1e-5)
    assert found.rank == 2


@pytest.mark.parametrize(("args", "words"), [
    ((TALL, RIGHT[:5]), "should match"), ((VECTOR, RIGHT), "at least 2"), ((TALL, RIGHT, None, "gel"), "one of"),
])
def test_least_squares_refuse_what_torch_refuses(args: tuple[Any, ...], words: str) -> None:
    def solve(matrix: Tensor, right: Tensor) -> Any:
        return torch.linalg.lstsq(matrix, right, *args[2:3], **({"driver": args[3]} if len(args) > 3 else {}))

    with pytest.raises(RuntimeError, match=words):
        solve(*args[:2])
    with pytest.raises(RuntimeError, match=words):
        poptorch.inferenceModel(solve)(*args[:2])


@pytest.mark.parametrize("function", [
    torch.combinations, lambda x: torch.combinations(x, 3, True), lambda x: torch.combinations(x, 1),
    lambda x: torch.combinations(x, 0), lambda x: torch.combinations(x, 6), torch.cov,
    lambda x: torch.corrcoef((x.outer(x) + x).square().sin()), lambda x: torch.cov(x, aweights=x.abs()),
    lambda x: torch.linalg.lstsq(x.outer(x)[:, :2] + torch.eye(5, 2), x).solution,
])
def test_dynamo_traces_them_in_one_graph(function: Callable[[Tensor], Tensor]) -> None:
    ours, theirs = VECTOR.clone().requires_grad_(), VECTOR.double().requires_grad_()
    found, expected = in_one_graph(lambda x: function(x) * 2, ours), function(theirs) * 2
    torch.testing.assert_close(found, expected.float(), rtol=1e-4, atol=1e-5)
    if expected.requires_grad:
        found.sum().backward()
        expected.sum().backward()
        torch.testing.assert_close(ours.grad, theirs.grad.float(), rtol=1e-3, atol=1e-4)


def test_divergences_of_normal_distributions_are_one_graph() -> None:
    def divergence(mean: Tensor, factor: Tensor) -> Tensor:
        normal = torch.distributions.MultivariateNormal(mean, scale_tril=factor, validate_args=False)
        other = torch.distributions.MultivariateNormal(mean * 2, torch.eye(5), validate_args=False)
        return torch.distributions.kl_divergence(normal, other)

    given = VECTOR, torch.eye(5) * 2
    torch.testing.assert_close(in_one_graph(divergence, *given), divergence(*given))


def test_dynamo_traces_truncated_draws() -> None:
    drawn = in_one_graph(lambda x: nn.init.trunc_normal_(torch.empty(500), std=2.0, a=-1.0, b=3.0) + x, torch.zeros(()))
    assert drawn.min() >= -1
    assert drawn.max() <= 3
    assert abs(drawn.mean() - 0.67) < 0.2


class Words(nn.Module):
    def __init__(self, **more: Any) -> None:
        super().__init__()
        self.words = nn.AdaptiveLogSoftmaxWithLoss(8, 30, [5, 12, 20], **more)

    def forward(self, x: Tensor, words: Tensor) -> Any:
        told = self.words(x, words)
        return told.output, poptorch.identity_loss(told.loss, "none")


@pytest.mark.parametrize(("words", "more"), [
    (torch.arange(0, 30, 3), {}), (torch.full((10,), 29), {"head_bias": True, "div_value": 2.0}),
])
def test_adaptive_softmax_trains_whatever_clusters_the_targets_are_in(words: Tensor, more: dict[str, Any]) -> None:
    model = Words(**more)
    twin, x = copy.deepcopy(model).double(), torch.arange(80.0).sin().reshape(10, 8)
    trained = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.5))
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.5)
    for _ in range(2):
        found = trained(x, words)
        optimizer.zero_grad()
        expected = twin(x.double(), words)
        expected[1].backward()
        optimizer.step()
        torch.testing.assert_close(found, tuple(value.detach().float() for value in expected))
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.detach(), theirs.detach().float(), rtol=1e-4, atol=1e-5)


class Predicting(nn.Module):
    def __init__(self, words: nn.AdaptiveLogSoftmaxWithLoss) -> None:
        super().__init__()
        self.words = words

    def forward(self, x: Tensor) -> Tensor:
        return self.words.predict(x)


def test_adaptive_softmax_predicts() -> None:
    layer, x = Words(head_bias=True).words, torch.arange(80.0).square().sin().reshape(10, 8)
    with torch.no_grad():
        layer.head.bias[5:] += torch.tensor([-4.0, 3.0, -4.0])
        layer.head.bias[0] += 2.0
    expected = layer.predict(x)
    assert 0 < (layer.head(x).argmax(1) >= 5).sum() < 10
    for step in (InferenceStep(Predicting(layer)), poptorch.inferenceModel(Predicting(layer))):
        torch.testing.assert_close(step(x).long(), expected)


def test_adaptive_softmax_takes_one_row_and_refuses_targets_beyond_the_classes() -> None:
    model, x = Words(), torch.arange(8.0).sin()
    torch.testing.assert_close(poptorch.inferenceModel(model)(x, torch.tensor(25)), model(x, torch.tensor(25)))
    for beyond in (30, -1):
        with pytest.raises(poptorch.Error, match=r"Target values should be in \[0, 29\]"):
            poptorch.inferenceModel(model)(x.expand(2, 8), torch.tensor([4, beyond]))
    with pytest.raises(RuntimeError, match="expects 2D input"):
        poptorch.inferenceModel(model)(x, torch.zeros(8, dtype=torch.int64))
