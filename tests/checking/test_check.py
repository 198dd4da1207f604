"""``torchipu.check``: host and tiles agree, and where one of them is wrong it says which op, and on which line."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
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


class Returned(nn.Module):
    """Gives back, beside its loss, what it was given and what it has."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(6, 3), nn.BatchNorm1d(6)
        self.register_buffer("scale", torch.arange(3.0))

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> Any:
        loss = nn.functional.cross_entropy(self.layer(self.norm(x)) * self.scale, target)
        weight, mean = self.layer.weight, self.norm.running_mean
        return loss, x, x.clone(), target, weight, weight.t(), self.scale, torch.ones(2), mean


@pytest.mark.parametrize("replicas", [1, 2])
def test_results_that_no_op_makes_are_those_of_the_host(replicas: int) -> None:
    """Weights are as they are before the update of their iteration, means that the model keeps as it has left them."""
    model = Returned()
    found = torchipu.check(model, *batch(4))
    assert found.is_equal, str(found)
    assert [result.kind for result in found.results].count("output") == 9
    options = torchipu.Options(
        replicas=replicas, gradient_accumulation=2, device_iterations=3, output_mode="all", broadcast_buffers=False,
        weight_location=torchipu.TensorLocation(replicated_sharding=replicas > 1, min_elements_sharding=2),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    found = torchipu.check(model, *batch(12 * replicas), optimizer=optimizer, options=options)
    assert found.is_equal, str(found)
    assert [result.kind for result in found.results].count("output") == 9


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

    def without_sends(executable: Any, *arguments: Any, **named: Any) -> Any:
        functions = {
            name: Sequence(tuple(step for step in program.body if not isinstance(step, Copy)))
            if name.endswith(".send") else program for name, program in executable.functions.items()
        }
        assert any(isinstance(step, Execute) for step in functions["0F"].body)
        return made(replace(executable, functions=functions), *arguments, **named)

    monkeypatch.setattr(door, "machine_of", without_sends)
    with pytest.raises(DeviceProgramError, match=r"on ipu 1, but nobody has written it"):
        torchipu.check(Staged().eval(), *batch())


def test_a_step_in_several_processes_is_refused() -> None:
    step = torchipu.InferenceStep(Staged().eval())
    step.compile(*batch())
    step._members = object()  # type: ignore[assignment]
    with pytest.raises(OptionsError, match="the machine runs in one process, and process_group names others"):
        door.begin_check(step, batch())


class Drawing(nn.Module):
    """A model of which the first call and those behind it draw other bits."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> Any:
        x = nn.functional.dropout(self.first(x.to(self.first.weight.dtype)).relu(), 0.4)
        out = self.second(x).float()
        return out, nn.functional.cross_entropy(out, target)


@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.parametrize("options", [{}, {"replicas": 2, "recompute": "none"}])
def test_what_is_drawn_is_the_same_on_both_sides(seed: int | None, options: dict[str, Any]) -> None:
    model = Drawing()
    settings = torchipu.Options(seed=seed, gradient_accumulation=2, device_iterations=3, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = batch()
    state = torch.random.get_rng_state()
    found = torchipu.check(model, *inputs, optimizer=optimizer, options=settings)
    assert found.is_equal, str(found)
    assert not found.whole
    assert torch.equal(torch.random.get_rng_state(), state) == (seed is not None), "as many as a call draws"


@pytest.mark.parametrize("how", [torch.optim.SGD, torch.optim.AdamW, partial(torch.optim.SGD, momentum=0.9)])
@pytest.mark.parametrize("options", [{}, {"partials_type": "half"}, {"half_overflow": "nan", "replicas": 2}])
def test_halves_are_rounded_by_the_same_bits(how: Any, options: dict[str, Any]) -> None:
    model = Drawing().half()
    settings = torchipu.Options(
        stochastic_rounding=True, gradient_accumulation=2, device_iterations=3, seed=3, **options,
    )
    found = torchipu.check(model, *batch(), optimizer=how(model.parameters(), lr=0.1), options=settings)
    assert found.is_equal, str(found)


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
