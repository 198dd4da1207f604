"""Facts of how rows are read, and of what is said of a damaged file."""

from __future__ import annotations

import numpy as np
import pytest

from torchipu.device.memory.by_tile import TileMap
from torchipu.errors import RowsError
from torchipu.score import profiles
from torchipu.score.catalogue import KINDS
from torchipu.score.kinds import NotExpressed
from torchipu.score.products import arguments_of, pair_of
from torchipu.score.programs import Outcome
from torchipu.score.rows import FOLDER, Line, Row, lines_of


def written(folder, text):
    path = folder / "rows.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_line_knows_its_place_and_its_columns(tmp_path):
    lines = lines_of(written(tmp_path, 'name,cycles\n"a,b",12\nc,3.5\n'))
    assert [(line.number, line.text("name"), line.number_in("cycles")) for line in lines] == [
        (2, "a,b", 12.0), (3, "c", 3.5),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "rows.csv, line 1: the file is empty"),
        ("name,cycles\na,1\nb\n", "rows.csv, line 3: expected 2 columns, got 1"),
        ("name,cycles\na,1,2\n", "rows.csv, line 2: expected 2 columns, got 3"),
        ('name,cycles\n"a,1\n', "rows.csv: cannot be read: unexpected end of data"),
    ],
)
def test_a_damaged_file_is_told_by_its_place(tmp_path, text, message):
    with pytest.raises(RowsError) as raised:
        lines_of(written(tmp_path, text))
    assert raised.value.message == message


def test_a_missing_file_is_told_by_its_name(tmp_path):
    with pytest.raises(RowsError, match=r"^gone\.csv: cannot be read: "):
        lines_of(tmp_path / "gone.csv")


@pytest.mark.parametrize("cell", ["", "many", "0", "-1", "nan", "inf"])
def test_a_cell_without_a_number_is_told_by_its_place(cell):
    with pytest.raises(RowsError) as raised:
        Line("rows.csv", 7, {"cycles": cell}).number_in("cycles")
    assert raised.value.message == f"rows.csv, line 7, column cycles: expected a number above 0, got {cell!r}"
    assert "restore the file, or correct the line" in str(raised.value)


def test_a_size_is_a_whole_number():
    with pytest.raises(RowsError, match=r"column rows: expected a whole number, got '1\.5'"):
        Line("rows.csv", 2, {"rows": "1.5"}).size_in("rows")


def test_a_column_that_is_not_there_is_told():
    with pytest.raises(RowsError, match=r"rows\.csv, line 2, column bytes: there is no such column"):
        Line("rows.csv", 2, {}).text("bytes")


def test_zero_counts_where_it_may():
    assert Line("rows.csv", 2, {"value": "0"}).number_in("value", or_zero=True) == 0.0


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_rows_of_a_kind_have_names_of_their_own_and_a_source(kind):
    found = kind.rows()
    assert found
    assert len({row.name for row in found}) == len(found)
    assert all(row.source for row in found)


def test_every_file_of_rows_is_read_by_some_kind_and_has_its_sources_told():
    read = {row.line.file for kind in KINDS for row in kind.rows()}
    files = {path.name for path in FOLDER.glob("*.csv")}
    assert read == files
    sources = (FOLDER / "SOURCES.md").read_text(encoding="utf-8")
    assert [name for name in files if f"`{name}`" not in sources] == []


def test_every_row_belongs_to_a_kind():
    scored = {(row.line.file, row.line.number) for kind in KINDS for row in kind.rows()}
    lines = {(line.file, line.number) for path in FOLDER.glob("*.csv") for line in lines_of(path)}
    assert scored == lines


def test_arguments_of_tools_are_read_in_both_spellings():
    line = Line("rows.csv", 2, {"params": "--field {15,200} --data-type=half --kernel-size 3"})
    assert arguments_of(line) == {"field": "{15,200}", "data-type": "half", "kernel-size": "3"}
    assert (pair_of("{15,200}"), pair_of("3")) == ((15, 200), (3, 3))


# --------------------------------------------------------------------------- rows of profiles
SIGLIP = f"{profiles.SIGLIP} image encoder, C600 profile"
BERT = "BERT-Large SQuAD inf S128"


def held_by_tiles():
    """Two tiles of 100 and 70 bytes, of which a gap is 10 of the first."""
    categories = {"weights": (50, 30), "vertex state": (10, 20), "code": (10, 10), "exchange code": (20, 10),
                  "gap": (10, 0)}
    return TileMap(0, np.array([100, 70]), np.array([1, 1]), {n: np.array(held) for n, held in categories.items()})


@pytest.mark.parametrize(("workload", "metric", "value", "ran"), [
    (SIGLIP, "whole inference, FP8 weights/fp16 compute", 900.0, profiles.Siglip(1, narrow=True)),
    (SIGLIP, "tile memory max, FP8 weights", 100.0, profiles.Siglip(1, narrow=True)),
    (SIGLIP, "tile memory mean, fp16 weights", 80.0, profiles.Siglip(1, narrow=False)),
    (SIGLIP, "exchange code mean, FP8 weights", 15.0, profiles.Siglip(1, narrow=True)),
    (SIGLIP, "tile memory least, FP8 weights", None, None),
    (f"{BERT}, 1-IPU compile: vertex state total", "memory", 30e-6, (24,)),
    (f"{BERT}, 1-IPU compile: vertex code total", "memory", 20e-6, (24,)),
    (f"{BERT} split on 2 IPUs: IPU0 total", "memory", 160e-6, (12, 12)),
    (f"{BERT} 2-IPU split: IPU0 max tile", "memory", 100.0, (12, 12)),
    ("PopTorch 3-layer tiny BERT training: total", "memory", None, None),
])
def test_a_row_of_a_profile_takes_what_it_names(monkeypatch, workload, metric, value, ran):
    outcome = Outcome(1000, {"compute": 900, "host": 100}, 70, {}, overflow=False)
    asked = []
    monkeypatch.setattr(profiles, "outcome_of", lambda *run: asked.append(run) or outcome)
    monkeypatch.setattr(profiles, "memory_of", lambda *run: asked.append(run) or (held_by_tiles(),))
    ipus = "2" if ran == (12, 12) else "1"
    line = Line("rows.csv", 2, {
        "kind": "memory", "workload": workload, "config": "batch 1", "metric": metric, "n_ipu": ipus,
    })
    found = profiles.profiled(Row("V0", 1.0, "a source", line))
    assert (None if isinstance(found, NotExpressed) else found.value) == pytest.approx(value)
    runs = [(getattr(one, "layers", one), options.target, options.outlining) for one, options in asked]
    assert runs == ([] if ran is None else [(ran, "mk2", False) if isinstance(ran, tuple) else (ran, "c600", True)])
