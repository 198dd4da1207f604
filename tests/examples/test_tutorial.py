"""The notebook of the tutorial runs from its first cell to its last, and is kept without results."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat", reason='needs pip install "torchipu[dev]"')
nbclient = pytest.importorskip("nbclient", reason='needs pip install "torchipu[dev]"')
pytest.importorskip("ipykernel", reason='needs pip install "torchipu[dev]"')
pytest.importorskip("sklearn", reason='needs pip install "torchipu[demo]"')

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOK = EXAMPLES / "tutorial.ipynb"


def read() -> Any:
    return nbformat.read(NOTEBOOK, as_version=4)


def test_it_is_kept_without_results() -> None:
    notebook = read()
    nbformat.validate(notebook)
    assert [cell.outputs for cell in notebook.cells if cell.cell_type == "code" and cell.outputs] == []
    assert {cell.execution_count for cell in notebook.cells if cell.cell_type == "code"} == {None}


@pytest.fixture(scope="module")
def run() -> Any:
    """Return the notebook after all of its cells; a cell that raises fails the tests with its traceback."""
    notebook = read()
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(EXAMPLES)}}).execute()
    return notebook


def text_of(notebook: Any, words: str) -> str:
    """Return what the cell whose source holds the words has printed."""
    cell, = (cell for cell in notebook.cells if cell.cell_type == "code" and words in cell.source)
    return "".join(output.text for output in cell.outputs if output.output_type == "stream" and output.name == "stdout")


def test_every_cell_runs_and_nothing_is_warned_of(run: Any) -> None:
    counts = [cell.execution_count for cell in run.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1))
    assert "Warning" not in "".join(
        output.text for cell in run.cells if cell.cell_type == "code" for output in cell.outputs
        if output.output_type == "stream"
    )


def test_the_network_learns(run: Any) -> None:
    found = re.search(r"Test accuracy: ([\d.]+)% of (\d+) digits", text_of(run, "Test accuracy"))
    assert found is not None
    assert float(found[1]) > 90
    assert int(found[2]) > 300


def test_a_pipeline_is_faster_than_shards_and_a_bow_than_both(run: Any) -> None:
    found = re.findall(r"([\d.,]+) us an update", text_of(run, "us an update"))
    plain, sharded, bow = (float(one.replace(",", "")) for one in found)
    assert bow < plain < sharded


def test_drawings_are_html(run: Any) -> None:
    for words in ("step.profile", "live.schedule(step)", "live.timeline(step)"):
        cell = next(cell for cell in run.cells if cell.cell_type == "code" and cell.source.endswith(words))
        shown = [output.data["text/html"] for output in cell.outputs if output.output_type == "execute_result"]
        assert len(shown) == 1, words
        assert "<" in shown[0], words
