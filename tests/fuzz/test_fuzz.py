"""Seeds that run on every merge, what failed once, and whether the judge and the minimiser find what is wrong."""

from __future__ import annotations

import dataclasses
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.fuzz import __main__ as command
from tests.fuzz import large, networks, nnsmith_models, special
from tests.fuzz.batches import Result, run_batches
from tests.fuzz.doors import DOORS, OF_NETWORKS, door_of, through_backend, through_training
from tests.fuzz.generate import Outcome, differentiate, generate
from tests.fuzz.judge import judge
from tests.fuzz.minimise import minimise
from tests.fuzz.program import Given, Node, Program, without_dead
from tests.fuzz.script import script
from tests.fuzz.wide_operators import ALL

FOUND = sorted(Path(__file__).parent.joinpath("found").glob("*.json"))
GRAPHS, WIDE, LARGE, SPECIAL, NETWORKS, MODELS = 60, 20, 20, 20, 20, 30
"""Seeds of a merge; ``make fuzz`` runs thousands."""

PLAIN = Program(
    (Given((4, 6), "float", gradient=True, seed=1), Given((6, 5), "float", "transposed", seed=2)),
    (
        Node("torch.relu({0})", (0,), ("float",)), Node("{0} @ {1}", (2, 1), ("float",)),
        Node("{0}.flip(1)", (3,), ("float",)), Node("torch.tanh({0})", (4,), ("float",)),
        Node("{0}.sum(0)", (5,), ("float",)),
    ),
    (6,),
)


@pytest.mark.parametrize("first", range(0, GRAPHS, 10))
def test_graphs_give_what_eager_gives(first: int) -> None:
    for seed in range(first, first + 10):
        program = generate(seed)
        verdict = judge(program, door_of(seed, program))
        assert not verdict.is_failure, f"seed {seed}: {verdict}\n{program.source()}"


@pytest.mark.parametrize("first", range(0, WIDE, 10))
def test_graphs_of_a_wide_vocabulary_give_what_eager_gives(first: int) -> None:
    for seed in range(first, first + 10):
        program = generate(seed, ALL)
        verdict = judge(program, door_of(seed, program))
        assert not verdict.is_failure, f"seed {seed}: {verdict}\n{program.source()}"


@pytest.mark.parametrize("first", range(0, LARGE, 10))
def test_programs_of_large_sizes_give_what_eager_gives(first: int) -> None:
    for seed in range(first, first + 10):
        program = large.generate(seed)
        verdict = judge(program, door_of(seed, program))
        assert not verdict.is_failure, f"seed {seed}: {verdict}\n{program.source()}"


@pytest.mark.parametrize("first", range(0, SPECIAL, 10))
def test_programs_on_special_values_give_what_eager_gives(first: int) -> None:
    for seed in range(first, first + 10):
        program = special.generate(seed)
        verdict = judge(program, door_of(seed, program))
        assert not verdict.is_failure, f"seed {seed}: {verdict}\n{program.source()}"


@pytest.mark.parametrize("first", range(0, NETWORKS, 10))
def test_networks_give_in_training_what_eager_gives(first: int) -> None:
    for seed in range(first, first + 10):
        program = networks.generate(seed)
        verdict = judge(program, door_of(seed, program, OF_NETWORKS))
        assert not verdict.is_failure, f"seed {seed}: {verdict}\n{program.source()}"


@pytest.mark.parametrize("first", range(0, MODELS, 10))
def test_models_of_nnsmith_give_what_eager_gives(first: int) -> None:
    pytest.importorskip("nnsmith", reason="it is in the extra dev")
    for seed in range(first, first + 10):
        program = nnsmith_models.generate(seed)
        verdict = judge(program, door_of(seed, program))
        assert not verdict.is_failure, f"seed {seed}: {verdict}\n{program.source()}"


@pytest.mark.parametrize("path", FOUND, ids=[path.stem for path in FOUND])
def test_what_failed_once(path: Path) -> None:
    """The file's name ends with the door; a refusal is a failure here: these programs are right."""
    verdict = judge(Program.from_json(path.read_text()), path.stem.rsplit(".", 1)[1])
    assert verdict.word == "ok", verdict


def test_few_programs_are_refused_or_undecided() -> None:
    words = [judge(generate(seed), "backend").word for seed in range(1000, 1020)]
    assert words.count("ok") >= 18


def test_a_seed_is_the_same_program_in_every_process() -> None:
    code = "from tests.fuzz.generate import generate; print(generate(7).to_json())"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert Program.from_json(other.stdout) == generate(7)


def with_other_text(program: Program, old: str, new: str) -> Program:
    nodes = tuple(dataclasses.replace(node, text=node.text.replace(old, new)) for node in program.nodes)
    return dataclasses.replace(program, nodes=nodes)


@pytest.mark.parametrize(("old", "new"), [
    (".flip(1)", ".roll(1, 1)"), ("torch.tanh({0})", "torch.tanh({0} * 1.001)"), (".sum(0)", ".sum(0) + 1e-4"),
    ("torch.relu({0})", "torch.relu({0}).detach()"),
])
def test_what_a_wrong_compiler_gives_is_wrong(monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
    def wrongly(program: Program) -> Outcome:
        return through_backend(with_other_text(program, old, new))

    monkeypatch.setitem(DOORS, "backend", (wrongly, 1.0))
    verdict = judge(PLAIN, "backend")
    assert verdict.word == "wrong"
    smallest = minimise(PLAIN, lambda one: judge(one, "backend").word == "wrong")
    assert len(smallest.nodes) <= 3
    assert old in smallest.source().replace("v0", "{0}").replace("v1", "{0}")


SPECIAL_VALUES = Program(
    (Given((40,), "float", "offset", seed=1, is_special=True),), (Node("-{0}", (0,), ("float",)),), (1,),
    is_special=True,
)


@pytest.mark.parametrize("wrong", ["{0}.neg().nan_to_num()", "0.0 - {0}", "({0} + 1e-3).neg()"])
def test_among_special_values_other_zeros_and_numbers_for_nan_are_wrong(
    monkeypatch: pytest.MonkeyPatch, wrong: str,
) -> None:
    assert judge(SPECIAL_VALUES, "backend").word == "ok"

    def wrongly(program: Program) -> Outcome:
        return through_backend(with_other_text(program, "-{0}", wrong))

    monkeypatch.setitem(DOORS, "backend", (wrongly, 1.0))
    assert judge(SPECIAL_VALUES, "backend").word == "wrong"


NEAR_ZERO = "{0}.sigmoid() * 0.999", "torch.logit({0})", "{0}.reciprocal()"


@pytest.mark.parametrize(("lines", "added", "word"), [
    (NEAR_ZERO, "{0} * (1 + 1e-3 * ({0}.abs() > 100))", "ok"),
    (NEAR_ZERO, "{0} * (1 + 1e-3 * ({0}.abs() < 100))", "wrong"),
    (("torch.maximum({0}, {0}.flip(0))",), "{0} + 0.25 * ({0} == {0}.flip(0))", "wrong"),  # at a tie of what is exact
])
def test_among_special_values_too_roundings_are_told_from_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch, lines: tuple[str, ...], added: str, word: str,
) -> None:
    given = (Given((40,), "float", seed=1, is_special=True),)
    nodes = [Node(line, (place,), ("float",)) for place, line in enumerate((*lines, added))]
    program, other = (Program(given, tuple(some), (len(some),), is_special=True) for some in (nodes[:-1], nodes))
    monkeypatch.setitem(DOORS, "backend", (lambda one: differentiate(other.function(), other.tensors()), 1.0))
    assert judge(program, "backend").word == word


def test_a_compiler_that_fails_is_an_error_and_one_that_refuses_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(program: Program) -> Outcome:
        raise KeyError("a defect")

    monkeypatch.setitem(DOORS, "backend", (fail, 1.0))
    assert judge(PLAIN, "backend").word == "error"


def test_a_result_that_roundings_decide_is_not_held_against_anybody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison of what is equal but for rounding may be either; eager's own is no truth then."""
    program = Program(
        (Given((64,), "float", seed=3),),
        (Node("({0} * 3.0) / 3.0", (0,), ("float",)), Node("{0} > {1}", (1, 0), ("bool",))), (2,),
    )

    def other(program: Program) -> Outcome:
        outcome = differentiate(program.function(), program.tensors())
        return dataclasses.replace(outcome, values=[~outcome.values[0]])

    monkeypatch.setitem(DOORS, "backend", (other, 1.0))
    assert judge(program, "backend").word == "ok"


def test_what_eager_does_not_take_in_float64_is_not_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of attention in float64 it saves the operands for the gradient, and refuses to take it once one is written to."""
    attention = "F.scaled_dot_product_attention({0}, {0} * 0.5, {0}, is_causal=False)"
    program = Program(
        (Given((2, 3, 4), "half", gradient=True),),
        (
            Node("F.hardswish({0})", (0,), ("half",)), Node(attention, (1,), ("half",)),
            Node("{0}[..., ::2].zero_()\n{r} = {0}", (1,), ("half",), is_view=True),
        ),
        (2,),
    )
    assert judge(program, "backend").word == "ok"

    def other(program: Program) -> Outcome:
        outcome = differentiate(program.function(), program.tensors())
        return dataclasses.replace(outcome, values=[outcome.values[0] + 1])

    monkeypatch.setitem(DOORS, "backend", (other, 1.0))
    verdict = judge(program, "backend")
    assert (verdict.word, verdict.detail[:12]) == ("undecided", "in float64: ")


def test_programs_are_stored_and_printed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for program in (generate(11), special.generate(11)):
        assert Program.from_json(program.to_json()) == program
    path = tmp_path / "repeat.py"
    path.write_text(script(PLAIN, "backend", "output 0: off"))
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=True)
    assert "output 0: off by" in done.stdout
    path.write_text(script(dataclasses.replace(PLAIN, cuts=(2,)), "steps", "output 0: off"))
    runpy.run_path(str(path), run_name="__main__")
    assert "output 0: off by" in capsys.readouterr().out
    path.write_text(script(SPECIAL_VALUES, "steps", "output 0: nan"))
    runpy.run_path(str(path), run_name="__main__")
    assert "output 0: off by" in capsys.readouterr().out


NETWORK = Program(
    (
        Given((2, 3, 4, 4), "float", gradient=True, seed=1),
        Given((4, 3, 3, 3), "float", gradient=True, seed=2, scale=0.2),
        Given((4,), "float", seed=3, kept=True), Given((4,), "float", seed=4, offset=9.0, kept=True),
    ),
    (
        Node("F.conv2d({0}, {1}, padding=1)", (0, 1), ("float",)),
        Node("F.batch_norm({0}, {1}, {2}, training=True, momentum=0.1)", (4, 2, 3), ("float",)),
        Node("F.silu({0})", (5,), ("float",)),
    ),
    (6,),
)


@pytest.mark.parametrize(("old", "new"), [
    ("momentum=0.1", "momentum=0.2"), ("training=True", "training=False"), ("F.silu({0})", "F.silu({0} * 1.001)"),
])
@pytest.mark.parametrize(("door", "through"), [("backend", through_backend), ("training", through_training)])
def test_what_a_wrong_compiler_makes_of_a_network_is_wrong(
    monkeypatch: pytest.MonkeyPatch, door: str, through: Callable[[Program], Outcome], old: str, new: str,
) -> None:
    assert judge(NETWORK, door).word == "ok"
    monkeypatch.setitem(DOORS, door, (lambda program: through(with_other_text(program, old, new)), 1.0))
    assert judge(NETWORK, door).word == "wrong"


def test_what_nothing_needs_is_left_out_but_for_writes() -> None:
    program = Program(
        (Given((3,), "float"), Given((3,), "float")),
        (
            Node("{0}.clone()", (0,), ("float",)), Node("torch.sin({0})", (1,), ("float",)),
            Node("{0}.mul_(2.0)\n{r} = {0}", (2,), ("float",), is_view=True),
        ),
        (2,),
    )
    left = without_dead(program)
    assert [node.text for node in left.nodes] == ["{0}.clone()", "{0}.mul_(2.0)\n{r} = {0}"]
    assert len(left.inputs) == 1
    assert torch.equal(left.function()(torch.ones(3))[0], torch.full((3,), 2.0))


def test_a_process_that_dies_costs_one_seed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The process of a batch ends at one seed; those before and after it have results."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if 'tests.fuzz' in sys.orig_argv:\n"
        "    import tests.fuzz.generate as g\n"
        "    real = g.generate\n"
        "    g.generate = lambda seed: os.abort() if seed == 1 else real(seed)\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).parents[2]}", prepend=":")
    words = {result.seed: result.word for result in run_batches("graphs", range(3), 1)}
    assert words[1] == "crash"
    assert words[0] != "crash"
    assert words[2] != "crash"


def test_the_command_prints_a_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:
    def here(kind: str, seeds: range, workers: int) -> Iterator[Result]:
        return (command.judge_seed(kind, seed) for seed in seeds)

    monkeypatch.setattr(command, "run_batches", here)
    assert command.main(["graphs", "--seeds", "0:3", "--workers", "1", "--write", str(tmp_path)]) == 0
    assert "3 programs in" in capsys.readouterr().out
