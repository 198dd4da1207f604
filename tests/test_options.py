"""Options: defaults, checks and their messages."""

from __future__ import annotations

import dataclasses
import pathlib
import subprocess
import sys
from collections.abc import Callable

import pytest

from torchipu.errors import OptionsError
from torchipu.options import Options, Stage

EXECUTIONS = "'pipelined', 'sharded', 'serial_phased', 'parallel_phased', '1f1b' or 'interleaved'"


def test_every_option_says_what_it_does() -> None:
    for option in dataclasses.fields(Options):
        assert option.metadata["help"]
        assert option.name in Options.describe()


def test_defaults_are_valid_and_unchanged() -> None:
    assert Options().changed() == {}
    assert Options.from_mapping({}) == Options()


def test_mapping_sets_each_kind_of_option() -> None:
    options = Options.from_mapping({
        "gradient_accumulation": 8, "loss_scaling": 128, "strict": True, "execution": "sharded", "blocks": ["A", "B"],
        "recompute": ["A"], "seed": None, "dump": pathlib.Path("out"),
    })
    assert options.gradient_accumulation == 8
    assert options.loss_scaling == 128.0
    assert isinstance(options.loss_scaling, float)
    assert options.blocks == ("A", "B")
    assert options.recompute == ("A",)
    assert options.dump == "out"
    assert options.changed().keys() == {
        "gradient_accumulation", "loss_scaling", "strict", "execution", "blocks", "recompute", "dump",
    }


def test_options_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Options().seed = 1  # type: ignore[misc]


def test_options_are_hashable_keys() -> None:
    assert {Options(blocks=["A"]): 1}[Options(blocks=("A",))] == 1  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [Options.from_mapping, lambda named: Options(**named)], ids=["mapping", "names"])
def test_unknown_name_gets_the_nearest_spelling(make: Callable[[dict[str, object]], Options]) -> None:
    with pytest.raises(OptionsError) as caught:
        make({"gradient_acumulation": 2})
    error = caught.value
    assert error.message == "unknown option 'gradient_acumulation'; did you mean 'gradient_accumulation'?"
    assert (error.option, error.value) == ("gradient_acumulation", 2)
    assert "device_iterations" in error.allowed


@pytest.mark.parametrize(("name", "value", "message"), [
    ("device_iterations", "4", "option 'device_iterations' expects an int of at least 1, got '4' (str)"),
    ("device_iterations", 2.0, "option 'device_iterations' expects an int of at least 1, got 2.0 (float)"),
    ("device_iterations", True, "option 'device_iterations' expects an int of at least 1, got True (bool)"),
    ("gradient_accumulation", 0, "option 'gradient_accumulation' expects an int of at least 1, got 0 (int)"),
    ("gradient_accumulation", None, "option 'gradient_accumulation' expects an int of at least 1, got None (NoneType)"),
    ("num_ipus", -1, "option 'num_ipus' expects an int of at least 1 or None, got -1 (int)"),
    ("seed", -1, "option 'seed' expects an int of at least 0 or None, got -1 (int)"),
    ("strict", 1, "option 'strict' expects a bool, got 1 (int)"),
    ("verify", "yes", "option 'verify' expects a bool or None, got 'yes' (str)"),
    ("loss_scaling", 0.0, "option 'loss_scaling' expects a float above 0, got 0.0 (float)"),
    ("loss_scaling", float("nan"), "option 'loss_scaling' expects a float above 0, got nan (float)"),
    ("loss_scaling", float("inf"), "option 'loss_scaling' expects a float above 0, got inf (float)"),
    ("execution", "pipelind",
     f"option 'execution' expects {EXECUTIONS}, got 'pipelind' (str); did you mean 'pipelined'?"),
    ("execution", 0, f"option 'execution' expects {EXECUTIONS}, got 0 (int)"),
    ("output_mode", "evry",
     "option 'output_mode' expects 'all', 'final', 'sum', 'every_n' or None, got 'evry' (str); "
     "did you mean 'every_n'?"),
    ("recompute", "B1",
     "option 'recompute' expects 'auto', 'none', 'stage' or a list of block names, got 'B1' (str)"),
    ("blocks", "A", "option 'blocks' expects a list of block names or None, got 'A' (str)"),
    ("blocks", ["A", 1], "option 'blocks' expects a list of block names or None, got ['A', 1] (list)"),
    ("blocks", ["A", "B", "A"], "option 'blocks' lists block 'A' more than once"),
    ("blocks", [], "option 'blocks' got an empty list of block names"),
])
def test_bad_value_is_refused(name: str, value: object, message: str) -> None:
    with pytest.raises(OptionsError) as caught:
        Options.from_mapping({name: value})
    assert caught.value.message == message
    assert caught.value.option == name


def test_text_marks_the_defaults() -> None:
    lines = {line.split("=")[0].strip(): line for line in str(Options(seed=3)).splitlines()}
    assert lines["seed"].endswith("= 3")
    assert lines["strict"].endswith("= False  (default)")
    assert len(lines) == len(dataclasses.fields(Options))


def test_description_names_the_poptorch_setting() -> None:
    lines = Options.describe().splitlines()
    assert "output_mode = None; expects 'all', 'final', 'sum', 'every_n' or None; poptorch: outputMode" in lines
    assert "num_ipus = None; expects an int of at least 1 or None; unit: IPUs" in lines


def test_importing_options_does_not_import_torch() -> None:
    code = "import sys, torchipu.options; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_block_in_two_stages_shows_where() -> None:
    with pytest.raises(OptionsError) as caught:
        Options(stages=["embed", ["layer0", "layer1"], Stage(("layer1", "head"), ipu=3)])
    assert str(caught.value) == """\
block 'layer1' is in stage 1 and in stage 2
  allowed every block once
  stage 0: embed
  stage 1: layer0, layer1
  stage 2: layer1, head  (ipu 3)   <-- 'layer1' again
  do      name the block in the stage where it belongs only"""


@pytest.mark.parametrize("stages", [[], "A", [3], [[]], [""], [Stage(("A",), ipu=-1)], [Stage(("A",), ipu=True)]])
def test_what_is_no_list_of_stages_is_refused(stages: object) -> None:
    with pytest.raises(OptionsError, match="stage"):
        Options(stages=stages)


def test_stages_take_names_lists_and_stages() -> None:
    options = Options(stages=["A", ["B", "C"], Stage(("D",), ipu=0)])
    assert options.stages == (Stage(("A",)), Stage(("B", "C")), Stage(("D",), 0))
    with pytest.raises(OptionsError, match="stages and blocks both give the order"):
        Options(stages=["A"], blocks=["A"])


def test_a_process_group_is_what_answers_rank_and_size():
    class Group:
        def rank(self):
            return 0

        def size(self):
            return 2

    group = Group()
    assert Options(process_group=group).process_group is group
    assert Options(process_group="alone").process_group == "alone"
    with pytest.raises(OptionsError, match=r"a process group of torch\.distributed") as caught:
        Options(process_group=3)
    assert "'alone'" in str(caught.value)
