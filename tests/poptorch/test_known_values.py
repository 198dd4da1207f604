"""Tensors of the host in forward: their values are known at capture, and they may be moved to the device."""

from __future__ import annotations

import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from torchipu import poptorch

X = torch.arange(15.0).reshape(3, 5) / 7
NUMBER, NUMBERS, VALUES = torch.tensor(2), torch.tensor([1, 2]), torch.tensor([0.5, 1.5, 2.5, 3.5, 4.5])


class Called(nn.Module):
    """Calls a function, which finds its tensors outside of the model."""

    def __init__(self, body: Callable[..., Any]) -> None:
        super().__init__()
        self.body = body

    def forward(self, *args: torch.Tensor) -> Any:
        return self.body(*args)


def run(body: Callable[..., Any], *args: torch.Tensor) -> Any:
    return poptorch.inferenceModel(Called(body))(*args)


@pytest.mark.parametrize("body", [
    lambda x: x * torch.tensor([2, 3]).tolist()[1], lambda x: x[: torch.arange(3).sum() - 1],
    lambda x: nn.functional.pad(x, (0, torch.min(torch.tensor((4, 2))))),
    lambda x: x * sum(int(one) for one in torch.ones(2).mul_(3)),
    lambda x: x * NUMBER.item(), lambda x: x * float(VALUES[1]), lambda x: x[int(NUMBER)],
    lambda x: x[NUMBERS.tolist()],
    lambda x: x if NUMBER > 1 else -x, lambda x: x if NUMBERS.sum() == 4 else -x, lambda x: x[NUMBER:],
    lambda x: x[:NUMBER], lambda x: x[:, ::NUMBER], lambda x: x[NUMBERS[0] : NUMBERS[1], NUMBER], lambda x: x[NUMBER],
    lambda x: x[operator.index(NUMBER)], lambda x: torch.stack([x[i] for i in range(NUMBER)]),
    lambda x: x.reshape(NUMBERS[0], -1), lambda x: x * (NUMBER + 1).item(), lambda x: x * VALUES.numpy().max().item(),
    lambda x: x * (VALUES * 2).clamp(max=3).sum().item(), lambda x: x * NUMBER.clone().add_(3).item(),
    lambda x: x * float(f"{NUMBER}"), lambda x: torch.stack([x * value for value in NUMBERS]),
    lambda x: x.narrow(1, NUMBERS[0], 2), lambda x: x * NUMBERS.equal(NUMBERS), lambda x: x.repeat(NUMBER, 1),
])
def test_the_values_of_tensors_of_the_host_are_known_at_capture(body: Any) -> None:
    torch.testing.assert_close(run(body, X), body(X))


def test_constants_of_an_enclosing_function_and_attributes_are_known_too() -> None:
    inner = torch.tensor([3])

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.count = torch.tensor(2)

        def forward(self, x: torch.Tensor) -> Any:
            return x[: self.count], x[:, : inner.item()], x[:, self.count :], int(inner.max())

    model = Model()
    for found, expected in zip(poptorch.inferenceModel(model)(X), model(X), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("body", [
    lambda model, x: x * model.held.item(), lambda model, x: x[: model.held], lambda model, x: x * float(model.weight),
    lambda model, x: x * (NUMBER.clone() + x[0, 0]).item(),
    lambda model, x: x * NUMBER.float().clone().to(x.device).add_(x[0, 0]).item(),
    lambda model, x: x * torch.rand_like(VALUES).sum().item(),
])
def test_the_values_of_inputs_weights_buffers_and_random_numbers_are_not(body: Any) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("held", torch.tensor(2))
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, x: torch.Tensor) -> Any:
            return body(self, x)

    with pytest.raises(poptorch.Error, match=r"Cannot force a non-constant|Slicing size must be a constant"):
        poptorch.inferenceModel(Model())(X)


@pytest.mark.parametrize("body", [
    lambda x: x + VALUES.type_as(x), lambda x: x + VALUES.to(x.device), lambda x: x + VALUES.to(x),
    lambda x: x + VALUES.to(x.device, x.dtype), lambda x: x + VALUES.to(device=x.device, dtype=x.dtype),
    lambda x: x + x.new_tensor(VALUES), lambda x: x + torch.as_tensor(VALUES, device=x.device),
    lambda x: VALUES.to(x).add_(x[0]), lambda x: VALUES.to(x.device)[1:].mul_(x[0, 1:]),
    lambda x: x + VALUES.to(x)[None].expand(3, 5), lambda x: x[: NUMBER.to(x.device)],
    lambda x: torch.cat([x, VALUES.type_as(x)[None]]),
])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_tensor_of_the_host_may_be_moved_to_the_device(body: Any, dtype: torch.dtype) -> None:
    before = VALUES.clone()
    x = X.to(dtype)
    expected = body(x).clone()
    VALUES.copy_(before)  # outside of the IPU nothing was moved, and it was written itself
    found = run(body, x)
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected)
    assert torch.equal(VALUES, before)


@pytest.mark.parametrize("body", [
    lambda x: x + VALUES, lambda x: torch.where(x > 1, x, VALUES),
    lambda x: torch.nn.functional.linear(x, VALUES),
])
def test_one_that_is_used_as_it_lies_is_refused(body: Any) -> None:
    with pytest.raises(poptorch.Error, match=r"Expected an IPU tensor but got tensor\(device=cpu"):
        run(body, X)


# --------------------------------------------------------------------------- writes on the host
class Counting(nn.Module):
    """Writes a plain tensor in forward.

    Args:
        write: What is done to it.
        start: What it holds first.
    """

    def __init__(self, write: Callable[[Any], Any], start: torch.Tensor) -> None:
        super().__init__()
        self.inner = nn.Module()
        self.inner.count = start  # type: ignore[assignment]
        self.write = write

    def forward(self, x: torch.Tensor) -> Any:
        early = x + self.inner.count
        self.write(self.inner)
        return early, x + self.inner.count, self.inner.count


def _add(member: Any) -> None:
    member.count += 1


def _set_part(member: Any) -> None:
    member.count[0] = 9


def _view(member: Any) -> None:
    member.count[:1].add_(5)


def _rebind(member: Any) -> None:
    member.count = member.count + 1


def _several(member: Any) -> None:
    member.count.mul_(3).add_(1)
    nn.functional.relu(member.count, inplace=True)
    torch.add(member.count, 1, out=member.count)


@pytest.mark.parametrize("write", [_add, _set_part, _view, _rebind, _several])
@pytest.mark.parametrize("start", [torch.tensor([0]), torch.tensor([1.5, 2.5])])
@pytest.mark.parametrize("is_training", [False, True])
def test_a_plain_attribute_that_is_written_is_a_constant(
    write: Any, start: torch.Tensor, is_training: bool, capsys: pytest.CaptureFixture[str],
) -> None:
    class Model(Counting):
        def __init__(self) -> None:
            super().__init__(write, start.clone())
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, x: torch.Tensor) -> Any:
            return *super().forward(x), poptorch.identity_loss(x * self.weight, "mean")

    x = torch.ones(2, len(start))
    expected = Counting(write, start.clone())
    wanted = expected(x)
    model = Model()
    step = poptorch.trainingModel(model) if is_training else poptorch.inferenceModel(model)
    for _ in range(3):  # every call gives the same
        for found, one in zip(step(x)[:3], wanted, strict=True):
            torch.testing.assert_close(found, one, check_dtype=False)
    assert torch.equal(torch.as_tensor(model.inner.count), torch.as_tensor(expected.inner.count))
    told = capsys.readouterr().err.count("Attribute inner.count is written when calling the forward method")
    assert told == (0 if write is _rebind else 1)


@pytest.mark.parametrize("write", [
    lambda total, one: operator.iadd(total, one), lambda total, one: torch._foreach_add_([total], [one]),
])
def test_what_is_made_of_numbers_and_then_written_with_values_of_the_device_is_not_known(
    write: Callable[[torch.Tensor, torch.Tensor], object],
) -> None:
    def body(x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(1)
        write(total, x.sum().reshape(1))
        return x * int(total)

    with pytest.raises(poptorch.Error, match="Cannot force a non-constant"):
        run(body, X)


def test_a_registered_buffer_keeps_its_value() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.tensor([0]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1
            return x * self.count

    step = poptorch.inferenceModel(Model())
    assert [step(torch.ones(1)).item() for _ in range(3)] == [1.0, 2.0, 3.0]


def test_the_executable_cache_tells_values_of_the_host_apart(tmp_path: Path) -> None:
    def scaled(value: float) -> nn.Module:
        factor = torch.tensor(value)
        return Called(lambda x: x * factor.item() + factor.to(x))

    for value in (2.0, 3.0, 2.0):
        settings = poptorch.Options()
        settings.enableExecutableCaching(str(tmp_path))
        torch.testing.assert_close(poptorch.inferenceModel(scaled(value), settings)(X), X * value + value)
    assert len(list(tmp_path.glob("*.executable"))) == 2
