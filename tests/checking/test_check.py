"""``torchipu.check``: host and tiles agree, and where one of them is wrong it says which op, and on which line."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import torchipu
from torchipu import poptorch
from torchipu.checking import door
from torchipu.emulation import eager
from torchipu.errors import DeviceProgramError, ExecutionError, OptionsError
from torchipu.ir.program import Copy, Execute, Sequence
from torchipu.optable.spec import TABLE


class Staged(nn.Module):
    """Two stages; gives what it computes and its loss."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 3)
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> Any:
        with torchipu.Block("first", ipu_id=0):
            x = nn.functional.gelu(self.norm(self.first(x)))
        with torchipu.Block("second", ipu_id=1):
            out = self.second(x)
            return out, nn.functional.cross_entropy(out, target)


def batch(samples: int = 24) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randn(samples, 6), torch.randint(0, 3, (samples,))


def trained(**options: Any) -> torchipu.Check:
    model = Staged()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    settings = {"gradient_accumulation": 4, "device_iterations": 2, **options}
    return torchipu.check(model, *batch(), optimizer=optimizer, options=torchipu.Options(**settings))


@pytest.mark.parametrize("options", [
    {}, {"execution": "sharded"}, {"replicas": 3, "device_iterations": 1, "broadcast_buffers": False},
    {"recompute": "none"},
])
def test_host_and_machine_agree_in_training(options: dict[str, Any]) -> None:
    found = trained(**options)
    assert found.is_equal, str(found)
    assert {result.kind for result in found.results} >= {"output", "weight", "optimiser_state"}
    assert str(found).startswith(f"host and tiles agree in {len(found.results)} results, ")
    found.raise_for_difference()


def test_host_and_machine_agree_in_inference_and_the_model_is_left_alone() -> None:
    model = Staged().eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = torchipu.check(model, *batch(), options=torchipu.Options(device_iterations=3))
    assert found.is_equal, str(found)
    assert [result.kind for result in found.results] == ["output", "output"]
    assert found.supersteps > 0
    assert "read   input" in found.vertices() or "read   self" in found.vertices()
    for name, value in model.state_dict().items():
        assert value.equal(before[name])


def test_halves_agree_within_their_rounding() -> None:
    model = Staged().eval().half()
    x, target = batch()
    found = torchipu.check(model, x.half(), target)
    assert found.is_equal, str(found)


def test_an_op_that_the_host_computes_wrongly_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = TABLE["aten.gelu.default"]
    assert spec.instruction is not None
    wrong = replace(spec, instruction=lambda chain, op: chain.run("f_tanh", chain.argument(op, "self", "f")))
    monkeypatch.setitem(TABLE, "aten.gelu.default", wrong)
    found = torchipu.check(Staged().eval(), *batch())
    assert not found.is_equal
    assert found.first is not None
    assert found.first.op.target == "aten.gelu.default"
    text = str(found)
    assert "host and tiles differ in 2 of 2 results" in text
    assert "first   aten.gelu.default, superstep " in text
    assert "test_check.py" in text
    assert "expected " in text
    with pytest.raises(ExecutionError, match=r"differ(.|\n)*aten\.gelu\.default"):
        found.raise_for_difference()


def test_a_program_that_sends_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    made = door.machine_of

    def without_sends(executable: Any, *arguments: Any) -> Any:
        functions = {
            name: Sequence(tuple(step for step in program.body if not isinstance(step, Copy)))
            if name.endswith(".send") else program for name, program in executable.functions.items()
        }
        assert any(isinstance(step, Execute) for step in functions["0F"].body)
        return made(replace(executable, functions=functions), *arguments)

    monkeypatch.setattr(door, "machine_of", without_sends)
    with pytest.raises(DeviceProgramError, match=r"on ipu 1, but nobody has written it"):
        torchipu.check(Staged().eval(), *batch())


@pytest.mark.parametrize(("options", "message"), [
    ({"stochastic_rounding": True}, "stochastic rounding draws random bits"),
])
def test_options_that_cannot_be_checked_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionsError, match=message):
        torchipu.check(Staged().eval(), *batch(), options=torchipu.Options(**options))


def test_a_model_that_draws_is_refused() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5))
    with pytest.raises(OptionsError, match=r"draws random bits(.|\n)*call model\.eval\(\)"):
        torchipu.check(model, batch()[0])


@pytest.mark.parametrize("more", [{}, {"momentum": 0.9}, {"centered": True, "momentum": 0.9, "weight_decay": 0.1}])
def test_rmsprop_is_checked(more: dict[str, Any]) -> None:
    model = Staged()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01, **more)
    found = torchipu.check(model, *batch(), optimizer=optimizer, options=torchipu.Options(gradient_accumulation=3))
    assert found.is_equal, str(found)


def test_an_optimiser_without_an_independent_reference_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(eager.OWN, "ipu.lamb.default")
    model = Staged()
    optimizer = poptorch.optim.LAMB(model.parameters(), lr=0.01)
    with pytest.raises(OptionsError, match=r"there is nothing independent to compute ipu\.lamb\.default with"):
        torchipu.check(model, *batch(), optimizer=optimizer, options=torchipu.Options(gradient_accumulation=3))
