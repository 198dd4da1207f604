"""No message shows a class of the tracer: an error reads as that of a plain call of the model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import DynamicOutputShapeException

from torchipu import poptorch

X = torch.arange(15.0).reshape(3, 5)
INDEX = torch.zeros(2, 2, dtype=torch.long)


class Called(nn.Module):
    """Calls a function.

    Args:
        body: The function.
    """

    def __init__(self, body: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(5))
        self.body = body

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> Any:
        return self.body(x, index), poptorch.identity_loss(x * self.weight, "mean")


def _raise(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("body", [
    lambda x, i: torch.scatter(x, 0, i), lambda x, i: x.scatter(0, x), lambda x, i: x.scatter(0, i, "a"),
    lambda x, i: torch.scatter(x, 0, x, x), lambda x, i: x.scatter_(0, i, x, y=x), lambda x, i: x.scatter_add(0, i),
    lambda x, i: x.scatter_add(0, i, x.int()), lambda x, i: torch.gather(x, 0, 3), lambda x, i: torch.gather(x, 0, x),
    lambda x, i: x.index_add(0, x), lambda x, i: torch.index_select(x, 0, "b"), lambda x, i: x.index_copy(0, i, 3),
    lambda x, i: x.scatter_reduce(0, i, x), lambda x, i: x.masked_fill("mask", 0), lambda x, i: torch.cat(x, x, x),
    lambda x, i: torch.matmul(x, i), lambda x, i: nn.functional.linear(x, 3), lambda x, i: x + {},
    lambda x, i: x.colour,
    lambda x, i: nn.functional.softmax(x, 7), lambda x, i: x.softmax(-3), lambda x, i: x.log_softmax(2),
    lambda x, i: x.sort(7), lambda x, i: torch.sort(x, stable=True, dim=-3), lambda x, i: x.argsort(2),
    lambda x, i: nn.functional.nll_loss(x, i), lambda x, i: nn.functional.embedding(i, x[0]),
    lambda x, i: x @ "a", lambda x, i: [*x.sum()], lambda x, i: _raise(ValueError(f"of {type(x)}")),
    lambda x, i: _raise(KeyError(type(x).__name__)), lambda x, i: {}[type(i)], lambda x, i: int(f"{type(x)}"),
])
@pytest.mark.parametrize("is_training", [False, True])
def test_an_error_is_that_of_a_plain_call(body: Any, is_training: bool) -> None:
    model = Called(body)
    with pytest.raises(Exception) as expected:  # noqa: PT011
        model(X, INDEX)
    step = poptorch.trainingModel(model) if is_training else poptorch.inferenceModel(model)
    with pytest.raises(Exception) as found:  # noqa: PT011
        step(X.repeat(1, 1), INDEX[:, :].repeat(1, 1))
    assert type(found.value) is type(expected.value)
    assert str(found.value) == str(expected.value)
    assert "Fake" not in str(found.value)


def test_an_error_that_only_the_capture_has_says_tensor() -> None:
    def body(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        if poptorch.isRunningOnIpu() and type(x) is not torch.Tensor:
            raise LookupError(f"an odd {type(x)}, a {type(x).__name__}")
        return x

    with pytest.raises(LookupError, match=r"an odd <class 'torch.Tensor'>, a Tensor$"):
        poptorch.inferenceModel(Called(body))(X, INDEX)


def test_an_error_of_the_users_own_is_the_same_object_with_its_cause() -> None:
    cause, error = OSError("cause"), ValueError("mine")

    def body(x: torch.Tensor, i: torch.Tensor) -> None:
        raise error from cause

    with pytest.raises(ValueError, match=r"^mine$") as found:
        poptorch.inferenceModel(Called(body))(X, INDEX)
    assert found.value is error
    assert error.__cause__ is cause


@pytest.mark.parametrize("body", [
    lambda x, i: x[x > 3], lambda x, i: x.masked_select(x > 3), lambda x, i: x.nonzero(), lambda x, i: x.unique(),
    lambda x, i: torch.where(x > 3), lambda x, i: x[0].repeat_interleave(x[0].long()), lambda x, i: torch.argwhere(x),
])
def test_a_shape_that_depends_on_values_has_the_exception_of_torch(body: Any) -> None:
    for kind in (DynamicOutputShapeException, poptorch.Error):
        with pytest.raises(kind, match=r"Unsupported ops found in compiled model: \[aten::\w+.*not known before"):
            poptorch.inferenceModel(Called(body))(X, INDEX)


def test_the_trace_can_be_asked_for() -> None:
    from torchipu.poptorch import _impl

    seen: list[bool] = []
    poptorch.inferenceModel(Called(lambda x, i: seen.append(_impl.isDispatchTracing())))(X, INDEX)
    assert seen[-1]
    assert not _impl.isDispatchTracing()


@pytest.mark.parametrize("is_training", [False, True])
def test_a_tensor_of_the_program_is_printed_without_its_values_and_a_constant_with_them(is_training: bool) -> None:
    texts: list[str] = []

    def body(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        texts[:] = [repr(x), f"{x.sum()}", str(index), f"{[x.half()]}", repr(torch.arange(3) * 2)]
        return x

    model = Called(body)
    (poptorch.trainingModel(model) if is_training else poptorch.inferenceModel(model))(X, INDEX)
    assert texts == [
        "tensor(<unavailable>, device='ipu:0', size=(3, 5))", "tensor(<unavailable>, device='ipu:0', size=())",
        "tensor(<unavailable>, device='ipu:0', size=(2, 2), dtype=torch.int64)",
        "[tensor(<unavailable>, device='ipu:0', size=(3, 5), dtype=torch.float16)]", "tensor([0, 2, 4])",
    ]
    model(X, INDEX)
    assert texts[0] == repr(X)
