"""Steps on inputs of classes that users derive from ``torch.Tensor``, beside eager PyTorch in float64."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor

import torchipu
from torchipu.errors import UnsupportedOpError


class Named(Tensor):
    """Overrides nothing; instances may have attributes."""


class Subtracting(Tensor):
    """Sums of which are differences."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        func = torch.sub if func is torch.add else func
        return super().__torch_function__(func, types, args, kwargs or {})


class Silent(Tensor):
    """As parameters are: functions of torch do not ask it."""

    __torch_function__ = torch._C._disabled_torch_function_impl


class Sum(nn.Module):
    """Adds a weight ``[4]`` to rows ``[N, 4]``."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(1, 2, 4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.add(x, self.weight)


class Scaled(Sum):
    """Multiplies by what an input says of itself."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.add(x, self.weight) * x.scale  # type: ignore[attr-defined]


class Loss(nn.Module):
    """The mean square of a linear layer of rows ``[N, 4]``, or of sums of such and a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.sum = Sum()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.sum(x)).square().mean()


X = torch.randn(6, 4, generator=torch.Generator().manual_seed(3))


def eagerly(model: nn.Module, x: Tensor) -> Tensor:
    """Return what eager PyTorch gives in float64, as a plain tensor."""
    result = model.double()(x.as_subclass(Tensor).double().as_subclass(type(x)))
    model.float()
    return result.detach().as_subclass(Tensor)


@pytest.mark.parametrize("iterations", [1, 3])
@pytest.mark.parametrize("kind", [Named, Subtracting, Silent, nn.Parameter, nn.Buffer])
def test_inference_gives_what_the_class_gives_in_eager(kind: Callable[..., Tensor], iterations: int) -> None:
    model = Sum()
    step = torchipu.InferenceStep(model, torchipu.Options(device_iterations=iterations, output_mode="all"))
    for call in range(2):
        x = X + call
        x = kind(x) if kind in (nn.Parameter, nn.Buffer) else x.as_subclass(kind)
        found = step(x)
        assert type(found) is Tensor
        torch.testing.assert_close(found.double(), eagerly(model, x), rtol=1e-6, atol=1e-6)


def test_the_same_step_takes_one_class_after_another() -> None:
    model = Sum()
    step = torchipu.InferenceStep(model)
    for kind in (Tensor, Subtracting, Named, Tensor, nn.Parameter):
        x = X.as_subclass(kind)
        torch.testing.assert_close(step(x).double(), eagerly(model, x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", [Named, Subtracting, Silent])
def test_training_updates_weights_as_eager_does(kind: type[Tensor]) -> None:
    torch.manual_seed(1)
    model, reference = Loss(), Loss().double()
    reference.load_state_dict(model.state_dict())
    step = torchipu.TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1))
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    for _ in range(3):
        found = step(X.as_subclass(kind))
        optimizer.zero_grad()
        loss = reference(X.double().as_subclass(kind)).as_subclass(Tensor)
        loss.backward()
        optimizer.step()
        torch.testing.assert_close(found.double(), loss.detach(), rtol=1e-5, atol=1e-6)
    for name, value in reference.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name].double(), value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("iterations", [1, 2])
def test_attributes_are_those_of_each_call(iterations: int) -> None:
    model = Scaled()
    step = torchipu.InferenceStep(model, torchipu.Options(device_iterations=iterations, output_mode="all"))
    for scale in (2.0, 3.0, 2.0):
        x = X.as_subclass(Named)
        x.scale = scale  # type: ignore[attr-defined]
        torch.testing.assert_close(step(x), (X + model.weight.detach()) * scale)


def test_a_compilation_for_another_class_says_so() -> None:
    step = torchipu.InferenceStep(Sum())
    x = X.as_subclass(Named)
    x.scale = 2.0  # type: ignore[attr-defined]
    step(X)
    step(x)
    assert [why for why, _ in step._seen.recompilations] == [
        "inputs are float32[6, 4] of Named(scale=2.0), and were float32[6, 4]",
    ]


def test_a_capture_of_another_class_of_the_same_name_is_not_taken_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TORCHIPU_CACHE", str(tmp_path))

    def made(function: Callable[..., Tensor]) -> type[Tensor]:
        class Own(Tensor):
            @classmethod
            def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                func = function if func is torch.add else func
                return super().__torch_function__(func, types, args, kwargs or {})

        return Own

    for function in (torch.sub, torch.mul):
        model = Sum()
        found = torchipu.InferenceStep(model)(X.as_subclass(made(function)))
        torch.testing.assert_close(found, function(X, model.weight.detach()))


def test_a_class_that_computes_below_operators_is_refused_with_a_remedy() -> None:
    step = torchipu.InferenceStep(Sum())
    with pytest.raises(UnsupportedOpError, match=r"input x: tensors of TwoTensor, .*__torch_dispatch__") as raised:
        step(TwoTensor(X, X))
    assert "pass a plain torch.Tensor" in str(raised.value)
    torch.testing.assert_close(step(X), X + step.model.weight.detach())
