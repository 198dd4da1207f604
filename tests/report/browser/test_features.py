"""What PopVision could show, page by page: it is there, works by pointer and keys, and says what the database says."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchipu
from tests.report.browser.conftest import digits, go, open_page, row_of, rows_of, shown, shown_all
from tests.report.test_reports import facts_of
from torchipu import pva
from torchipu.report.directory import write_comparison, write_directory
from torchipu.report.facts import rows
from torchipu.report.facts.gather import Facts
from torchipu.report.page import page_of

Opener = Callable[..., Any]


@pytest.fixture(scope="module")
def one_page(browser: Any, folder: Path) -> Iterator[Any]:
    with open_page(browser, folder / "report.html") as page:
        page.set_default_timeout(10_000)
        yield page


@pytest.fixture
def page(one_page: Any) -> Any:
    """The page of the pipelined training, drawn anew: what a test has chosen is gone for the next one."""
    one_page.evaluate("document.getElementById('details').close(); location.hash = ''; drawAnew()")
    return one_page


def facts_in(page: Any, selector: str) -> dict[str, str]:
    """Return a list of names and what belongs to them."""
    names, values = (page.locator(f"{selector} {tag}").all_inner_texts() for tag in ("dt", "dd"))
    return dict(zip(names, values, strict=True))


def column(page: Any, table: str, at: int) -> list[float]:
    """Return the numbers of a column of a table, that with the caption, from 1."""
    return shown_all(page, f"table:visible:has(caption:text-is('{table}')) tbody td:nth-child({at}) .number")


def numbers(page: Any, script: str) -> list[float]:
    """Return numbers by tile that a script gives."""
    return [float(one) for one in page.evaluate(f"Array.from({script})")]


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
    assert sorted(names) == sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
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


# --------------------------------------------------------------------------- memory
@pytest.mark.parametrize(("view", "parts"), [
    ("profile", {"code": "SELECT sum(bytes) FROM tile_categories WHERE ipu = 1 AND category = 'code'"}),
    ("region", {
        "not interleaved": "SELECT sum(min(excluding_gaps, excluding_gaps - including_gaps + 212992)) FROM tiles WHERE "
                           "ipu = 1",
        "interleaved": "SELECT sum(max(0, including_gaps - 212992)) FROM tiles WHERE ipu = 1",
        "beyond the tile": "SELECT 0",
        "gap": "SELECT sum(including_gaps - excluding_gaps) FROM tiles WHERE ipu = 1",
    }),
    ("liveness", {
        "always held": "SELECT sum(always) FROM tiles WHERE ipu = 1",
        "comes and goes": "SELECT sum(excluding_gaps - always) FROM tiles WHERE ipu = 1",
    }),
])
def test_tiles_are_broken_down(page: Any, folder: Path, view: str, parts: dict[str, str]) -> None:
    go(page, "memory")
    before = page.locator("#tile-maps canvas").nth(1).screenshot()
    page.select_option("#memory label:has-text('as') >> nth=0 >> select", view)
    assert page.locator("#tile-maps canvas").nth(1).screenshot() != before
    found = {one["name"]: sum(one["numbers"]) for one in page.evaluate(f"partsOf(1, '{view}')")}
    for name, query in parts.items():
        assert found[name] == row_of(folder, query)[0], name
    assert sum(found.values()) == row_of(folder, "SELECT sum(including_gaps) FROM tiles WHERE ipu = 1")[0]
    legend = page.locator("#memory .ramp .legend li").all_inner_texts()
    assert set(legend) >= {name for name, size in found.items() if size}
    page.select_option("#memory select >> nth=0", "excluding_gaps")
    at = digits(page.inner_text("#tile-readout"))
    assert at[2] == row_of(folder, f"SELECT excluding_gaps FROM tiles WHERE ipu = {at[0]} AND tile = {at[1]}")[0]


def test_variables_are_plotted_over_the_tiles(page: Any, folder: Path) -> None:
    go(page, "memory")
    names = page.locator("#memory [id^=choose-variables] >> xpath=../../.. >> .legend li button[aria-label^=Remove]")
    assert names.count() == 4
    number, name, ipu = row_of(folder, "SELECT number, name, ipu FROM variables WHERE name = 'recurrence_2'")
    for at in range(3, -1, -1):
        names.nth(at).click()
    assert page.locator("#variable-plot canvas").count() == 0
    page.fill("#memory [id^=choose-variables]", name)
    page.press("#memory [id^=choose-variables]", "Enter")
    assert page.locator("#variable-plot figcaption").inner_text() == f"ipu{ipu}"
    assert name in page.locator("#variable-plot canvas").get_attribute("aria-label")
    expected = [0] * 1472
    shares = f"SELECT first_tile, end_tile, bytes FROM shares WHERE variable = {number}"
    for first, end, size in rows_of(folder, shares):
        expected[first:end] = [size] * (end - first)
    assert numbers(page, f"bytesByTile(rows('variables')[{number}])") == expected
    page.fill("#memory [id^=choose-variables]", "no such thing")
    page.press("#memory [id^=choose-variables]", "Enter")
    assert "No variable on tiles is called no such thing" in page.inner_text("#memory")


def test_a_tile_tells_all_of_itself_in_tabs(page: Any, folder: Path) -> None:
    go(page, "memory")
    page.fill("#tile-number", "1")
    page.press("#tile-number", "Enter")
    ipu = digits(page.inner_text("#tile-readout"))[0]
    tabs = page.locator("#tile [role=tab]")
    assert tabs.all_inner_texts() == ["Details", "Variables", "Addresses", "Vertices", "Compute sets", "Exchanges"]
    page.keyboard.press("Tab")
    tabs.first.focus()
    page.keyboard.press("ArrowLeft")  # around to the last
    assert page.evaluate("document.activeElement.textContent") == "Exchanges"
    codes = rows_of(folder, f"SELECT code_bytes FROM exchanges WHERE ipu = {ipu} ORDER BY 1 DESC")
    assert column(page, "Exchanges of this tile", 2) == [one for one, in codes][:12]
    tabs.nth(4).click()
    here = "EXISTS (SELECT * FROM patterns WHERE pattern = vertices_by_tile AND first_tile <= 1 AND end_tile > 1)"
    sets = row_of(folder, f"SELECT count(*), sum(control_bytes) FROM liveness WHERE ipu = {ipu} AND {here}")
    page.click("#tile button:has-text('Show all')")
    assert page.locator("#tile tbody tr").count() == sets[0]
    assert sum(column(page, "Compute sets on this tile", 5)) == sets[1] == row_of(
        folder, f"SELECT sum(bytes) FROM tile_categories WHERE ipu = {ipu} AND tile = 1 "
        "AND category IN ('control', 'vertex state')")[0]
    tabs.nth(3).click()
    for more in page.locator("#tile button:visible:has-text('Show all')").all():
        more.click()
    assert sum(column(page, "Vertices on this tile", 2)) == sum(
        one.count for one in pva.openReport(folder / "profile.pop").compilation.ipus[ipu].tiles[1].memory.vertices
    )
    tabs.nth(2).click()
    assert page.locator("#tile canvas").get_attribute("aria-label").startswith("Addresses of ")
    page.fill("#tile-number", "2")  # the same tab of another tile
    page.press("#tile-number", "Enter")
    assert page.locator("#tile [role=tab][aria-selected=true]").inner_text() == "Addresses"


# --------------------------------------------------------------------------- liveness, program
def test_steps_of_liveness_stand_beside_each_other_and_lifetimes_on_the_curve(page: Any, folder: Path) -> None:
    go(page, "liveness")
    chosen = []
    for at in ("12", "3"):
        page.locator("#live-slider").fill(at)
        page.click("#live-step button:has-text('Keep it beside others')")
        chosen.append(row_of(folder, f"SELECT step, live_bytes FROM liveness LIMIT 1 OFFSET {at}"))
    panels = page.locator("#steps-beside > .panel")
    assert [digits(one)[0] for one in panels.locator("h3").all_inner_texts()] == sorted(step for step, _ in chosen)
    held = shown_all(page, "#steps-beside > .panel dd:nth-of-type(2) .number")
    assert held == [size for _, size in sorted(chosen)]
    boxes = [one.bounding_box() for one in panels.all()]
    assert boxes[0]["y"] == boxes[1]["y"]
    assert boxes[0]["x"] + boxes[0]["width"] < boxes[1]["x"]
    panels.first.locator("button:has-text('Remove')").click()
    assert panels.count() == 1
    canvas = page.locator("#liveness canvas")
    before = canvas.screenshot()
    page.locator("#live-step tbody tr button").first.click()
    assert canvas.screenshot() != before


def test_the_tree_of_programs_opens_and_is_searched(page: Any, folder: Path) -> None:
    go(page, "program")
    roots = [name for name, in rows_of(folder, "SELECT name FROM programs WHERE parent = -1 ORDER BY number")]
    summaries = page.locator("#program-tree > .tree > li > details > summary")
    assert [one.split(" ")[1] for one in summaries.all_inner_texts()] == roots
    at = roots.index("1F")
    summaries.nth(at).focus()
    page.keyboard.press("Enter")
    inside = page.locator(f"#program-tree > .tree > li:nth-child({at + 1}) > details > div > .tree > li")
    parts = rows_of(folder, "SELECT programs.name FROM programs JOIN programs AS whole ON programs.parent = "
                            "whole.number WHERE whole.name = '1F' AND whole.parent = -1 ORDER BY programs.number")
    inside.first.wait_for()
    assert inside.count() == len(parts)
    codelet, = row_of(folder, "SELECT codelet FROM codelets WHERE codelet LIKE '%Lstm%' LIMIT 1")
    page.fill("#program-filter", codelet.lower())
    count = row_of(folder, f"SELECT count(DISTINCT program) FROM vertices WHERE codelet LIKE '%{codelet}%'")[0]
    assert digits(page.inner_text("#program-found caption"))[0] == count
    assert not page.locator("#program-tree").is_visible()
    page.locator("#program-found tbody button").first.click()
    assert codelet in page.inner_text("#details table:has(caption:text-is('Vertices'))")
    assert "recurrence" in page.inner_text("#details dl")


# --------------------------------------------------------------------------- operations
def test_columns_of_operations_are_chosen(page: Any, folder: Path) -> None:
    go(page, "operations")
    page.click("#operations summary:has-text('Columns')")
    for name in ("Leg", "Line", "Sync"):
        page.uncheck(f"#operations details label:text-is('{name}') input")
    heads = page.locator("#operation-table thead th").all_inner_texts()
    assert not {"Leg", "Line", "Sync"} & {one.strip(" ▲▼") for one in heads}
    assert {"Module", "Exchange", "Memory"} <= {one.strip(" ▲▼") for one in heads}
    number, memory = row_of(folder, "SELECT operation, sum(bytes) FROM variables WHERE operation >= 0 AND NOT off_chip "
                                    "GROUP BY operation ORDER BY 2 DESC, 1 LIMIT 1")
    page.click("#operation-table thead button:text-is('Memory')")
    assert shown(page, "#operation-table tbody tr:first-child td:last-child .number") == memory
    page.check("#operations details label:text-is('Leg') input")
    assert "Leg" in page.inner_text("#operation-table thead")
    page.locator("#operation-table tbody tr").first.click()
    name = row_of(folder, f"SELECT name FROM operations WHERE number = {number}")[0]
    assert name in page.inner_text("#details-title")


def test_an_op_has_charts_of_its_cycles_and_its_bytes(page: Any, folder: Path) -> None:
    number, compute = row_of(folder, "SELECT number, compute FROM operations WHERE kind = 'recurrence'")
    go(page, "operations")
    page.evaluate(f"openOperation({number})")
    bars = page.locator("#operation-charts svg rect title").all_text_contents()
    assert f"compute compute: {compute:,}" in bars
    by_tile = row_of(folder, f"SELECT max(total) FROM (SELECT sum(value * runs) AS total FROM steps JOIN patterns ON "
                             f"pattern = cycles_by_tile WHERE operation = {number} AND first_tile = 0)")[0]
    labels = [one.get_attribute("aria-label") for one in page.locator("#operation-charts canvas").all()]
    assert len(labels) == 2
    assert digits(labels[0])[-1] == by_tile
    assert page.locator("#operation-charts canvas").first.bounding_box()["height"] > 60


# --------------------------------------------------------------------------- execution
def test_the_flame_graph_shows_modules_and_opens_ops(page: Any, folder: Path) -> None:
    go(page, "execution")
    page.select_option("#execution label:has-text('IPU') select", "1")
    canvas = page.locator("#flames canvas")
    canvas.focus()
    page.keyboard.press("ArrowRight")
    run = row_of(folder, 'SELECT action, "end" - "begin" FROM runs WHERE ipu = 1 AND function <> "" LIMIT 1')
    assert page.inner_text("#flames [role=status]").startswith(f"{run[0]}: {run[1]:,} cycles")
    page.keyboard.press("ArrowDown")
    assert not page.inner_text("#flames [role=status]").startswith(run[0])
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowRight")
    following = row_of(folder, 'SELECT action FROM runs WHERE ipu = 1 AND function <> "" LIMIT 1 OFFSET 1')[0]
    assert page.inner_text("#flames [role=status]").startswith(following)
    frames = page.evaluate("framesOf('1F').map((one) => one.name)")
    op = row_of(folder, "SELECT name FROM operations WHERE kind = 'recurrence'")[0]
    assert {"second", "head"} <= {*frames[0], *frames[1]}
    assert any(f"recurrence %{op}" in level for level in frames)
    whole = page.evaluate("framesOf('1F').map((one) => one.end.reduce((sum, end, at) => sum + end - one.begin[at], 0))")
    assert whole == sorted(whole, reverse=True)
    assert whole[0] == row_of(folder, "SELECT sum(cycles * runs) FROM steps WHERE function = '1F' AND NOT overlaps")[0]
    level = next(at for at, names in enumerate(frames) if f"recurrence %{op}" in names)
    begin, end = page.evaluate(f"((level, at) => [level.begin[at], level.end[at]])(framesOf('1F')[{level}], "
                               f"framesOf('1F')[{level}].name.indexOf('recurrence %{op}'))")
    started = row_of(folder, 'SELECT "begin" FROM runs WHERE function = \'1F\' LIMIT 1')[0]
    total = int(row_of(folder, "SELECT value FROM facts WHERE name = 'cycles_per_update'")[0])
    box = canvas.bounding_box()
    x = 84 + (started + (begin + end) / 2) / total * (box["width"] - 84)
    canvas.click(position={"x": x, "y": 17 * (level + 1) + 8})
    assert page.inner_text("#slice h3") == f"recurrence %{op}"
    canvas.press("Enter")
    assert op in page.inner_text("#details-title")
    page.keyboard.press("Escape")
    page.select_option("#execution label:has-text('IPU') select", "all")
    lane = page.evaluate("lanesOf(rowsBy('runs', 'ipu')).findIndex((one) => one.ipu === 1)")
    page.locator("#execution canvas").first.click(position={"x": x, "y": 20 + 17 * lane + 8})
    for _ in range(2):  # the IPU of the slice that was chosen stays in view
        assert "ipu1" in page.inner_text("#tiles [role=status]")
        canvas.click(position={"x": x, "y": 17 * (level + 1) + 8})
        assert page.inner_text("#slice h3") == f"recurrence %{op}"


def test_lanes_show_every_step_or_when_functions_begin_and_end(page: Any, folder: Path) -> None:
    go(page, "execution")
    canvas = page.locator("#execution canvas").first
    detailed = canvas.bounding_box()["height"]
    page.select_option("#execution label:has-text('Lanes') select", "functions")
    page.wait_for_function(f"document.querySelector('#execution canvas').clientHeight < {detailed / 2}")
    box, whole = canvas.bounding_box(), row_of(folder, "SELECT value FROM facts WHERE name = 'cycles_per_update'")[0]
    run = row_of(folder, 'SELECT action, "begin", "end" FROM runs WHERE ipu = 1 AND function <> "" LIMIT 1')
    canvas.click(position={"x": 84 + (run[1] + run[2]) / 2 / int(whole) * (box["width"] - 84), "y": 20 + 17 + 8})
    assert page.inner_text("#slice h3") == run[0]


def test_cycles_are_told_by_category_and_steps_with_their_balance(page: Any, folder: Path, facts: Facts) -> None:
    go(page, "execution")
    bars = page.locator("#execution svg[aria-label^='Cycles by IPU'] rect title").all_text_contents()
    assert f"ipu1 sync: {facts.figure('cycles_by_category_by_ipu')[1]['sync']:,}" in bars  # between functions too
    for category in ("compute", "exchange"):
        spent = row_of(folder, f"SELECT sum(cycles * runs) FROM execution WHERE ipu = 1 AND category = '{category}'")[0]
        assert f"ipu1 {category}: {spent:,}" in bars
    steps = rows_of(folder, "SELECT cycles * runs, tile_balance FROM steps WHERE vertices ORDER BY 1 DESC LIMIT 10")
    title = "Steps of one run of each function"
    assert column(page, title, 4)[:10] == [cycles for cycles, _ in steps]
    assert column(page, title, 6)[:2] == [balance for _, balance in steps[:2]]


class Summed(nn.Linear):
    """A layer whose loss is the sum of its results."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).sum()


@pytest.fixture(scope="module")
def offloaded() -> Facts:
    model = Summed(8, 4)
    step = torchipu.TrainStep(
        model, torch.optim.Adam(model.parameters()),
        torchipu.Options(offload_optimiser_state=True, gradient_accumulation=2),
    )
    step.compile(torch.randn(4, 8))
    return facts_of(step)


def test_stream_copies_are_split_into_host_and_remote_buffers(
    opened: Opener, offloaded: Facts, tmp_path: Path,
) -> None:
    write_directory(offloaded, tmp_path)
    expected = {
        (f"{'remote buffer' if remote else 'host'}, {'to' if inside else 'from'} the device"): (copies, size, cycles)
        for remote, inside, copies, size, cycles in rows_of(
            tmp_path, "SELECT off_chip, to_device, sum(execution.runs), sum(exchanged_bytes * execution.runs), "
                      "sum(cycles * execution.runs) FROM execution JOIN programs ON program = programs.number JOIN "
                      "program_variables USING (program) JOIN variables ON variable = variables.number "
                      "WHERE type = 'StreamCopyMid' GROUP BY off_chip, to_device")
    }
    assert {"remote buffer, to the device", "remote buffer, from the device", "host, to the device"} <= set(expected)
    with opened(tmp_path / "report.html", "execution") as page:
        lines = page.locator("table:has(caption:text-is('Stream copies of an iteration')) tbody tr").all()
        found = {
            one.locator("td").first.inner_text(): tuple(
                float(cell.get_attribute("data-value")) for cell in one.locator(".number").all()[:3]
            ) for one in lines
        }
    assert found == expected


# --------------------------------------------------------------------------- everywhere
def test_every_page_shows_two_reports_beside_each_other(
    opened: Opener, folder: Path, facts: Facts, other_facts: Facts, tmp_path: Path,
) -> None:
    write_directory(other_facts, tmp_path / "other")
    with opened(write_comparison(folder, facts, tmp_path / "other", other_facts), "memory") as page:
        page.select_option("#which select", "both")
        held = [max(one.including_gaps for one in each.tables["tiles"]) for each in (facts, other_facts)]
        assert [digits(one)[2] for one in page.locator("#tile-readout").all_inner_texts()] == held
        page.locator("#memory .report").nth(1).locator("[role=tab]:text-is('Variables')").click()  # of its own report
        names = {one.name for one in other_facts.tables["variables"]}
        cells = page.locator("#memory .report").nth(1).locator("#tile tbody td:first-child").all_inner_texts()
        assert set(cells) <= names
        for anchor in ("insights", "liveness", "program", "operations", "graph", "execution", "environment"):
            go(page, anchor)
            assert page.locator(f"#{anchor} .report").count() == 2
            regions = [one.get_attribute("aria-label") for one in page.locator("[role=region]:visible").all()]
            assert len(regions) == len(set(regions))  # a reader of the screen tells them apart
            assert page.locator(f"#{anchor} .which").all_inner_texts() == [folder.name, "other"]
        go(page, "operations")
        counts = [digits(one)[1] for one in page.locator("#operation-table caption").all_inner_texts()]
        assert counts == [len(each.tables["operations"]) for each in (facts, other_facts)]
        page.locator("#operations .report").nth(1).locator("tbody tr").first.click()
        slowest = max(other_facts.tables["operations"], key=lambda one: one.cycles)
        assert slowest.name in page.inner_text("#details-title")
        page.keyboard.press("Escape")
        page.select_option("#which select", "second")
        go(page, "execution")
        assert digits(page.inner_text("#execution .page > p.soft"))[2] == other_facts.figure("cycles_per_update")
        go(page, "compare")
        assert "numbers differ" in page.inner_text("#compare-verdict")
        page.evaluate("offerBoth({...first.other, version: 1})")  # of another version of torchipu
        assert page.inner_text("#which") == "The other page has another version: only its numbers are compared."
        go(page, "overview")
        assert shown(page, "#overview .cards .card:nth-child(1) dd .number") == facts.figure("cycles_per_update")


def test_units_are_chosen_for_all_pages(page: Any, folder: Path) -> None:
    names = ("cycles_per_update", "microseconds_per_update", "tile_memory_bytes")
    cycles, microseconds, size = (
        float(row_of(folder, f"SELECT value FROM facts WHERE name = '{name}'")[0]) for name in names
    )
    card = page.locator("#overview .card >> nth=0").locator("dd .number")
    assert card.inner_text() == f"{cycles / 1e3:.0f} k cycles"
    try:
        page.select_option("header label:has-text('Time in') select", "µs")
        page.select_option("header label:has-text('Memory in') select", "KiB")
        assert card.inner_text() == f"{microseconds:.3f} µs"
        assert float(card.get_attribute("data-value")) == cycles  # what it is a number of stays
        assert f"of {size / 1024:.0f} KiB" in page.inner_text("#overview .cards")
        go(page, "execution")
        table = page.locator("#execution table:has(caption:text-is('Functions')) tbody tr").first
        assert re.fullmatch(r"[\d.,]+ µs", table.locator("td:nth-child(5) .number").inner_text())
        go(page, "memory")
        assert page.inner_text("#tile-readout").endswith(" KiB")
    finally:
        page.select_option("header label:has-text('Time in') select", "cycles")
        page.select_option("header label:has-text('Memory in') select", "B")
    go(page, "overview")
    assert card.inner_text().endswith("cycles")


def test_pictures_are_saved_as_files(page: Any, tmp_path: Path) -> None:
    go(page, "memory")
    with page.expect_download() as asked:
        page.locator("#tile-maps figure").first.locator("button:has-text('Save picture')").press("Enter")
    asked.value.save_as(tmp_path / "map.png")
    canvas = page.locator("#tile-maps canvas").first
    content = (tmp_path / "map.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert [int.from_bytes(content[at : at + 4], "big") for at in (16, 20)] == [
        canvas.evaluate("one => one.width"), canvas.evaluate("one => one.height"),
    ]
    go(page, "overview")
    with page.expect_download() as asked:
        page.locator("#overview svg + button.save").first.click()
    asked.value.save_as(tmp_path / "bars.svg")
    drawing = (tmp_path / "bars.svg").read_text(encoding="utf-8")
    assert drawing.startswith("<svg")
    assert "var(--" not in drawing
    assert drawing.count("<rect") > 3


def test_everything_is_found_from_anywhere(page: Any, folder: Path) -> None:
    go(page, "host")
    page.keyboard.press("/")
    page.keyboard.type("recurrence")
    found = page.locator("#found button")
    kinds = {one.split(":")[0] for one in page.locator("#found > p").all_inner_texts()}
    assert {"Operation", "Variable", "Program"} <= kinds
    page.keyboard.press("ArrowDown")
    assert "recurrence" in page.evaluate("document.activeElement.textContent")
    page.keyboard.press("Enter")
    assert "recurrence" in page.inner_text("#details-title")
    page.keyboard.press("Escape")
    for text, anchor, words in (
        ("acc.head.bias", "memory", "acc.head.bias"), ("gradient_accumulation", "environment", "gradient_accumulation"),
        ("lstmgatesgrad", "program", "LstmGatesGrad"), ("pipeline", "pipeline", "Bubble"),
    ):
        page.fill("#search", text)
        found.first.click()
        page.wait_for_selector(f"section#{anchor}:not([hidden])")
        if page.locator("#details").is_visible():
            assert words in page.inner_text("#details")
            page.keyboard.press("Escape")
        else:
            assert words in page.inner_text(f"#{anchor}")
    page.fill("#search", "no such thing at all")
    assert page.inner_text("#found") == "Nothing has this in its name."
    page.keyboard.press("Escape")
    assert not page.locator("#found").is_visible()
    page.fill("#search", "")


def test_axe_finds_nothing_in_what_opens(opened: Opener, folder: Path) -> None:
    from axe_playwright_python.sync_playwright import Axe

    def found(place: str) -> str:
        result = Axe().run(page, context=place)
        return result.generate_report() if result.violations_count else ""

    with opened(folder / "report.html", "memory", bypass_csp=True) as page:
        for tab in ("Addresses", "Compute sets"):
            page.click(f"#tile [role=tab]:text-is('{tab}')")
            assert found("#tile") == ""
        page.fill("#search", "recurrence")
        assert found("header") == ""
        page.locator("#found li:has-text('OnTileExecute') button").first.click()
        assert found("#details") == ""
        page.keyboard.press("Escape")
        go(page, "program")
        page.locator("#program-tree summary").nth(1).click()
        page.locator("#program-tree .tree .tree").first.wait_for()
        assert found("#program-tree") == ""
        go(page, "liveness")
        page.click("#live-step button:has-text('Keep it beside others')")
        assert found("#steps-beside") == ""


def test_a_number_says_how_far_it_can_be_trusted(opened: Opener, facts: Facts, tmp_path: Path) -> None:
    operations = tuple(one._replace(confidence="estimate") for one in facts.tables["operations"])
    host = (rows.HostTime(0, "gemm", "kernel", 4, 120.5, 0.75, 3.5, 1.25, "measured"),)
    path = tmp_path / "marks.html"
    path.write_text(page_of(Facts({**facts.tables, "operations": operations, "host": host}), "marks"), encoding="utf-8")
    mark = "one => getComputedStyle(one, '::after').content"
    with opened(path) as page:
        found = []
        for anchor, how in (("host", "measured"), ("operations", "estimate"), ("memory", "modelled")):
            go(page, anchor)
            found.append(page.locator(f"#{anchor} .number[data-confidence={how}]").first.evaluate(mark)[1])
        assert found == ["●", "○", "◐"]
        go(page, "overview")
        assert all(sign in page.locator("#overview .legend").last.inner_text() for sign in found)
