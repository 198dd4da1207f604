"""Facts of the command line and of ``explain``."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import torch

import torchipu
from torchipu.cli import main
from torchipu.cli.operators import codelets_of
from torchipu.cli.targets import sources_of
from torchipu.explanation import explain
from torchipu.ir.graph import Op, Tensor
from torchipu.optable.spec import TABLE
from torchipu.target import TARGETS, Target


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert (end.value.code, capsys.readouterr().out) == (0, f"torchipu {torchipu.__version__}\n")


@pytest.mark.parametrize("name", list(TARGETS))
def test_every_number_of_a_target_has_a_source(name: str) -> None:
    target = TARGETS[name]
    numbers = [item.name for item in fields(target) if type(getattr(target, item.name)) in (int, float)]
    assert numbers
    sources = sources_of(target)
    assert [number for number in numbers if not sources.get(number)] == []


def test_targets_prints_each_machine_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["targets", "bow"]) == 0
    printed = capsys.readouterr().out
    assert TARGETS["bow"].title in printed
    assert TARGETS["mk1"].title not in printed
    assert "num_tiles" in printed


def test_targets_lists_systems_with_the_chip_that_they_are_built_of(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["targets"]) == 0
    printed = capsys.readouterr().out
    rows = [line.split()[:4] for line in printed[printed.index("\nsystems") :].splitlines() if "pod" in line]
    assert ["bow-pod256", "bow", "256", "64"] in rows
    assert ["pod16", "mk2", "16", "16"] in rows
    assert {row[0] for row in rows} >= {name for name in TARGETS if "pod" in name}


def test_targets_says_whose_file_has_the_source_of_a_system() -> None:
    sources = sources_of(TARGETS["bow-pod256"])
    assert sources["num_ipus"].startswith("64 Bow-2000: four Bow Pod64")
    assert sources["num_tiles"] == "as mk2: vendor data sheet"
    assert sources["clock_hz"].startswith("as bow: vendor data sheet")
    assert sources["linked_ipus"].startswith("as bow-pod64: a two-dimensional torus")


def test_targets_marks_a_machine_with_replaced_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "fast.toml"
    path.write_text('base = "bow"\nclock_hz = 3.7e9\n', encoding="utf-8")
    assert main(["targets", str(path)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("hypothetical: bow with clock_hz=3.7e+09")
    assert "replaced; bow has 1.85e+09" in printed
    assert "as bow at its own clock" in printed


def test_targets_lists_the_fields_that_may_be_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["targets", "--fields"]) == 0
    printed = capsys.readouterr().out
    assert all(f" {name} " in printed for name in Target.replaceable())
    assert "an int from 1 to 65,536" in printed


@pytest.mark.parametrize("command", ["operators", "poptorch"])
def test_committed_page_is_up_to_date(command: str) -> None:
    # in a process of its own: other tests enter records of theirs into the table
    written = subprocess.run(
        [sys.executable, "-m", "torchipu", command], check=True, capture_output=True, encoding="utf-8",
    ).stdout
    committed = (Path(__file__).parents[1] / "docs" / f"{command}.md").read_text(encoding="utf-8")
    assert committed == written, f"run: python -m torchipu {command} > docs/{command}.md"


@pytest.mark.parametrize(
    ("target", "codelet"),
    [
        ("aten.relu.default", "popnn::NonLinearity1D"), ("aten.mm.default", "poplin::ConvPartial1x1Out"),
        ("aten.max_pool2d_with_indices.default", "popnn::Pooling"), ("aten.sum.dim_IntList", "popops::Reduce<add>"),
    ],
)
def test_codelets_of_an_operator_are_read_from_its_lowering(target: str, codelet: str) -> None:
    assert codelet in codelets_of(TABLE[target].lower)


def test_codelets_that_operators_become_are_among_those_listed() -> None:
    lowered, unlisted = 0, []
    for target, spec in TABLE.items():
        x, y = Tensor("x", (4, 8), spec.dtypes[-1]), Tensor("y", (4, 8), spec.dtypes[-1])
        op = Op(spec.kind, (x,), (y,), {}, target, ("self",))
        try:
            used = {vertices.codelet.name for vertices in spec.lower(op, TARGETS["mk2"])}
        except (AssertionError, AttributeError, LookupError, StopIteration, TypeError, ValueError):
            continue  # an operator of other operands than this guess
        lowered += 1
        unlisted += [(target, name) for name in used - codelets_of(spec.lower)]
    assert unlisted == []
    assert lowered > 100


def test_unknown_target_is_refused_with_the_nearest_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["targets", "mk3"]) == 2
    assert capsys.readouterr().err.startswith("torchipu targets: unknown target 'mk3'; did you mean 'mk")


def test_source_of_a_replaced_number_is_not_that_of_the_machine_below() -> None:
    bow, mk2 = sources_of(TARGETS["bow"]), sources_of(TARGETS["mk2"])
    assert bow["num_tiles"] == f"as mk2: {mk2['num_tiles']}"
    assert not bow["clock_hz"].startswith("as mk2")


@pytest.mark.parametrize(
    ("subject", "words"),
    [
        ("no_such_script.py", "there is no script no_such_script.py"),
        ("no_such_module:function", "No module named 'no_such_module'"),
        ("json:no_such_function", "json has no function 'no_such_function'"),
    ],
)
def test_explain_of_nothing_is_refused(subject: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", subject]) == 2
    assert words in capsys.readouterr().err


def test_explain_says_when_a_script_compiles_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "plain.py"
    script.write_text("import sys\nprint('got', sys.argv[1:])\n", encoding="utf-8")
    arguments = sys.argv[:]
    assert main(["explain", str(script), "--epochs", "3"]) == 0
    printed = capsys.readouterr().out
    assert "got ['--epochs', '3']" in printed
    assert "Nothing was compiled for the IPU." in printed
    assert sys.argv == arguments


def test_explain_emulates_the_machine_that_it_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "one.py"
    script.write_text(
        "import torch\nimport torchipu\n"
        "step = torchipu.InferenceStep(torch.nn.Linear(4, 2), options=torchipu.Options(target='mk1'))\n"
        "step(torch.ones(3, 4))\n",
        encoding="utf-8",
    )
    assert main(["explain", "--target", "bow,exchange_bytes_per_cycle=8", str(script), "--target", "mk2"]) == 0
    assert "hypothetical: bow with exchange_bytes_per_cycle=8, 1 IPU (modelled)" in capsys.readouterr().out
    assert main(["explain", "--target", "bow-2001", str(script)]) == 2
    assert capsys.readouterr().err.startswith("torchipu explain: unknown target 'bow-2001'; did you mean 'bow-2000'?")
    assert torchipu.Options().target == "mk2"


def test_explain_reports_programs_of_a_script_that_fails_later(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "failing.py"
    script.write_text(
        "import torch\nimport torchipu\n"
        "step = torchipu.InferenceStep(torch.nn.Linear(4, 2))\n"
        "step(torch.ones(3, 4))\nraise KeyError('late')\n",
        encoding="utf-8",
    )
    assert main(["explain", str(script)]) == 1
    printed = capsys.readouterr().out
    assert "1 program for the IPU" in printed
    assert "The run ended early: KeyError: 'late'" in printed


def test_explain_counts_forward_and_backward_programs() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU())

    def loss(x: torch.Tensor) -> torch.Tensor:
        return model(x).sum()

    explanation = explain(loss, torch.ones(2, 4))
    assert explanation.error is None
    assert len(explanation.programs) == 2
    assert explanation.broken_at == []
    assert "captured" in explanation.text()


def test_explain_names_the_line_of_a_graph_break() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos()

    explanation = explain(broken, torch.ones(3))
    line = broken.__code__.co_firstlineno + 2
    assert explanation.broken_at == [f"{__file__}:{line} in broken"]
    assert len(explanation.programs) == 2
    assert "1 graph break," in explanation.text()


def test_explain_tells_the_programs_of_a_model_that_was_compiled_before() -> None:
    model, x = torch.nn.Linear(4, 2), torch.ones(3, 4)
    compiled = torch.compile(model, backend="ipu")
    expected = compiled(x)
    for _ in range(2):
        explanation = explain(model, x)
        assert (len(explanation.programs), explanation.recompilations) == (1, [])
    torch.testing.assert_close(compiled(x), expected)


def test_explain_is_not_bound_by_compilations_of_other_models() -> None:
    for size in range(2, 2 + torch._dynamo.config.recompile_limit):
        torch.compile(torch.nn.Linear(4, size), backend="ipu", dynamic=False)(torch.ones(size, 4))
    explanation = explain(torch.nn.Linear(4, 2), torch.ones(3, 4), options={"strict": True})
    assert explanation.error is None
    assert (len(explanation.programs), explanation.eager_functions) == (1, [])


def test_explain_lists_ops_without_a_record() -> None:
    explanation = explain(lambda x: torch.linalg.qr(x)[1], torch.ones(5, 5))
    assert "aten.linalg_qr.default" in explanation.text()


def test_explain_leaves_gradients_as_they_were() -> None:
    model = torch.nn.Linear(4, 1)
    explanation = explain(torch.nn.Sequential(model, torch.nn.Flatten(0)), torch.ones(1, 4))
    assert explanation.error is None
    assert model.weight.grad is None


def test_explain_takes_a_function_that_returns_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "explained_model.py").write_text(
        "import torch\n\ndef make():\n    return torch.nn.Linear(4, 2), torch.ones(3, 4)\n", encoding="utf-8"
    )
    monkeypatch.chdir(tmp_path)
    torch.compile(torch.nn.Linear(4, 2), backend="ipu")(torch.ones(3, 4))  # as another test may have done
    try:
        assert main(["explain", "explained_model:make"]) == 0
    finally:
        sys.modules.pop("explained_model", None)
    assert "explained_model:make: 1 program for the IPU" in capsys.readouterr().out
