"""Rules: each tells of what it is for, with the line and what the model says of the change; and is silent otherwise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchipu
from tests.advice import small_models
from tests.advice.small_models import LONG, Tower, compiled, facts_of, stages_step, train_step
from torchipu.advice.door import advised
from torchipu.advice.rules import RULES
from torchipu.report.directory import read_directory
from torchipu.report.facts import rows
from torchipu.report.facts.observed import Event
from torchipu.report.recorder import Recorded

HERE = str(Path(small_models.__file__))


def advice(step: Any) -> dict[str, rows.Advice]:
    return {one.rule: one for one in facts_of(step).tables["advice"]}


def test_unbalanced_stages_and_the_bubble_name_line_gain_and_option() -> None:
    step = stages_step()
    found = advice(step)
    stages = facts_of(step).tables["stages"]
    assert stages[0].is_critical
    assert stages[0].forward + stages[0].backward > stages[1].forward + stages[1].backward
    one = found["unbalanced stages"]
    assert one.finding.startswith(
        f"stage 0 (wide) on ipu 0 takes {stages[0].forward + stages[0].backward:,} cycles for a micro-batch"
    )
    assert one.option.startswith("torchipu.BeginBlock(model.get_submodule('wide.3")
    assert (one.file, Path(HERE).read_text().splitlines()[one.line - 1].strip()) == (HERE, "hidden = self.wide(x)")
    assert "samples/s" in one.gain
    bubble = found["pipeline bubble"]
    assert bubble.option == "gradient_accumulation=8"
    assert bubble.gain.startswith("+")
    assert bubble.line == one.line


def test_advice_comes_with_what_gains_most_first_and_a_program_that_does_not_fit_before_all() -> None:
    step = compiled(
        Tower(), torch.zeros(32, 256), target="mk2,num_tiles=4,tile_memory_bytes=300000", allow_out_of_memory=True,
    )
    found = facts_of(step).tables["advice"]
    assert [one.number for one in found] == list(range(len(found)))
    assert found[0].rule == "out of memory"
    fullest = step.profile.fullest_tile
    assert found[0].finding.startswith(
        f"tile {fullest.tile} of ipu {fullest.ipu} lacks {fullest.total_bytes - 300_000:,} B; it holds %"
    )
    assert found[0].option
    assert "B less on the fullest tile" in found[0].gain
    assert found[0].line


def test_recomputation_that_is_not_needed_is_told_with_its_price() -> None:
    step = stages_step(recompute="stage")
    one = advice(step)["recomputation"]
    without = stages_step(recompute="none").profile
    gain = without.samples_per_second / step.profile.samples_per_second - 1
    assert gain > 0.01
    assert one.option == "recompute='none'"
    assert one.gain.startswith(f"{gain:+.1%} samples/s")
    assert "recomputation" not in advice(stages_step(recompute="none"))


def test_larger_micro_batches_are_advised_where_tiles_have_room() -> None:
    step = compiled(Tower(), torch.zeros(4, 256))
    one = advice(step)["small micro-batches"]
    twice = compiled(Tower(), torch.zeros(8, 256)).profile
    assert one.option == "micro-batches of 8"
    assert one.gain.startswith(f"{twice.samples_per_second / step.profile.samples_per_second - 1:+.1%} samples/s")
    assert one.finding.startswith("micro-batches have 4 samples")


def test_floats_that_take_the_memory_are_tried_as_halves() -> None:
    step = compiled(Tower(512), torch.zeros(4, 512), target="mk2,num_tiles=32")
    one = advice(step)["large floats"]
    halved = compiled(Tower(512).half(), torch.zeros(4, 512).half(), target="mk2,num_tiles=32").profile
    freed = step.profile.fullest_tile.total_bytes - halved.fullest_tile.total_bytes
    assert freed > 0
    assert one.option == "model.half()"
    assert f"{freed:,} B less on the fullest tile" in one.gain


def test_an_op_that_exchanges_more_than_it_computes_is_named() -> None:
    class Transposed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(512, 512)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x)

    step = torchipu.InferenceStep(
        Transposed(), torchipu.Options(target="mk2,exchange_bytes_per_cycle=1"),
    )
    step.compile(torch.zeros(64, 512))
    facts = facts_of(step)
    one = next(row for row in facts.tables["advice"] if row.rule == "exchange-bound op")
    op = max(facts.tables["operations"], key=lambda row: row.exchange)
    assert f"exchanges for {op.exchange:,} of its {op.cycles:,} cycles" in one.finding
    assert one.line == op.line > 0
    usual = facts_of(compiled(Tower(), torch.zeros(64, 256)))
    assert not [row for row in usual.tables["advice"] if row.rule == "exchange-bound op"]


def test_a_half_that_overflows_is_told_with_the_scale_that_does_not() -> None:
    model = Tower(16).half()
    step = train_step(model, statistics=True, loss_scaling=2.0**15, gradient_accumulation=2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(8)
    step(torch.full((8, 16), 30.0, dtype=torch.half))
    assert any(one.infinities or one.nans for one in step.statistics)
    facts = facts_of(step)
    bad = [one for one in facts.tables["numerics"] if one.overflows or one.nans]
    assert bad
    one = next(row for row in facts.tables["advice"] if row.rule == "half overflow")
    assert one.number == 0
    assert "infinities" in one.finding
    suggested = facts.figure("loss_scale_advice")["suggested"]
    assert one.option == f"loss_scaling={suggested:g}, or automatic_loss_scaling=True"


def test_recompilations_are_told_with_their_reason() -> None:
    step = train_step(Tower())
    step(torch.randn(8, 256))
    step(torch.randn(6, 256))
    one = advice(step)["recompilations"]
    assert one.finding == "compiled again 1 time: step: inputs are float32[6, 256], and were float32[8, 256]"
    assert one.option.startswith("drop_last=True")
    (spent,) = [seconds for _, seconds in step._seen.recompilations]
    assert one.gain == f"{1000 * spent:,.0f} ms of compilation, as measured"


def test_ops_without_a_record_are_told() -> None:
    class Odd(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.matrix_exp(x)

    step = torchipu.InferenceStep(Odd())
    step.compile(torch.zeros(4, 4))
    facts = facts_of(step)
    one = next(row for row in facts.tables["advice"] if row.rule == "ops without a record")
    generic = [op for op in facts.tables["operations"] if op.kind == "generic"]
    assert one.finding.startswith(f"{len(generic)} ops have no record, ")
    assert facts.figure("generic_operations") == len(generic)
    assert one.line == generic[0].line > 0


def test_every_rule_is_silent_on_a_program_that_it_has_nothing_to_say_of() -> None:
    step = torchipu.InferenceStep(nn.ReLU())
    step.compile(torch.zeros(()))
    assert facts_of(step).tables["advice"] == ()
    assert len(RULES) == 10


def test_hostile_names_are_text(tmp_path: Path) -> None:
    hostile = "<script>alert('x')</script> [bold]\"; DROP TABLE advice"
    step = compiled(Tower(), torch.zeros(4, 256))
    recorded = Recorded(step.profile, step.compiled, is_step=True, owner=step)
    events = (Event(hostile, "recompilation", 0.5, hostile),)
    path = torchipu.report.directory.write_directory(advised(replace(recorded, events=events), LONG), tmp_path)
    (facts,) = read_directory(path).values()
    assert hostile in next(one.finding for one in facts.tables["advice"] if one.rule == "recompilations")
    assert facts.tables["compile"][-1].name == hostile


@pytest.mark.parametrize("rule", RULES.values(), ids=list(RULES))
def test_rules_say_what_they_are_for(rule: Any) -> None:
    assert rule.__doc__
