"""Tensors of the host and of the device while a model is captured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import nn

from tests.poptorch.models import options
from torchipu import poptorch

OUTSIDE = torch.tensor([1.0, 2.0, 3.0, 4.0])


def run(model: Any) -> torch.Tensor:
    return poptorch.inferenceModel(model, options())(torch.ones(4))


def test_tensors_made_in_forward_are_the_devices_and_the_log_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)  # Dynamo switches it off for good

    class Making(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            noise = torch.distributions.Normal(torch.zeros(4), torch.ones(4)).sample()
            return x + torch.zeros(4) + torch.ones(4) * torch.tensor([1.0, 2.0, 3.0, 4.0]), noise

    values, noise = poptorch.inferenceModel(Making(), options().randomSeed(1))(torch.ones(4))
    assert values.tolist() == [2.0, 3.0, 4.0, 5.0]
    assert noise.std() > 0
    lines = capsys.readouterr().err
    for name in ("zeros", "ones", "tensor"):
        assert lines.count(f"No device set in torch.{name}(): forcing to IPU") == 1
    with pytest.raises(ValueError, match="to satisfy the constraint"):
        torch.distributions.Normal(torch.zeros(4), -torch.ones(4))  # validated again


@pytest.mark.parametrize("model", [
    lambda x: x + OUTSIDE, lambda x: torch.cat([x, OUTSIDE]), lambda x: torch.add(input=x, other=OUTSIDE),
])
def test_tensors_of_the_host_are_refused(model: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with pytest.raises(poptorch.Error, match=r"Expected an IPU tensor but got tensor\(device=cpu, shape=\[4\], dtype="):
        run(model)


class Held:
    """Holds a tensor, and is no module."""

    def __init__(self) -> None:
        self.row = OUTSIDE.clone()


NORMAL = torch.distributions.Normal(torch.zeros(4), 2 * torch.ones(4))
LISTED, NAMED, HELD = [OUTSIDE.clone(), OUTSIDE.clone()], {"row": OUTSIDE.clone()}, Held()


def of_a_closure() -> Callable[[torch.Tensor], torch.Tensor]:
    table = OUTSIDE.clone()
    return lambda x: x * table


def of_an_argument() -> Callable[[torch.Tensor], torch.Tensor]:
    table = OUTSIDE.clone()

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return multiplied(x, table)

    def multiplied(x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        return torch.mul(x, factor)

    return scaled


@pytest.mark.parametrize(("model", "name", "buffer"), [
    (lambda x: x + OUTSIDE, "OUTSIDE", "OUTSIDE"), (lambda x: x * LISTED[1], "LISTED[1]", "constant"),
    (lambda x: x * NAMED["row"], "NAMED['row']", "constant"), (lambda x: x * HELD.row, "HELD.row", "constant"),
    (lambda x: NORMAL.log_prob(x), "NORMAL.loc", "constant"),
    (of_a_closure(), "table", "table"), (of_an_argument(), "factor", "factor"),
])
def test_the_refusal_names_the_tensor_its_line_and_what_to_do(
    model: Callable[[torch.Tensor], torch.Tensor], name: str, buffer: str,
) -> None:
    with pytest.raises(poptorch.Error) as caught:
        run(model)
    told = str(caught.value)
    assert f"if they are to change. {name} was made outside of forward and is used in {__file__}:" in told
    assert f'call self.register_buffer("{buffer}", {name}) in the model\'s __init__ and use self.{buffer}' in told
    assert f"{name}.to(x.device)" in told


def test_attributes_of_the_model_are_constants() -> None:
    class Constants(nn.Module):
        shared = torch.full((4,), 2.0)

        def __init__(self) -> None:
            super().__init__()
            self.own, self.listed, self.scalar = torch.ones(4), [torch.ones(4), {"a": torch.ones(4)}], OUTSIDE[0]
            self.register_buffer("buffer", torch.ones(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            counted = OUTSIDE * 10  # on the host alone
            x = x * self.shared + self.own + self.listed[0] + self.listed[1]["a"] + self.buffer + self.scalar
            return x + counted

    model = Constants()
    step = poptorch.inferenceModel(model, options())
    assert step(torch.ones(4)).tolist() == [17.0, 27.0, 37.0, 47.0]
    model.own.fill_(100.0)  # fixed when the model was compiled
    assert step(torch.ones(4)).tolist() == [17.0, 27.0, 37.0, 47.0]


def test_a_tensor_by_default_is_an_input() -> None:
    assert run(lambda x, y=OUTSIDE: x + y).tolist() == [2.0, 3.0, 4.0, 5.0]


@pytest.mark.parametrize("device", ["ipu", "ipu:0", torch.device("ipu"), torch.device("ipu", 1)])
def test_a_model_may_name_the_ipu(device: Any, capsys: Any) -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        y = torch.arange(3, dtype=torch.float32, device=device) + torch.tensor([1.0], device=device)
        return x.to(device) * y.to(device=x.device) + torch.zeros_like(x, device=device)

    x = torch.tensor([1.0, 2.0, 3.0])
    assert poptorch.inferenceModel(model)(x).equal(x * torch.tensor([1.0, 2.0, 3.0]))
    assert "forcing to IPU" not in capsys.readouterr().err


def test_tensors_of_forward_lie_on_the_ipu() -> None:
    asked: list[Any] = []

    class Asking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.register_buffer("offset", torch.ones(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = self.linear(x)
            made = torch.arange(4, device=x.device) + torch.full((4,), 2.0, device=hidden.device.type)
            ours = [x, hidden, self.linear.weight, self.offset, made, x.new_zeros(2), torch.zeros_like(x)]
            asked.append(([tensor.device for tensor in ours], OUTSIDE.device, x.device == made.device))
            asked.append([(tensor.is_ipu, tensor.is_cpu, tensor.is_cuda, tensor.get_device()) for tensor in ours])
            with torch.autocast(device_type=x.device.type, enabled=False), torch.device(x.device):
                mask = torch.ones(4, 4).tril()
            kept = torch.utils.checkpoint.checkpoint(torch.sin, hidden, use_reentrant=False)
            return (mask @ (kept + made + OUTSIDE.to(x.device))) * self.offset

    model, x = Asking(), torch.ones(4)
    assert model(x).device.type == "cpu"
    assert asked[0] == ([torch.device("cpu")] * 7, torch.device("cpu"), True)
    asked.clear()
    result = run(model)
    torch.testing.assert_close(result, model(x).detach())
    assert asked[0] == ([torch.device("ipu", 0)] * 7, torch.device("cpu"), True)
    assert asked[1] == [(True, False, False, 0)] * 7
    assert result.device.type == "cpu"
