"""Options out of files and JSON: what is read, what is refused, and that nothing is executed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from torchipu import poptorch
from torchipu.poptorch.options import ConfigFileError, Options


def write(folder: Path, text: str) -> Path:
    """Write an options file."""
    path = folder / "options.conf"
    path.write_text(text, encoding="utf-8")
    return path


def test_lines_are_calls_of_setters(tmp_path: Path) -> None:
    options = Options().loadFromFile(write(tmp_path, """
# a comment
deviceIterations(1).replicationFactor(2)
  Training.gradientAccumulation(4)  # another
outputMode(poptorch.OutputMode.EveryN, output_return_period=3)
setAvailableMemoryProportion({"IPU0": 0.25})
TensorLocations.setOptimizerLocation(poptorch.TensorLocationSettings().useOnChipStorage(False))
setExecutionStrategy(poptorch.PipelinedExecution(poptorch.Stage("a").ipu(1), ["b", "c"]))
Precision.setPartialsType(torch.half)
_Popart.set("autoRecomputation", 3)
auto_round_num_ipus = True
anchorTensor("grad", "Gradient___w", poptorch.OutputMode.All)
enableStableNorm(True)
"""))
    expected = Options().replicationFactor(2).outputMode(poptorch.OutputMode.EveryN, 3).autoRoundNumIPUs()
    expected.Training.gradientAccumulation(4)
    expected.setAvailableMemoryProportion({"IPU0": 0.25})
    expected.TensorLocations.setOptimizerLocation(poptorch.TensorLocationSettings().useOnChipStorage(False))
    expected.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.Stage("a").ipu(1), ["b", "c"]))
    expected.Precision.setPartialsType(torch.half)
    expected._Popart.set("autoRecomputation", 3)
    expected.anchorTensor("grad", "Gradient___w", poptorch.OutputMode.All)
    expected.enableStableNorm(True)
    assert repr(options) == repr(expected)


@pytest.mark.parametrize(("text", "value"), [
    ("int(3)", 3), ("int(poptorch.OutputMode.All)", 2), ("poptorch.OutputMode(1)", poptorch.OutputMode.EveryN),
    ("4 * 2 + 1", 9), ("-(2 ** 3)", -8), ("float('0.5') / 2", 0.25), ("not True", False), ("7 // 2 % 2", 1),
    ("list(set(['a']))", ["a"]), ("dict({'a': str(3)})", {"a": "3"}), ("['a'] + ['b']", ["a", "b"]),
    ("max(3, min(5, 4))", 4), ("round(abs(-2.6))", 3),
])
def test_values_may_be_calculated(text: str, value: object, tmp_path: Path) -> None:
    options = Options().loadFromFile(write(tmp_path, f"_Popart.set('key', {text})"))
    assert options._Popart.options["key"] == value
    assert type(options._Popart.options["key"]) is type(value)


def test_later_files_add_to_earlier_ones(tmp_path: Path) -> None:
    options = Options().loadFromFile(write(tmp_path, "deviceIterations(3)"))
    options.loadFromFile(write(tmp_path, "replicationFactor(2)"))
    assert (options.device_iterations, options.replication_factor) == (3, 2)


def test_syntax_error_names_line_and_file(tmp_path: Path) -> None:
    path = write(tmp_path, "deviceIterations(3)\n\nreplicationFactor(2")
    options = Options()
    with pytest.raises(ConfigFileError, match=f"SyntaxError at line 3 of {path}: ") as raised:
        options.loadFromFile(path)
    assert isinstance(raised.value.__cause__, SyntaxError)
    assert poptorch.ConfigFileError is poptorch.options.ConfigFileError is ConfigFileError


def test_errors_of_setters_go_through(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="EveryN anchor must have output_return_period"):
        Options().loadFromFile(write(tmp_path, "outputMode(poptorch.OutputMode.EveryN)"))
    words = r"Invalid attribute deviceIteration\..*; did you mean 'deviceIterations'\?"
    with pytest.raises(AttributeError, match=words) as raised:
        Options().loadFromFile(path := write(tmp_path, "\ndeviceIteration(3)"))
    assert raised.value.__notes__ == [f"line 2 of {path}: deviceIteration(3)"]


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "options.conf"
    path.write_bytes(b"\x80\x04K\x05.")
    with pytest.raises(ConfigFileError, match=f"{path} is no file of options, which is text: 'utf-8' codec"):
        Options().loadFromFile(path)


@pytest.mark.parametrize("line", [
    "deviceIterations(__import__('os').system('true'))",
    "deviceIterations(open('x').read())",
    "deviceIterations(1); import os",
    "deviceIterations(len([1]))",
    "deviceIterations((lambda: 1)())",
    "deviceIterations([1 for _ in (1,)][0])",
    "deviceIterations(2 ** 1000)",
    "deviceIterations(len('a' * 10))",
    "_Popart.set('a', 'a' * 10)",
    "deviceIterations(1 + 'a')",
    "deviceIterations(int)",
    "__class__",
    "__init__.__globals__",
    "_values.clear()",
    "_freeze()",
    "set.__func__.__globals__['os']",
    "clone.__self__",
    "deviceIterations(poptorch.os)",
    "deviceIterations(poptorch.DataLoader)",
    "deviceIterations(torch.load('x'))",
    "deviceIterations(*[3])",
    "set(**{'device_iterations': 3})",
    "deviceIterations(f'{3}')",
    "_is_frozen = True",
    "device_iterations = other = 3",
])
def test_anything_else_is_refused_by_line(tmp_path: Path, line: str) -> None:
    options = Options()
    before = repr(options)
    with pytest.raises(ConfigFileError, match="line 2 of"):
        options.loadFromFile(write(tmp_path, f"\n{line}"))
    assert repr(options) == before


def test_json_calls_setters() -> None:
    options = Options().from_json("""{
        "deviceIterations": 3,
        "outputMode": ["OutputMode.EveryN", 2],
        "Training.gradientAccumulation": 4,
        "Training": {"accumulationAndReplicationReductionType": "poptorch.ReductionType.Sum"},
        "Precision.setPartialsType": "torch.half",
        "_Popart.set": ["autoRecomputation", 1],
        "setAvailableMemoryProportion": {"IPU0": 0.5},
        "connectionType": "ConnectionType.OnDemand",
        "logDir": "OutputMode.NoMember"
    }""")
    expected = Options().deviceIterations(3).outputMode(poptorch.OutputMode.EveryN, 2)
    expected.Training.gradientAccumulation(4)
    expected.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)
    expected.Precision.setPartialsType(torch.half)
    expected._Popart.set("autoRecomputation", 1)
    expected.setAvailableMemoryProportion({"IPU0": 0.5})
    expected.connectionType(poptorch.ConnectionType.OnDemand).logDir("OutputMode.NoMember")
    assert repr(options) == repr(expected)


@pytest.mark.parametrize(("text", "kind", "message"), [
    ("{", poptorch.Error, "not valid JSON"),
    ("[1]", poptorch.Error, "must be a JSON object, not list"),
    ('{"device_iterations": 3}', poptorch.Error, "device_iterations is no setter"),
    ('{"Training": 3}', poptorch.Error, "Training is no setter"),
    ('{"deviceIteration": 3}', AttributeError, "Invalid attribute deviceIteration."),
    ('{"_freeze": []}', AttributeError, "Invalid private attribute _freeze"),
    ('{"clone.__func__.__globals__.clear": []}', AttributeError, "Invalid private attribute"),
    ('{"deviceIterations": "3"}', AssertionError, "Unexpected type"),
])
def test_json_refuses(text: str, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        Options().from_json(text)
