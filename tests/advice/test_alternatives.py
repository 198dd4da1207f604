"""Alternatives: what a report predicts of a change is what a step that is made with it compiles to."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

import torchipu
from tests.advice.small_models import LONG, Stages, Tower, compiled, facts_of, stages_step, train_step
from torchipu.advice.changes import Change
from torchipu.advice.door import advised
from torchipu.advice.nearby import nearby
from torchipu.advice.trials import AS_IT_IS, Trials, subject_of, tried_of
from torchipu.ir.text import format_executable
from torchipu.remembered import Remembered
from torchipu.report.facts import rows
from torchipu.report.recorder import Recorded
from torchipu.target import lookup_target


def alternatives(step: Any) -> list[rows.Alternative]:
    return list(facts_of(step).tables["alternatives"])


def settings_of(option: str) -> dict[str, Any]:
    """Return options by what a user would write, word for word."""
    return eval(f"dict({option})", {"torchipu": torchipu})


@pytest.mark.parametrize("changed", [{}, {"recompute": "none", "replicas": 2}], ids=str)
def test_what_an_option_is_said_to_do_is_what_it_does(changed: dict[str, Any]) -> None:
    given = {"gradient_accumulation": 4, "momentum": 0.9, **changed}
    found = alternatives(stages_step(16 * given.get("replicas", 1), **given))
    assignments = [one for one in found if "=" in one.option and one.option.partition("=")[0].isidentifier()]
    options = [one for one in assignments if one.cycles_per_update]
    assert len(options) >= 5
    for one in options:
        settings = {**given, **settings_of(one.option)}
        samples = 4 * settings["gradient_accumulation"] * settings.get("replicas", 1)
        profile = stages_step(samples, **settings).profile
        assert one.cycles_per_update == profile.cycles_per_update, one
        assert one.fullest_tile_bytes == max(memory.total_bytes for memory in profile.memory_by_ipu), one
        assert one.samples_per_second == pytest.approx(profile.samples_per_second)


def test_the_first_is_the_program_as_it_is_and_the_rest_go_from_best_to_worst() -> None:
    step = stages_step()
    found = alternatives(step)
    assert found[0].change == "as it is"
    assert found[0].cycles_per_update == step.profile.cycles_per_update
    assert found[0].samples_per_second == pytest.approx(step.profile.samples_per_second)
    rates = [one.samples_per_second for one in found[1:] if one.fits]
    assert rates == sorted(rates, reverse=True)
    assert [one.number for one in found] == list(range(len(found)))


def test_a_micro_batch_of_half_the_samples_is_captured_again() -> None:
    inputs = torch.zeros(16, 256)
    one = next(a for a in alternatives(compiled(Tower(), inputs)) if a.option == "micro-batches of 8")
    assert one.cycles_per_update == compiled(Tower(), torch.zeros(8, 256)).profile.cycles_per_update
    assert one.command == "torchipu estimate --micro-batch 8 script.py" or one.command.endswith(".py")


def test_a_model_in_halves_is_that_of_half() -> None:
    inputs = torch.zeros(16, 256)
    one = next(a for a in alternatives(compiled(Tower(), inputs)) if a.option == "model.half()")
    halved = compiled(Tower().half(), inputs.half()).profile
    assert one.fullest_tile_bytes == max(memory.total_bytes for memory in halved.memory_by_ipu)
    assert one.cycles_per_update == halved.cycles_per_update


def test_a_module_moves_where_its_block_is_said_to_begin() -> None:
    found = [one for one in alternatives(stages_step()) if one.change.startswith("module ")]
    assert len(found) == 1
    assert found[0].change.startswith("module wide.3")
    assert found[0].change.endswith(" from ipu 0 to ipu 1")
    model = Stages()
    eval(found[0].option, {"torchipu": torchipu, "model": model})
    step = train_step(model, gradient_accumulation=4)
    step.compile(torch.zeros(16, 512), torch.zeros(16, dtype=torch.long))
    assert found[0].cycles_per_update == step.profile.cycles_per_update


def test_a_block_moves_as_the_option_stages_says() -> None:
    class Three(Stages):
        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            with torchipu.Block("a", ipu_id=0):
                x = self.wide[0](x)
            with torchipu.Block("b", ipu_id=0):
                x = self.wide[1](x)
            with torchipu.Block("c", ipu_id=1):
                return torch.nn.functional.cross_entropy(self.narrow(x), labels)

    inputs = torch.zeros(16, 512), torch.zeros(16, dtype=torch.long)
    found = next(one for one in alternatives(compiled(Three(), *inputs, gradient_accumulation=4))
                 if one.change == "block 'b' from ipu 0 to ipu 1")
    moved = compiled(Three(), *inputs, gradient_accumulation=4, **settings_of(found.option))
    assert found.cycles_per_update == moved.profile.cycles_per_update
    assert {op.placement.ipu for op in moved.compiled.graph.ops if op.placement.block == "b"} == {1}


def test_a_step_is_as_before_when_changes_of_it_were_tried() -> None:
    step = train_step(Tower(), momentum=0.9, gradient_accumulation=2)
    inputs = torch.randn(16, 256)
    step(inputs)
    twin = train_step(copy.deepcopy(step.model), momentum=0.9, gradient_accumulation=2)
    twin.optimizer.load_state_dict(copy.deepcopy(step.optimizer.state_dict()))
    options, state = step.options, {key: dict(held) for key, held in step.optimizer.state.items()}
    assert len(alternatives(step)) > 6
    assert step.options is options
    for key, held in step.optimizer.state.items():
        assert held.keys() == state[key].keys()
        assert all(held[name] is state[key][name] for name in held)
    assert torch.equal(step(inputs), twin(inputs))
    for mine, other in zip(step.model.parameters(), twin.model.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_stages_that_ran_before_give_what_they_would_give_again() -> None:
    step = stages_step(recompute="stage", gradient_accumulation=8)
    subject = subject_of(step.compiled, lookup_target("mk2"), step.graph_again)
    base = tried_of(AS_IT_IS, step.compiled, step.compiled.executable)
    together = Trials(subject, base, 1e6)
    for change in nearby(subject, base):
        one, alone = together.of(change), Trials(subject, base, 1e6).of(change)
        assert (one.refusal, one.memory) == (alone.refusal, alone.memory)
        assert one.samples_per_second == alone.samples_per_second
        if one.compiled is not None:
            assert format_executable(one.compiled.executable) == format_executable(alone.compiled.executable)
    assert len(together.found) >= 6


def test_a_stage_runs_again_where_what_it_reads_has_changed() -> None:
    @dataclass
    class Given:
        """What stages are given here."""

        options: torchipu.Options
        graph: object
        micro_batches: int = 1

    known, ran = Remembered(), []

    def stage(given: Any) -> str:
        ran.append(given.graph)
        recompute = given.options.recompute
        return f"{recompute}{given.options.num_ipus if recompute == 'none' else ''}"

    graph, other = object(), object()
    asked = [
        (Given(torchipu.Options(recompute="none"), graph), "noneNone", 1),
        (Given(torchipu.Options(recompute="none", gradient_accumulation=4), graph, 4), "noneNone", 1),  # reads neither
        (Given(torchipu.Options(recompute="none", num_ipus=2), graph), "none2", 2),
        (Given(torchipu.Options(recompute="stage"), graph), "stage", 3),
        (Given(torchipu.Options(recompute="stage", num_ipus=2), graph), "stage", 3),  # not read on this way
        (Given(torchipu.Options(recompute="stage"), other), "stage", 4),
    ]
    for given, made, runs in asked:
        assert known.of("stage", stage, given) == made
        assert len(ran) == runs


def test_options_that_a_stage_makes_of_others_are_read_whole() -> None:
    @dataclass
    class Given:
        """What stages are given here."""

        options: torchipu.Options

    known = Remembered()

    def stage(given: Any) -> int:
        return replace(given.options, recompute="none").gradient_accumulation

    asked = [Given(torchipu.Options(gradient_accumulation=count)) for count in (2, 4, 2)]
    assert [known.of("stage", stage, one) for one in asked] == [2, 4, 2]


def test_what_there_is_no_time_for_is_named() -> None:
    step = stages_step()
    facts = facts_of(step, 1e-9)
    assert [one.change for one in facts.tables["alternatives"]] == ["as it is"]
    assert "twice the micro-batches of an update" in facts.figure("what_if_left_out")
    assert facts.figure("what_if_seconds") == 1e-9
    none = advised(Recorded(step.profile, step.compiled), 0)
    assert none.tables["alternatives"] == none.tables["advice"] == ()
    assert none.figure("what_if_seconds") == 0


def test_trials_stop_when_their_time_is_over_and_try_nothing_twice() -> None:
    step = stages_step()
    now = [0.0]

    def clock() -> float:
        now[0] += 1.0
        return now[0]

    base = tried_of(AS_IT_IS, step.compiled, step.compiled.executable)
    trials = Trials(subject_of(step.compiled, lookup_target("mk2")), base, 2.5, clock=clock)
    changes = [Change(f"{share} of a tile", str(share), {"available_memory": {0: share}}) for share in (0.1, 0.2, 0.3)]
    first, second, third = (trials.of(change) for change in changes)
    assert first is not None
    assert second is not None
    assert third is None
    assert trials.of(changes[0]) is first
    assert trials.left_out == [changes[2]]


@pytest.mark.parametrize(("seconds_of_each", "tried"), [(1.0, 3), (2.0, 1)])
def test_a_few_quick_changes_are_tried_whatever_the_time(seconds_of_each: float, tried: int) -> None:
    step = stages_step()
    now = [0.0]

    def clock() -> float:
        now[0] += seconds_of_each
        return now[0]

    base = tried_of(AS_IT_IS, step.compiled, step.compiled.executable)
    trials = Trials(subject_of(step.compiled, lookup_target("mk2")), base, 0.9, 3, clock=clock)
    for share in (0.1, 0.2, 0.3, 0.4):
        trials.of(Change(f"{share} of a tile", str(share), {"available_memory": {0: share}}))
    assert len(trials.found) == tried


def test_what_cannot_be_is_refused_with_its_reason() -> None:
    class Counting(Tower):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.reshape(16, 256))

    found = [one for one in alternatives(compiled(Counting(), torch.zeros(16, 256))) if not one.cycles_per_update]
    half = next(one for one in found if one.change == "micro-batches of 8 samples instead of 16")
    assert half.command.startswith("the model cannot be captured as one graph")
    assert "\n" not in half.command
    assert not any(one.fits or one.fullest_tile_bytes or one.samples_per_second for one in found)


def test_programs_of_torch_compile_are_tried_without_their_model(tmp_path: Any) -> None:
    torch._dynamo.reset()
    explanation = torchipu.explain(torch.nn.Linear(32, 32), torch.randn(4, 32))
    explanation.report(tmp_path, what_if_seconds=LONG)
    facts = advised(explanation.programs[0], LONG)
    assert len(facts.tables["alternatives"]) > 1
    assert not [one for one in facts.tables["alternatives"] if one.option.startswith("micro-batches")]
