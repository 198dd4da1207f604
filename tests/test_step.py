"""The one-Program door: signatures, output modes, progress, refusals, and state after a call that failed."""

from __future__ import annotations

import copy
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchipu
from torchipu.compiler import STAGES
from torchipu.errors import CaptureError, ConstraintError, ExecutionError, OptionsError
from torchipu.host.bound_plan import BoundPlan


class Classifier(nn.Module):
    """Returns logits ``[N, 3]`` and, with labels, the loss."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> object:
        logits = self.head(self.body(x).relu())
        return logits if labels is None else (logits, nn.functional.cross_entropy(logits, labels))


class Counting(nn.Module):
    """Returns its buffers as they were and counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("table", torch.arange(6.0).reshape(2, 3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        before = self.count.clone(), self.table.t().clone()
        self.count.add_(1)
        self.table.mul_(2)
        return (x + self.count, *before)


def batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(size)
    return torch.randn(size, 6, generator=generator), torch.randint(3, (size,), generator=generator)


def train_step(**options: object) -> torchipu.TrainStep:
    model = Classifier()
    return torchipu.TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), torchipu.Options(**options))


def eager_steps(
    model: nn.Module, x: torch.Tensor, labels: torch.Tensor, updates: int, micro_batches: int
) -> list[float]:
    """Train in eager PyTorch; return the loss of every micro-batch."""
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
    pieces = iter(zip(x.chunk(updates * micro_batches), labels.chunk(updates * micro_batches), strict=True))
    for _ in range(updates):
        optimizer.zero_grad()
        for _ in range(micro_batches):
            _, loss = model(*next(pieces))
            (loss / micro_batches).backward()
            losses.append(loss.item())
        optimizer.step()
    return losses


# --------------------------------------------------------------------------- values and shapes
def test_a_call_gives_the_losses_and_weights_of_eager_accumulation() -> None:
    step = train_step(gradient_accumulation=3, device_iterations=2, output_mode="all")
    twin = copy.deepcopy(step.model)
    x, labels = batch(24)
    _, losses = step(x, labels)
    torch.testing.assert_close(losses, torch.tensor(eager_steps(twin, x, labels, 2, 3)))
    torch.testing.assert_close(step.model.state_dict(), twin.state_dict())


@pytest.mark.parametrize(("mode", "logits", "losses"), [
    ("all", (24, 3), (6,)), ("final", (4, 3), ()), ("sum", (4, 3), ()), (None, (4, 3), ()),
])
def test_output_mode_gives_the_shape(mode: str | None, logits: tuple[int, ...], losses: tuple[int, ...]) -> None:
    found = train_step(gradient_accumulation=3, device_iterations=2, output_mode=mode)(*batch(24))
    assert [value.shape for value in found] == [logits, losses]


def test_every_n_gives_all_micro_batches_of_every_nth_device_iteration() -> None:
    options = {"gradient_accumulation": 2, "device_iterations": 6}
    everything, some = (
        train_step(**options, output_mode=mode, output_period=3)(*batch(24)) for mode in ("all", "every_n")
    )
    assert torch.equal(some[0], everything[0].unflatten(0, (6, 4))[[2, 5]].flatten(0, 1))
    assert torch.equal(some[1], everything[1].unflatten(0, (6, 2))[[2, 5]].flatten())


def test_a_model_without_states_may_return_its_input_and_a_view_of_it() -> None:
    class Echo(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x, x.t()

    x = torch.rand(3, 2)
    found = torchipu.InferenceStep(Echo())(x)
    assert torch.equal(found[0], x)
    assert torch.equal(found[1], x.t())
    assert found[0].data_ptr() != x.data_ptr()


def test_final_and_sum_are_made_of_all() -> None:
    options = {"gradient_accumulation": 3, "device_iterations": 2}
    every, final, total = (
        train_step(**options, output_mode=mode)(*batch(24)) for mode in ("all", "final", "sum")
    )
    assert torch.equal(final[0], every[0][-4:])
    assert torch.equal(final[1], every[1][-1])
    torch.testing.assert_close(total[0], every[0].unflatten(0, (6, 4)).sum(0))
    torch.testing.assert_close(total[1], every[1].sum())


def test_inference_joins_all_micro_batches() -> None:
    model = Classifier()
    x, _ = batch(20)
    found = torchipu.InferenceStep(model, torchipu.Options(device_iterations=5))(x)
    torch.testing.assert_close(found, model(x).detach())


def test_a_buffer_is_returned_as_it_was_before_the_model_wrote_it() -> None:
    model = Counting()
    twin, x = copy.deepcopy(model), torch.randn(2)
    step = torchipu.InferenceStep(model)
    for _ in range(2):
        assert all(torch.equal(a, b) for a, b in zip(step(x), twin(x), strict=True))
        assert torch.equal(model.table, twin.table)


# --------------------------------------------------------------------------- compilation
def test_the_same_signature_compiles_once_and_another_anew() -> None:
    step = train_step()
    step(*batch(4))
    first = step.compiled
    step(*batch(4))
    assert step.compiled is first
    step(*batch(8))
    assert step.compiled is not first


@pytest.mark.parametrize("change", [
    lambda model: model.eval(), lambda model: model.head.weight.requires_grad_(False),
], ids=["mode", "frozen"])
def test_a_change_of_the_model_compiles_anew(change: object) -> None:
    step = train_step()
    step(*batch(4))
    first = step.compiled
    change(step.model)  # type: ignore[operator]
    step(*batch(4))
    assert step.compiled is not first


def test_a_frozen_parameter_stays_as_it_is() -> None:
    step = train_step()
    step.model.head.weight.requires_grad_(False)
    before = copy.deepcopy(step.model.state_dict())
    step(*batch(4))
    changed = {name for name, value in step.model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"body.weight", "body.bias", "head.bias"}


def test_state_carries_over_to_another_signature() -> None:
    step, twin = train_step(), Classifier()
    for size in (4, 6, 4):
        step(*batch(size))
        eager_steps(twin, *batch(size), 1, 1)
    torch.testing.assert_close(step.model.state_dict(), twin.state_dict())


def test_compile_reports_every_stage_and_runs_nothing() -> None:
    step = train_step()
    before = copy.deepcopy(step.model.state_dict())
    stages: list[tuple[int, int]] = []
    step.compile(*batch(4), progress=lambda done, total: stages.append((done, total)))
    assert stages == [(n, 4) for n in range(5)]
    torch.testing.assert_close(step.model.state_dict(), before, rtol=0, atol=0)


def test_weights_and_learning_rates_set_between_calls_are_used() -> None:
    step = train_step()
    twin = copy.deepcopy(step.model)
    step(*batch(4))
    step.model.load_state_dict(twin.state_dict())
    step.optimizer.param_groups[0]["lr"] = 0.0
    step(*batch(4))
    torch.testing.assert_close(step.model.state_dict(), twin.state_dict(), rtol=0, atol=0)


def test_the_environment_names_a_directory_for_dumps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHIPU_DUMP", str(tmp_path / "all"))
    train_step().compile(*batch(4))
    train_step(dump=str(tmp_path / "one")).compile(*batch(4))
    names = [path.name for path in sorted((tmp_path / "all").iterdir())]
    assert [name.split(".")[1] for name in names] == [
        "00-captured", *(f"{number:02d}-{stage.name}" for number, stage in enumerate(STAGES, start=1)),
    ]
    assert [path.name for path in sorted((tmp_path / "one").iterdir())] == names


# --------------------------------------------------------------------------- refusals and failures
def test_a_batch_that_does_not_divide_is_refused() -> None:
    step = train_step(gradient_accumulation=3, device_iterations=2)
    with pytest.raises(ConstraintError, match="batch of 20 is not divisible by device_iterations 2 x "
                                              "gradient_accumulation 3 = 6") as refused:
        step(*batch(20))
    assert "pass 18 or 24 samples" in str(refused.value)


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(OptionsError, match=r"must be a torch\.nn\.Module, got function"):
        torchipu.InferenceStep(lambda x: x)  # type: ignore[arg-type]
    with pytest.raises(OptionsError, match=r"must be a torch\.nn\.Module, got the class Classifier itself") as refused:
        torchipu.InferenceStep(Classifier)  # type: ignore[arg-type]
    assert "make one of it, and give that" in str(refused.value)
    with pytest.raises(OptionsError, match="Module, got InferenceStep\n  do      give the model that it was made of"):
        torchipu.InferenceStep(torchipu.InferenceStep(Classifier()))  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_training_step_trains_whatever_its_caller_does_with_gradients(mode: Any) -> None:
    model = Classifier()
    twin, (x, labels) = copy.deepcopy(model), batch(4)
    step, other = (torchipu.TrainStep(each, torch.optim.SGD(each.parameters(), 0.1)) for each in (model, twin))
    for _ in range(2):
        with mode():
            step(x, labels)
        other(x, labels)
    for one, expected in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(one, expected)


def test_weights_made_in_inference_mode_are_not_trained() -> None:
    with torch.inference_mode():
        model = Classifier()
    step = torchipu.TrainStep(model, torch.optim.SGD(model.parameters(), 0.1))
    with pytest.raises(CaptureError, match=r"do      make the model outside torch\.inference_mode\(\), or load its"):
        step(*batch(4))


def test_a_model_that_torch_compile_has_wrapped_is_run_as_what_it_wraps() -> None:
    model = Classifier()
    wrapped, twin, (x, labels) = torch.compile(model), copy.deepcopy(model), batch(4)
    torch.testing.assert_close(torchipu.InferenceStep(wrapped)(x), model(x).detach())
    steps = [torchipu.TrainStep(each, torch.optim.SGD(each.parameters(), 0.1)) for each in (wrapped, twin)]
    for step in steps:
        step(x, labels)
    torch.testing.assert_close(dict(model.state_dict()), dict(twin.state_dict()), rtol=0, atol=0)
    assert steps[0].model is model


def test_inference_refuses_gradient_accumulation() -> None:
    with pytest.raises(OptionsError, match="gradient_accumulation must be 1 for inference, got 2"):
        torchipu.InferenceStep(Classifier(), torchipu.Options(gradient_accumulation=2))


def test_a_profile_needs_a_compilation() -> None:
    with pytest.raises(OptionsError, match="nothing is compiled yet"):
        _ = train_step().profile


def test_a_call_that_fails_leaves_weights_and_the_next_call_as_they_were() -> None:
    step, twin = train_step(device_iterations=2), Classifier()
    step(*batch(8))
    eager_steps(twin, *batch(8), 2, 1)
    before = copy.deepcopy(step.model.state_dict())
    x, labels = batch(8)
    with pytest.raises(ExecutionError, match="out of range"):
        step(x, torch.cat([labels[:-1], torch.tensor([7])]))  # the first update was done by then
    torch.testing.assert_close(step.model.state_dict(), before, rtol=0, atol=0)
    step(x, labels)
    eager_steps(twin, x, labels, 2, 1)
    torch.testing.assert_close(step.model.state_dict(), twin.state_dict())


def test_an_interrupt_in_the_program_leaves_weights_and_optimiser_state_as_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters())
    step = torchipu.TrainStep(model, optimizer, torchipu.Options(gradient_accumulation=100, device_iterations=50))
    x, labels = batch(20_000)
    step(x, labels)
    weights, states = copy.deepcopy((model.state_dict(), optimizer.state_dict()["state"]))
    run = BoundPlan.run

    def run_with_alarm(*arguments: object, **keywords: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.002)
        run(*arguments, **keywords)  # type: ignore[arg-type]

    monkeypatch.setattr(BoundPlan, "run", run_with_alarm)
    previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            step(x, labels)
    finally:
        signal.signal(signal.SIGALRM, previous)
    torch.testing.assert_close(model.state_dict(), weights, rtol=0, atol=0)
    torch.testing.assert_close(optimizer.state_dict()["state"], states, rtol=0, atol=0)
