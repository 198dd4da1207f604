"""The list of passes: verification in tests and by option, and what it finds; what compiling costs an op."""

import cProfile
import pstats
from dataclasses import replace

import pytest
import torch
from torch import nn

from torchipu import InferenceStep, Options, VerifyError, compiler
from torchipu.capture.aot import capture_joint
from torchipu.compiler import VERIFY_VARIABLE, compile_graph, is_verifying
from torchipu.host.planner import Planner
from torchipu.ir.mapping import TileMapping
from torchipu.target import lookup_target


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


class Layers(nn.Module):
    """So many layers beside their inputs, each normalised: float32 ``[N, 16]`` to a loss."""

    def __init__(self, num_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(num_layers))
        self.norm = nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = self.norm(x + torch.tanh(layer(x)))
        return x.square().mean()


def calls_of_an_op(num_layers: int) -> float:
    """Return how many functions are called for each op of a training graph to compile it and to plan its host side."""
    graph = capture_joint(Layers(num_layers), (torch.ones(4, 16),)).graph
    profile = cProfile.Profile()
    with profile:
        compiled = compile_graph(graph, Options(verify=False, allow_out_of_memory=True), lookup_target("mk2"))
        Planner(compiled.graph).plan()
    return pstats.Stats(profile).total_calls / len(graph.ops)


def test_what_compiling_costs_an_op_does_not_grow_with_the_model():
    calls_of_an_op(2)  # what is found once in a process
    few, many = calls_of_an_op(6), calls_of_an_op(48)
    assert many < 1.1 * few
