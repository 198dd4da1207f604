"""Machines that were never built: how they are given, what is refused of them, and how reports mark them."""

from __future__ import annotations

import json
import pickle
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import torchipu
from tests.target.small import trained
from torchipu.errors import OptionsError
from torchipu.options import TARGET_VARIABLE, Options, emulating
from torchipu.step.in_common import options_in_common
from torchipu.target import TARGETS, Target, lookup_target

MK2, BOW = TARGETS["mk2"], TARGETS["bow"]


def refused(given: object) -> str:
    """Return the words with which a machine is refused, wherever it is given."""
    with pytest.raises(OptionsError) as caught:
        Options(target=given)  # type: ignore[arg-type]
    assert caught.value.option == "target"
    return str(caught.value)


# ---------------------------------------------------------------------- how they are given
def test_fields_are_replaced_by_keyword_by_text_and_by_file(tmp_path: Path):
    path = tmp_path / "half.toml"
    path.write_text('base = "mk2"\nnum_tiles = 736  # half of them\nexchange_bytes_per_cycle = 8\n', encoding="utf-8")
    made = MK2.replaced(num_tiles=736, exchange_bytes_per_cycle=8)
    assert (made.num_tiles, made.exchange_bytes_per_cycle, made.num_workers) == (736, 8, 6)
    assert lookup_target("mk2,num_tiles=736,exchange_bytes_per_cycle=8") == made
    assert lookup_target("mk2, exchange_bytes_per_cycle = 8, num_tiles = 736") == made
    assert lookup_target(str(path)) == lookup_target(path) == lookup_target(made) == made


def test_the_name_says_all_of_the_machine():
    made = BOW.replaced(clock_hz=2.1e9, tile_memory_bytes=2 * 638_976).replaced(sync_cycles=0)
    assert made.name == made.text == "bow,clock_hz=2.1e+09,tile_memory_bytes=1277952,sync_cycles=0"
    assert made.title == "hypothetical: bow with clock_hz=2.1e+09, tile_memory_bytes=1277952, sync_cycles=0"
    assert made.is_hypothetical
    assert not BOW.is_hypothetical
    assert lookup_target(made.name) == made


@pytest.mark.parametrize("value", [1.0 / 3 * 1e9, 1.85e9 + 1, 1e6, 1e11])
def test_a_name_keeps_every_digit(value):
    made = MK2.replaced(clock_hz=value)
    assert lookup_target(made.name) == made
    assert lookup_target(made.name).clock_hz == value


@pytest.mark.parametrize("name", list(TARGETS))
def test_a_number_of_its_own_makes_no_other_machine(name):
    target = TARGETS[name]
    assert target.replaced(num_tiles=target.num_tiles, clock_hz=target.clock_hz) is target
    assert target.replaced(num_tiles=5).replaced(num_tiles=target.num_tiles) is target
    assert target.text == name


def test_what_dataclasses_replace_makes_is_told_by_its_numbers():
    assert Options(target=replace(MK2, num_tiles=100)).target == "mk2,num_tiles=100"
    assert "'small' is made of none in torchipu.target.TARGETS" in refused(replace(MK2, name="small"))
    assert "num_tiles expects an int from 1 to 65,536, got -1 (int)" in refused(replace(MK2, num_tiles=-1))


def test_links_keep_their_speed_at_another_clock_unless_they_are_replaced_too():
    faster = MK2.replaced(clock_hz=1.85e9)
    assert faster.link_bytes_per_cycle == pytest.approx(BOW.link_bytes_per_cycle)
    assert faster.name == "mk2,clock_hz=1.85e+09"
    both = MK2.replaced(clock_hz=1.85e9, link_bytes_per_cycle=40)
    assert (both.link_bytes_per_cycle, both.name) == (40.0, "mk2,clock_hz=1.85e+09,link_bytes_per_cycle=40")


def test_the_fields_that_may_be_replaced_are_all_the_numbers():
    numbers = {name for name in Target.__dataclass_fields__ if isinstance(getattr(MK2, name), (int, float))}
    assert set(Target.replaceable()) == numbers - {"is_system"}
    assert str(Target.replaceable()["num_tiles"]) == "an int from 1 to 65,536"
    assert str(Target.replaceable()["amp_macs_fp8"]) == "0, or a power of two from 1 to 4,096"


@pytest.mark.parametrize("name", list(TARGETS))
def test_every_number_of_a_known_machine_is_one_that_may_be_given(name):
    target = TARGETS[name]
    others = {field: getattr(target, field) for field in Target.replaceable()}
    assert target.replaced(**others) is target


# ---------------------------------------------------------------------- what is refused
@pytest.mark.parametrize(("given", "words"), [
    ("mk3", "unknown target 'mk3'; did you mean 'mk2'?"),
    ("bow-pod61", "unknown target 'bow-pod61'; did you mean 'bow-pod64'?"),
    ("mk3,num_tiles=1", "unknown target 'mk3'; did you mean 'mk2'?"),
    ("mk2,tiles=736", "target 'mk2,tiles=736': a machine has no field 'tiles' that may be replaced; did you mean "
                      "'num_tiles'?"),
    ("mk2,name=3", "target 'mk2,name=3': a machine has no field 'name' that may be replaced"),
    ("mk2,736", "target 'mk2,736': '736' is no field=value"),
    ("mk2,num_tiles=", "target 'mk2,num_tiles=': 'num_tiles=' is no field=value"),
    ("mk2,", "target 'mk2,': '' is no field=value"),
    ("mk2,num_tiles=7,num_tiles=8", "target 'mk2,num_tiles=7,num_tiles=8': num_tiles is there twice"),
    ("mk2,num_tiles=many", "target 'mk2,num_tiles=many': num_tiles expects an int from 1 to 65,536, got 'many' (str)"),
    ("mk2,num_tiles=1.5", "target 'mk2,num_tiles=1.5': num_tiles expects an int from 1 to 65,536, got 1.5 (float)"),
    ("mk2,num_tiles=0", "target 'mk2,num_tiles=0': num_tiles expects an int from 1 to 65,536, got 0 (int)"),
    ("mk2,tile_memory_bytes=-1",
     "target 'mk2,tile_memory_bytes=-1': tile_memory_bytes expects an int from 1,024 to 1,073,741,824, got -1 (int)"),
    ("mk2,clock_hz=nan", "target 'mk2,clock_hz=nan': clock_hz expects a number from 1e+06 to 1e+11, got nan (float)"),
    ("mk2,clock_hz=inf", "target 'mk2,clock_hz=inf': clock_hz expects a number from 1e+06 to 1e+11, got inf (float)"),
    ("mk2,clock_hz=1.33", "target 'mk2,clock_hz=1.33': clock_hz expects a number from 1e+06 to 1e+11, got 1.33 "
                          "(float)"),
    ("mk2,amp_macs_half_half=100", "target 'mk2,amp_macs_half_half=100': amp_macs_half_half expects a power of two "
                                   "from 4 to 1,024, got 100 (int)"),
    ("mk2,tile_memory_bytes=131072", "target 'mk2,tile_memory_bytes=131072': code_region_bytes=212,992 is a part of "
                                     "tile_memory_bytes=131,072, and larger"),
    ("mk1,tile_memory_bytes=2048,code_region_bytes=1024",
     "target 'mk1,tile_memory_bytes=2048,code_region_bytes=1024': stack_bytes=3,200 leave nothing of "
     "tile_memory_bytes=2,048"),
    (3, "option 'target' expects a machine: a name, a name with fields to replace ('mk2,num_tiles=736'), a path that "
        "ends in .toml, or a torchipu.target.Target, got 3 (int)"),
])
def test_a_machine_that_makes_no_sense_is_refused(given, words):
    assert refused(given).splitlines()[0] == words


def test_a_field_that_is_no_number_is_refused_by_keyword():
    for value in (True, "736", None, [1]):
        with pytest.raises(OptionsError, match=re.escape(
            f"target 'mk2': num_tiles expects an int from 1 to 65,536, got {value!r} ({type(value).__name__})"
        )):
            MK2.replaced(num_tiles=value)  # type: ignore[arg-type]
    with pytest.raises(OptionsError, match=r"has no field 'exchange' .*; did you mean 'exchange_bytes_per_cycle'"):
        MK2.replaced(exchange=8)


@pytest.mark.parametrize(("text", "words"), [
    ("base = mk2", "the file is no TOML: Invalid value (at line 1, column 8)"),
    ('base = "mk2"\nnum_tiles = ' + "9" * 5000, "the file is no TOML: Exceeds the limit (4300 digits) for "
     "integer string conversion: value has 5000 digits; use sys.set_int_max_str_digits() to increase the limit"),
    ('base = "mk2"\nnum_tiles 3', "the file is no TOML: Expected '=' after a key in a key/value pair (at line 2, "
                                  "column 11)"),
    ('base = "mk2"\ntiles = 3', "unknown key 'tiles'; did you mean 'num_tiles'?"),
    ('bas = "mk2"\nnum_tiles = 3', "unknown key 'bas'; did you mean 'base'?"),
    ('base = "mk2"\n[mk2]\nnum_tiles = 3', "unknown key 'mk2'"),
    ("num_tiles = 3", "there is no 'base', the machine whose fields are replaced"),
    ("", "there is no 'base', the machine whose fields are replaced"),
    ("base = 2", "base expects the name of a machine, got 2 (int)"),
    ('base = "mk2"\nnum_tiles = "736"', "num_tiles expects an int from 1 to 65,536, got '736' (str)"),
    ('base = "mk2"\nnum_tiles = 7.0', "num_tiles expects an int from 1 to 65,536, got 7.0 (float)"),
    ('base = "mk2"\nnum_tiles = true', "num_tiles expects an int from 1 to 65,536, got True (bool)"),
    ('base = "mk2"\ntile_memory_bytes = -1',
     "tile_memory_bytes expects an int from 1,024 to 1,073,741,824, got -1 (int)"),
    ('base = "mk2"\ntile_memory_bytes = 2048',
     "code_region_bytes=212,992 is a part of tile_memory_bytes=2,048, and larger"),
])
def test_a_bad_file_is_refused_by_its_path(tmp_path, text, words):
    path = tmp_path / "bad.toml"
    path.write_text(text, encoding="utf-8")
    assert refused(path).splitlines()[0] == f"target {str(path)!r}: {words}"


def test_files_that_cannot_be_read_are_refused(tmp_path):
    assert refused(tmp_path / "none.toml").splitlines()[0].endswith("none.toml': there is no such file")
    (tmp_path / "folder.toml").mkdir()
    assert refused(tmp_path / "folder.toml").splitlines()[0].endswith("the file cannot be read: Is a directory")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    assert "binary.toml': the file is no TOML: 'utf-8' codec can't decode" in refused(tmp_path / "binary.toml")
    (tmp_path / "other.toml").write_text('base = "mk4"', encoding="utf-8")
    assert refused(tmp_path / "other.toml").splitlines()[0] == "unknown target 'mk4'; did you mean 'mk2'?"


def test_io_tiles_have_to_leave_tiles_that_compute():
    with pytest.raises(OptionsError, match="io_tiles=32 leaves none of the 32 tiles of mk2,num_tiles=32 to compute"):
        Options(target="mk2,num_tiles=32", io_tiles=32)
    assert Options(target="mk2,num_tiles=33", io_tiles=32).io_tiles == 32


# ---------------------------------------------------------------------- options, caches, reports
def test_options_hold_the_whole_machine_whatever_becomes_of_the_file(tmp_path):
    path = tmp_path / "machine.toml"
    path.write_text('base = "bow"\nnum_tiles = 736\n', encoding="utf-8")
    options = Options(target=path)
    path.unlink()
    assert options.target == "bow,num_tiles=736"
    assert Options.from_mapping(options.changed()) == options == pickle.loads(pickle.dumps(options))
    assert options_in_common(options) == "target='bow,num_tiles=736'"
    assert "= 'bow,num_tiles=736'\n" in str(options)
    assert Options(target=BOW.replaced(num_tiles=737)) != options


def test_machines_are_told_apart_by_all_their_numbers():
    steps = [trained(target) for target in ("mk2", "mk2,sync_cycles=1000", "mk2,sync_cycles=2000")]
    cycles = [step.profile.cycles_per_update for step in steps]
    assert cycles == sorted(set(cycles))
    assert [step.target.sync_cycles for step in steps] == [120, 1000, 2000]


def test_every_report_marks_a_machine_that_was_never_built():
    profile = trained("mk2,num_tiles=736,exchange_bytes_per_cycle=8").profile
    marked = "hypothetical: mk2 with num_tiles=736, exchange_bytes_per_cycle=8"
    assert profile.summary().splitlines()[0] == f"machine              {marked}, 1 IPU (modelled)"
    assert marked in profile.text()
    stored = json.loads(profile.json())
    assert (stored["title"], stored["target"]) == (marked, "mk2,num_tiles=736,exchange_bytes_per_cycle=8")
    explained = torchipu.explain(torch.nn.Linear(4, 4), torch.ones(1, 4), options={"target": "bow,num_workers=12"})
    assert "machine              hypothetical: bow with num_workers=12, 1 IPU" in explained.text()


@pytest.mark.parametrize("fields", [
    {"num_tiles": 1}, {"num_tiles": 7, "num_workers": 1}, {"num_tiles": 5000}, {"exchange_bytes_per_cycle": 64},
    {"tile_memory_bytes": 319_488}, {"amp_macs_half_half": 256, "amp_macs_half_float": 128, "amp_macs_float": 64},
    {"amp_macs_half_half": 4, "amp_macs_half_float": 4, "amp_macs_float": 2}, {"sync_cycles": 0, "ipu_sync_cycles": 0},
])
def test_values_are_those_of_every_other_machine(fields):
    step, usual = trained(MK2.replaced(**fields)), trained("mk2")
    assert step.profile.cycles_per_update > 0
    for mine, other in zip(step.model.parameters(), usual.model.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_tiles_of_a_hypothetical_machine_compute():
    step = trained("mk2,num_tiles=9,tile_memory_bytes=500000", executor="tiles")
    for mine, other in zip(step.model.parameters(), trained("mk2").model.parameters(), strict=True):
        torch.testing.assert_close(mine, other)


def test_a_sweep_tells_what_more_exchange_or_fewer_tiles_would_do():
    layer, inputs = torch.nn.Linear(2048, 2048), torch.ones(256, 2048)

    def cycles(**fields: float) -> int:
        step = torchipu.InferenceStep(layer, options=Options(target=MK2.replaced(**fields)))
        step(inputs)
        return int(step.profile.cycles_per_update)

    by_exchange = [cycles(exchange_bytes_per_cycle=width) for width in (2, 4, 8, 16)]
    assert by_exchange == sorted(by_exchange, reverse=True)
    assert by_exchange[0] > by_exchange[-1]
    by_host = [cycles(host_bytes_per_s=rate) for rate in (1e9, 1e10)]
    assert by_host[0] > by_host[1]
    assert cycles(num_tiles=184) > cycles()


def test_a_machine_with_less_memory_may_be_too_small():
    step = torchipu.InferenceStep(torch.nn.Linear(1024, 1024), options=Options(target="mk2,num_tiles=2"))
    with pytest.raises(torchipu.OutOfTileMemoryError, match="but a tile of hypothetical: mk2 with num_tiles=2"):
        step(torch.ones(1, 1024))


# ---------------------------------------------------------------------- the environment
def test_the_environment_goes_before_what_options_say(monkeypatch):
    monkeypatch.setenv(TARGET_VARIABLE, "bow-pod16")
    assert Options().target == Options(target="mk1").target == "bow-pod16"
    monkeypatch.setenv(TARGET_VARIABLE, "bow-pot16")
    assert "unknown target 'bow-pot16'; did you mean 'bow-pod16'?" in refused("mk2")
    monkeypatch.delenv(TARGET_VARIABLE)
    with emulating("mk1,num_tiles=8"):
        assert Options().target == "mk1,num_tiles=8"
        with emulating(None):
            assert Options().target == "mk1,num_tiles=8"
        with emulating("c600"):
            assert Options().target == "c600"
        assert Options().target == "mk1,num_tiles=8"
    assert Options().target == "mk2"
