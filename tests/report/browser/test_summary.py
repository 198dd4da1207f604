"""Summary and insights of a report, in a browser: by pointer and keys, beside what the database says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.report.browser.conftest import Opener, column, digits, facts_in, go, row_of, rows_of, shown_all
from torchipu import pva
from torchipu.report.directory import COMPARISON, write_directory
from torchipu.report.facts.gather import Facts


# --------------------------------------------------------------------------- summary
def test_environment_tells_the_machine_and_how_large_the_program_is(page: Any, folder: Path) -> None:
    go(page, "environment")
    machine, program = (facts_in(page, f"#environment .columns > div:nth-child({at})") for at in (1, 2))
    report = pva.openReport(folder / "profile.pop")
    target, graph = report.compilation.target, report.compilation.graph
    assert [digits(machine[name])[0] for name in (
        "Replicas", "IPUs of a replica", "Tiles of an IPU", "Memory of a tile", "Memory of an IPU",
        "Memory of a replica", "Memory of all replicas", "Clock",
    )] == [
        target.numReplicas, target.ipusPerReplica, target.tilesPerIpu, target.bytesPerTile, target.bytesPerIPU,
        target.memoryPerReplica, target.totalMemory, target.clockFrequency,
    ]
    assert machine["Kind"].startswith("a model of the IPU")
    assert machine["Architecture"] == "mk2"
    assert [digits(program[name])[0] for name in ("Variables", "Compute sets", "Vertices", "Edges", "Exchanges")] == [
        graph.numVars, graph.numComputeSets, graph.numVertices, graph.numEdges, graph.numExchanges,
    ]


def test_options_versions_and_figures_are_filtered(page: Any, folder: Path) -> None:
    go(page, "environment")
    page.fill("#setting-filter", "recompute")
    options = rows_of(folder, "SELECT name, value FROM settings WHERE kind = 'options' AND "
                              "(name LIKE '%recompute%' OR value LIKE '%recompute%')")
    lines = page.locator("#settings table:has(caption:text-is('All options')) tbody tr")
    assert [tuple(one.split("\t")[:2]) for one in lines.all_inner_texts()] == options != []
    page.fill("#setting-filter", "nothing is called so")
    assert "Nothing has this" in page.inner_text("#settings")
    assert page.locator("#settings table").count() == 0


def test_files_of_the_report_are_listed(page: Any, folder: Path) -> None:
    go(page, "environment")
    lines = page.locator("table:has(caption:text-is('Files of the report, in one directory')) tbody tr")
    names = [one.split("\t")[0] for one in lines.all_inner_texts()]
    # Comparisons of other tests lie beside it since.
    there = {path.name for path in folder.iterdir() if not path.name.startswith(".")} - {COMPARISON}
    assert sorted(names) == sorted(there)
    sizes = {name: lines.nth(at).locator(".number") for at, name in enumerate(names)}
    assert int(sizes["profile.pop"].get_attribute("data-value")) == (folder / "profile.pop").stat().st_size


def test_notes_beside_the_report_stand_in_it(opened: Opener, facts: Facts, tmp_path: Path) -> None:
    (tmp_path / "app.json").write_text('{"model": {"name": "<b>net</b>", "sizes": [1, 2]}, "epochs": 3}')
    (tmp_path / "framework.json").write_text("[{}] and more")
    write_directory(facts, tmp_path)
    with opened(tmp_path / "report.html", "environment") as page:
        said = page.locator("#settings table:has(caption:has-text('app.json')) tbody tr").all_inner_texts()
        assert [one.split("\t") for one in said] == [
            ["model.name", "<b>net</b>"], ["model.sizes", "[1, 2]"], ["epochs", "3"],
        ]
        assert "left out: it is no JSON" in page.inner_text("#settings table:has(caption:has-text('framework.json'))")

# --------------------------------------------------------------------------- insights
def test_insights_tell_what_is_in_use_and_the_five_fullest_tiles(page: Any, folder: Path) -> None:
    go(page, "insights")
    assert page.inner_text("#insights .page > p").startswith("It fits")
    limit = row_of(folder, "SELECT value FROM facts WHERE name = 'tile_memory_bytes'")[0]
    for at, name in enumerate(("excluding_gaps", "including_gaps"), start=1):
        used = rows_of(folder, f"SELECT sum({name}) * 1.0 / count(*) / {limit} FROM tiles GROUP BY ipu ORDER BY ipu")
        told = shown_all(page, f"#insights dl.facts dd:nth-of-type({at}) .number")
        assert told == pytest.approx([one for one, in used])
    fullest = rows_of(folder, "SELECT ipu, tile, including_gaps FROM tiles ORDER BY 3 DESC, 1, 2 LIMIT 5")
    assert column(page, "The five fullest tiles", 2) == [held for _, _, held in fullest]
    page.locator("#insights tbody button").nth(1).click()
    page.wait_for_selector("#memory:not([hidden])")
    assert digits(page.inner_text("#tile-readout")) == list(fullest[1])


def test_tiles_are_counted_by_how_full_they_are(page: Any, folder: Path) -> None:
    go(page, "memory")
    titles = page.locator("#memory svg[aria-label^='Tiles by how full'] rect title").all_text_contents()
    counts = {one.split(":")[0]: digits(one.split(":")[1])[0] for one in titles}
    held = rows_of(folder, "SELECT including_gaps FROM tiles")
    assert next(iter(counts.values())) == sum(one < 638_976 / 20 for one, in held)
    assert sum(counts.values()) == len(held)


def test_the_largest_code_state_and_exchanges_of_the_model_an_ipu_or_a_tile(page: Any, folder: Path) -> None:
    go(page, "insights")
    code, state, exchanges = (
        "Largest vertex code", "Largest vertex state and control code", "Largest code of exchanges",
    )
    assert column(page, code, 4) == [one for one, in rows_of(
        folder, "SELECT bytes * 1472 FROM codelets ORDER BY bytes DESC LIMIT 5")]
    assert column(page, exchanges, 4) == [one for one, in rows_of(
        folder, "SELECT code_bytes * 1472 FROM exchanges ORDER BY code_bytes DESC LIMIT 5")]
    tiles = "(SELECT sum(end_tile - first_tile) FROM patterns WHERE pattern = vertices_by_tile)"
    assert column(page, state, 4) == [one for one, in rows_of(
        folder, f"SELECT control_bytes * {tiles} AS held FROM liveness WHERE held ORDER BY held DESC LIMIT 5")]
    page.select_option("#insights label:has-text('Of') select", "1")
    page.fill("#insight-tile", "40")
    here = "EXISTS (SELECT * FROM patterns WHERE pattern = vertices_by_tile AND first_tile <= 40 AND end_tile > 40)"
    assert column(page, state, 3) == [one for one, in rows_of(
        folder, f"SELECT control_bytes FROM liveness WHERE ipu = 1 AND control_bytes AND {here} ORDER BY 1 DESC "
                "LIMIT 5")]
    assert column(page, code, 3) == [one for one, in rows_of(
        folder, "SELECT bytes FROM codelets WHERE ipu = 1 ORDER BY bytes DESC LIMIT 5")]


def test_the_largest_variables_held_always_and_at_the_peak(page: Any, folder: Path) -> None:
    go(page, "insights")
    assert column(page, "Largest variables that are always held", 4) == [one for one, in rows_of(
        folder, "SELECT bytes FROM variables WHERE always AND NOT off_chip ORDER BY bytes DESC LIMIT 5")]
    page.select_option("#insights label:has-text('Of') select", "0")
    peak = row_of(folder, "SELECT step FROM liveness WHERE ipu = 0 ORDER BY live_bytes DESC, step LIMIT 1")[0]
    assert column(page, "Largest variables that are held at the peak only", 4) == [one for one, in rows_of(
        folder, f'SELECT bytes FROM variables WHERE ipu = 0 AND NOT always AND NOT off_chip AND "begin" <= {peak} AND '
                f'"end" >= {peak} ORDER BY bytes DESC LIMIT 5')]
    page.fill("#insight-tile", "2")
    assert column(page, "Largest variables that are always held", 4) == [one for one, in rows_of(
        folder, "SELECT shares.bytes FROM variables JOIN shares ON variable = number WHERE always AND NOT off_chip AND "
                "ipu = 0 AND first_tile <= 2 AND end_tile > 2 ORDER BY 1 DESC LIMIT 5")]


def test_floats_that_could_be_halves_are_told_with_what_is_saved(page: Any, folder: Path) -> None:
    go(page, "insights")
    count, size = row_of(folder, "SELECT count(*), sum(bytes) FROM variables WHERE dtype = 'float' AND NOT off_chip "
                                 "AND bytes AND role <> 'hyperparameter'")
    words = page.locator("#insights p:has-text('are float32')")
    assert digits(words.inner_text())[0] == count
    assert float(words.locator(".number").get_attribute("data-value")) == size / 2
    assert column(page, "Float32 variables", 5) == [one / 2 for one, in rows_of(
        folder, "SELECT bytes FROM variables WHERE dtype = 'float' AND NOT off_chip ORDER BY bytes DESC LIMIT 5")]
