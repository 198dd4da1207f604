"""What a report tells beyond the compiled program: times of the host, magnitudes, loss scales, events, stages."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import torchipu
from torchipu.advice.door import advised
from torchipu.host.waits import Waits
from torchipu.report.facts import rows
from torchipu.report.facts.gather import Facts
from torchipu.report.recorder import Recorded


class Classifier(nn.Module):
    """A classifier on one IPU."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 4)).to(dtype)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.body(x), labels)


def step_with(**options: object) -> torchipu.TrainStep:
    model = Classifier()
    return torchipu.TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), torchipu.Options(**options))


def inputs(samples: int = 24) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(samples, 24, generator=generator), torch.randint(4, (samples,), generator=generator)


def facts_of(step: torchipu.TrainStep) -> Facts:
    return advised(Recorded(step.profile, step.compiled, is_step=True, owner=step), 0)


# --------------------------------------------------------------------------- host
def test_kernels_of_the_host_are_timed_as_often_as_they_run() -> None:
    step = step_with(host_times=True, gradient_accumulation=3)
    for _ in range(4):
        step(*inputs())
    plan = step._bound.host_plan
    found = {one.name: one for one in facts_of(step).tables["host"]}
    body = plan.steps[plan.num_prologue : plan.num_prologue + plan.num_body]
    names = [one.kernel.name for one in plan.steps if one.kernel is not None]
    once = {name for name in names if names.count(name) == 1}
    of_body = [one.kernel.name for one in body if one.kernel is not None and one.kernel.name in once]
    assert of_body
    assert all(found[name].calls == 4 * 3 for name in of_body)
    around, between = found["around the engine"], found["other code"]
    assert (around.kind, between.kind, around.calls) == ("python", "between calls", 4)
    assert all(one.microseconds >= 0 and one.confidence == "measured" for one in found.values())
    assert sum(one.share for one in found.values()) == pytest.approx(1, abs=1e-4)
    rows_by_time = [one.microseconds for one in facts_of(step).tables["host"]]
    assert rows_by_time == sorted(rows_by_time, reverse=True)


class Slow(torch.utils.data.Dataset):
    """Samples, each of which takes a while."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, at: int) -> torch.Tensor:
        time.sleep(0.03)
        return inputs(1)[0][0], inputs(1)[1][0]


@pytest.mark.parametrize("workers", [0, 1])
def test_waits_for_loaders_of_torch_are_those_of_their_next(workers: int) -> None:
    step = step_with(host_times=True)
    step(*inputs(2))
    for batch in torch.utils.data.DataLoader(Slow(), batch_size=2, num_workers=workers):
        step(*batch)
        time.sleep(0.02)  # of the user's own
    found = {one.kind: one for one in facts_of(step).tables["host"]}
    assert found["loader"].calls == 2
    assert found["loader"].microseconds >= 2 * 30_000
    assert found["between calls"].microseconds >= 20_000
    assert step._seen.between_seconds * 1e6 == pytest.approx(
        found["loader"].microseconds + found["between calls"].microseconds, abs=1,
    )


def test_a_loader_that_waits_for_another_waits_once() -> None:
    waits = Waits()
    with waits.waiting(), waits.waiting():
        time.sleep(0.01)
    with pytest.raises(StopIteration), waits.waiting():
        raise StopIteration
    assert waits.count == 2
    assert 0.01 <= waits.seconds < 5


def test_achieved_rates_are_arithmetic_over_time() -> None:
    step = torchipu.InferenceStep(nn.Linear(64, 32, bias=False), torchipu.Options(host_times=True))
    for _ in range(3):
        step(torch.randn(16, 64))
    computing = [one for one in facts_of(step).tables["host"] if one.gflops]
    assert len(computing) == 1
    done = computing[0].gflops * computing[0].microseconds * 1e3
    assert done == pytest.approx(3 * 2 * 16 * 64 * 32, rel=0.02)


def test_nothing_is_timed_unless_it_is_asked_for_and_values_are_the_same() -> None:
    plain, timed = step_with(gradient_accumulation=2), step_with(gradient_accumulation=2, host_times=True)
    for _ in range(3):
        assert torch.equal(plain(*inputs()), timed(*inputs()))
    for mine, other in zip(plain.model.parameters(), timed.model.parameters(), strict=True):
        assert torch.equal(mine, other)
    assert facts_of(plain).tables["host"] == ()
    assert plain._bound.engine.times() == []
    assert facts_of(timed).tables["host"]


# --------------------------------------------------------------------------- magnitudes
def test_magnitudes_are_those_of_torch() -> None:
    class Extremes(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    step = torchipu.InferenceStep(Extremes(), torchipu.Options(statistics=True))
    x = torch.tensor([0.0, 1.0, -3.0, 1e-9, 5e4, float("inf"), float("nan"), 2.0])
    step(x)
    (one,) = facts_of(step).tables["numerics"]
    doubled = x * 2
    assert one.elements == 8
    assert one.nans == int(doubled.isnan().sum()) == 1
    assert one.overflows == int(doubled.half().isinf().sum()) == 2
    finite = doubled[doubled.isfinite() & (doubled != 0)].abs()
    assert one.largest == float(finite.max())
    assert one.smallest <= float(finite.min()) < 2 * one.smallest
    assert one.underflow_share == pytest.approx(1 / 7, abs=1e-6)
    counts = dict(json.loads(one.exponents))
    assert counts == {int(e) - 1: int((torch.frexp(finite)[1] == e).sum()) for e in torch.frexp(finite)[1].unique()}
    assert step.compiled.graph.ops[one.operation].outputs[0].name == one.tensor


def test_the_loss_scale_over_time_has_a_point_for_each_change() -> None:
    model = Classifier(torch.half)
    step = torchipu.TrainStep(
        model, torch.optim.SGD(model.parameters(), lr=0.0),
        torchipu.Options(automatic_loss_scaling=True, loss_scaling=8.0, loss_scale_period=2),
    )
    seen = []
    x, labels = inputs()
    for _ in range(6):
        step(x.half(), labels)
        seen.append(step.used_loss_scale)
    expected = [[call, scale] for call, scale in enumerate(seen) if call == 0 or seen[call - 1] != scale]
    assert len(expected) > 1
    assert facts_of(step).figure("loss_scale_over_time") == expected


# --------------------------------------------------------------------------- compilation
def test_passes_captures_and_compilations_again_are_told_in_order() -> None:
    step = step_with()
    step(*inputs())
    step.model.eval()
    step(*inputs())
    step(*inputs(12))
    found: list[rows.CompileEvent] = list(facts_of(step).tables["compile"])
    passes = [one for one in found if one.kind == "pass"]
    assert [one.name for one in passes] == list(step.compiled.seconds_by_stage)
    assert {"placement", "lower", "memory", "cost"} <= {one.name for one in passes}
    assert [round(one.milliseconds, 3) for one in passes] == [
        round(seconds * 1e3, 3) for seconds in step.compiled.seconds_by_stage.values()
    ]
    assert [one.kind for one in found if one.kind in ("capture", "plan")] == ["capture", "plan"]
    again = [one.detail for one in found if one.kind == "recompilation"]
    assert again == [
        "modules are in another mode, training or not",
        "inputs are float32[12, 24], int64[12], and were float32[24, 24], int64[24]",
    ]
    assert facts_of(step).figure("recompilations") == 2
    assert facts_of(step).figure("graph_breaks") == facts_of(step).figure("eager_frames") == 0


def test_graph_breaks_and_guards_of_torch_are_events(tmp_path: Path) -> None:
    torch._dynamo.reset()

    def broken(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        print("between", file=sys.stderr)
        torch._dynamo.graph_break()
        return x * 2

    explanation = torchipu.explain(broken, torch.randn(4))
    assert explanation.broken_at
    explanation.report(tmp_path, what_if_seconds=0)
    from torchipu.report.directory import read_directory

    for facts in read_directory(tmp_path).values():
        breaks = [one for one in facts.tables["compile"] if one.kind == "graph break"]
        assert [one.name for one in breaks][: len(explanation.broken_at)] == explanation.broken_at
        assert facts.figure("graph_breaks") == len(breaks)
        assert any(one.kind == "capture" and one.milliseconds > 0 for one in facts.tables["compile"])


# --------------------------------------------------------------------------- stages
class Three(nn.Module):
    """Three stages of different length."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, 32) for width in (8, 32, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for ipu, layer in enumerate(self.layers):
            with torchipu.Block(f"block{ipu}", ipu_id=ipu):
                x = layer(x)
                if ipu == 1:
                    x = x.exp().softmax(-1)
        return x.square().mean()


def test_stages_take_what_their_functions_take_and_keep_what_the_schedule_asks() -> None:
    model = Three()
    step = torchipu.TrainStep(
        model, torch.optim.SGD(model.parameters(), lr=0.1),
        torchipu.Options(gradient_accumulation=8, recompute="stage"),
    )
    step.compile(torch.zeros(32, 8))
    facts, functions = facts_of(step), step.compiled.cost.functions
    stages = facts.tables["stages"]
    assert [(one.number, one.ipu, one.blocks) for one in stages] == [(n, n, f"block{n}") for n in range(3)]
    for one in stages:
        assert one.forward == functions[f"{one.number}F"].cycles
        assert one.backward == functions[f"{one.number}B"].cycles
    stashes = [one for one in step.compiled.executable.variables if one.depth > 1]
    assert sum(one.stash_bytes for one in stages) == sum(one.device_bytes * one.depth for one in stashes)
    assert facts.figure("stash_bytes") == sum(one.stash_bytes for one in stages)
    # The first stage waits longest for its backward: 2 (stages - 1) + 1 micro-batches.
    assert stages[0].depth == max(one.depth for one in stages) == 5
    critical = [one.number for one in stages if one.is_critical]
    assert critical == [max(range(3), key=lambda n: functions[f"{n}F"].cycles + functions[f"{n}B"].cycles)]
    assert facts.figure("critical_stage") == critical[0]
    spent = step.compiled.cost.cycles_by_category_by_ipu
    idle = sum(one["idle"] for one in spent) / sum(sum(one.values()) for one in spent)
    assert 0 < facts.figure("pipeline_bubble") == pytest.approx(idle)


def test_counts_and_trust_are_facts() -> None:
    class Casting(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.matrix_exp(x).half().sum()

    step = torchipu.InferenceStep(Casting(), torchipu.Options(io_tiles=32))
    step.compile(torch.zeros(4, 4))
    facts = facts_of(step)
    assert facts.figure("casts") == 1
    assert facts.figure("generic_operations") == 1
    assert facts.figure("trust.cycles_per_update")["rows"] > 10
    assert 0 < facts.figure("trust.fullest_tile_bytes")["p90"] < 1
    assert not any("no such machine" in words for words in facts.figure("trust.extrapolations"))


def test_poptorch_asks_for_times_of_the_host_by_a_name_of_its_own() -> None:
    import poptorch

    from torchipu.poptorch.executor.translation import core_options

    options = poptorch.Options().outputMode(poptorch.OutputMode.All)
    assert not core_options(options, None).host_times
    options._Popart.set("torchipu.host_times", True)
    assert core_options(options, None).host_times
