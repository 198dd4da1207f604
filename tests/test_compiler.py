"""The list of passes: verification in tests and by option, and what it finds."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from torchipu import InferenceStep, Options, VerifyError, compiler
from torchipu.compiler import VERIFY_VARIABLE, is_verifying
from torchipu.ir.mapping import TileMapping


def test_verification_is_on_in_tests():
    assert is_verifying(Options())


@pytest.mark.parametrize(("environment", "option", "expected"), [
    (None, None, False), ("0", None, False), ("1", None, True), ("1", False, False), (None, True, True),
])
def test_verification_is_off_in_use_unless_asked_for(monkeypatch, environment, option, expected):
    monkeypatch.delenv(VERIFY_VARIABLE)
    if environment is not None:
        monkeypatch.setenv(VERIFY_VARIABLE, environment)
    assert is_verifying(Options(verify=option)) is expected


DAMAGES = {
    "graph": lambda graph: replace(graph, ops=graph.ops[::-1]),
    "schedule": lambda schedule: replace(schedule, steps=()),
    "device_graph": lambda graph: replace(graph, ops=graph.ops[::-1]),
    "mappings": lambda mappings: dict.fromkeys(mappings, TileMapping(((5000, 0, 1),))),
    "executable": lambda executable: replace(executable, variables=()),
}


@pytest.mark.parametrize("place", [n for n, stage in enumerate(compiler.STAGES) if stage.makes in DAMAGES])
def test_a_stage_that_breaks_what_it_makes_is_named(monkeypatch, place):
    stages = list(compiler.STAGES)
    stage = stages[place]
    stages[place] = replace(stage, run=lambda compilation: DAMAGES[stage.makes](stage.run(compilation)))
    monkeypatch.setattr(compiler, "STAGES", tuple(stages))
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with pytest.raises(VerifyError, match=f"invariant broken after pass '{stage.name}'"):
        InferenceStep(model)(torch.ones(1, 2))


def test_all_but_cycles_is_checked():
    assert [stage.name for stage in compiler.STAGES if stage.makes not in DAMAGES] == ["cost"]
