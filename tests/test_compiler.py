"""The list of passes: verification in tests and by option, and what it finds."""

import pytest
import torch
from torch import nn

from torchipu import InferenceStep, Options, VerifyError, compiler
from torchipu.compiler import VERIFY_VARIABLE, is_verifying


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


@pytest.mark.parametrize("place", range(len(compiler.PASSES)))
def test_a_pass_that_breaks_the_graph_is_named(monkeypatch, place):
    passes = list(compiler.PASSES)
    name, run = passes[place]

    def reverse(graph, options, target):
        graph = run(graph, options, target)
        return type(graph)(graph.name, graph.inputs, graph.outputs, graph.ops[::-1], graph.updates)

    passes[place] = (name, reverse)
    monkeypatch.setattr(compiler, "PASSES", tuple(passes))
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with pytest.raises(VerifyError, match=f"invariant broken after pass '{name}'"):
        InferenceStep(model)(torch.ones(1, 2))


@pytest.mark.parametrize("stage", ["lower", "memory"])
def test_a_broken_executable_is_found_after_the_stage_that_made_it(monkeypatch, stage):
    function = {"lower": "lower", "memory": "assign_memory"}[stage]
    run = getattr(compiler, function)

    def forget_variables(*arguments, **keywords):
        executable = run(*arguments, **keywords)
        return type(executable)(
            executable.programs, executable.functions, (), executable.addresses, executable.num_ipus,
            executable.code_bytes,
        )

    monkeypatch.setattr(compiler, function, forget_variables)
    with pytest.raises(VerifyError, match=f"after pass '{stage}'"):
        InferenceStep(nn.Linear(2, 2))(torch.ones(1, 2))
