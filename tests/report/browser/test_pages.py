"""The pages of a report in Chromium: all can be reached and read, tell what the database tells, and stay at home."""

from __future__ import annotations

import gzip
import json
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.report.browser.conftest import digits, go, row_of, shown, shown_all
from torchipu import pva
from torchipu.report.directory import write_comparison, write_directory
from torchipu.report.facts import rows
from torchipu.report.facts.gather import Facts
from torchipu.report.page import page_of
from torchipu.report.page.page import PAGES, scripts

Opener = Callable[..., Any]
HOSTILE = "<script>alert('x')</script><img src=x onerror=alert(1)>\"; DROP TABLE steps; --"


ALONE = "for (const [name, known] of pages) { known.seen = false; put(document.querySelector(`#${name} .page`)); }"
"""Empties pages that were seen: axe, which looks at hidden parts too, takes half as long."""


def with_all_tables(facts: Facts) -> Facts:
    extra = {
        "advice": (
            rows.Advice(0, "balance", f"stage 0 waits {HOSTILE}", "move a block", "blocks=...", "12 %", "a.py", 3),
        ),
        "host": (rows.HostTime(0, HOSTILE, "kernel", 4, 120.5, 0.75, 3.5, 1.25, "measured"),),
        "numerics": (rows.TensorNumerics(HOSTILE, 0, 64, 3, 0, 0.25, 1e-9, float("inf"), "[[-4, 10], [3, 54]]"),),
        "compile": (
            rows.CompileEvent(0, HOSTILE, "graph break", 1.5, "a guard failed"),
            rows.CompileEvent(1, "fuse", "pass", 2.5, ""),
        ),
        "alternatives": (
            rows.Alternative(0, "as it is", "", True, 1000, 2000, 500.0, ""),
            rows.Alternative(1, HOSTILE, "recompute='none'", False, 700_000, 1500, 650.0, "torchipu estimate train.py"),
            rows.Alternative(2, "a stage more", "stages=...", False, 0, 0, 0.0, "no such stage"),
        ),
        "steps": tuple(
            step._replace(cycles_by_tile=0 if step.vertices else -1)
            for step in facts.tables["steps"] if isinstance(step, rows.Step)
        ),
        "patterns": (rows.Pattern(0, 0, 10, 500), rows.Pattern(0, 10, 1000, 700)),
    }
    return Facts({**facts.tables, **extra})


# --------------------------------------------------------------------------- every page
@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (768, "dark"), (1400, "light")])
def test_every_page_shows_something_and_fits_its_window(
    opened: Opener, folder: Path, width: int, scheme: str,
) -> None:
    with opened(folder / "report.html", viewport={"width": width, "height": 800}, color_scheme=scheme) as page:
        assert page.locator("nav a").count() == len(PAGES) == 15
        assert page.locator("html").get_attribute("data-theme") == scheme
        for anchor in PAGES:
            go(page, anchor)
            assert len(page.inner_text(f"#{anchor} .page")) > 20
            assert page.locator("section:visible").count() == 1
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.locator("nav a[aria-current]").inner_text() == PAGES[anchor]


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (1400, "dark"), (360, "light")])
def test_axe_finds_nothing(opened: Opener, facts: Facts, tmp_path: Path, width: int, scheme: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    path = tmp_path / "all.html"
    path.write_text(page_of(with_all_tables(facts), "all"), encoding="utf-8")
    # axe is put into the page, which its policy would refuse.
    with opened(path, viewport={"width": width, "height": 800}, color_scheme=scheme, bypass_csp=True) as page:
        for anchor in PAGES:
            page.evaluate(ALONE)
            go(page, anchor)
            found = Axe().run(page)
            assert found.violations_count == 0, f"{anchor}: {found.generate_report()}"
        go(page, "operations")
        page.click("#operation-table tbody tr >> nth=0")
        assert Axe().run(page).violations_count == 0


def test_the_page_is_one_file_whose_policy_forbids_all_else(folder: Path) -> None:
    text = (folder / "report.html").read_text(encoding="utf-8")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy
    assert policy[1].startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy[1]
    assert not re.search(r"(?:src|href)=\"(?!#|data:)", text.split('<script type="text/plain"')[0])
    assert len(scripts()) < 120_000
    assert "</script" not in scripts()


# --------------------------------------------------------------------------- numbers agree
def test_numbers_are_those_of_the_database_and_the_summary(opened: Opener, folder: Path) -> None:
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    with opened(folder / "report.html") as page:
        cards = "#overview .cards .card:nth-child({}) dd .number"
        assert shown(page, cards.format(1)) == summary["cycles_per_update"]
        assert shown(page, cards.format(2)) == summary["samples_per_second"]
        assert shown(page, cards.format(3)) == summary["fullest_tile_bytes"]
        assert shown(page, cards.format(3)) == row_of(folder, "SELECT max(including_gaps) FROM tiles")[0]
        assert shown(page, cards.format(5)) == row_of(folder, "SELECT sum(flops) FROM operations")[0]
        assert shown(page, cards.format(6)) == row_of(folder, "SELECT count(*) FROM operations")[0]
        assert f"{summary['cycles_per_update']:,}" in page.inner_text("#overview .cards")
        go(page, "execution")
        steps, runs, cycles = digits(page.inner_text("#execution .page > p.soft"))[:3]
        assert steps == summary["steps_per_update"] == row_of(folder, "SELECT count(*) FROM execution")[0]
        assert (runs, cycles) == (row_of(folder, "SELECT count(*) FROM runs")[0], summary["cycles_per_update"])
        go(page, "memory")
        ipu, tile, held = row_of(folder, "SELECT ipu, tile, including_gaps FROM tiles ORDER BY 3 DESC, 1, 2 LIMIT 1")
        assert digits(page.inner_text("#tile-readout")) == [ipu, tile, held]
        always = row_of(folder, f"SELECT always FROM tiles WHERE ipu = {ipu} AND tile = {tile}")[0]
        assert shown(page, "#tile dd:nth-of-type(3) .number") == always
        go(page, "liveness")
        peak = row_of(folder, "SELECT step, live_bytes, fullest_bytes FROM liveness ORDER BY 2 DESC, 1 LIMIT 1")
        assert digits(page.inner_text("#live-step h3"))[0] == peak[0]
        assert [shown(page, f"#live-step dd:nth-of-type({at}) .number") for at in (2, 3)] == list(peak[1:])
        go(page, "pipeline")
        busy = row_of(folder, 'SELECT sum("end" - "begin") FROM runs WHERE function IN ("1F", "1B")')[0]
        stages = "#pipeline table:has-text('Stages in')"
        assert shown(page, f"{stages} tbody tr:nth-child(2) td:nth-child(7) .number") == busy


def test_an_op_opens_the_line_that_wrote_it(opened: Opener, folder: Path) -> None:
    one = row_of(folder, "SELECT name, file, line, code, module, cycles FROM operations ORDER BY cycles DESC LIMIT 1")
    with opened(folder / "report.html", "operations") as page:
        page.click("#operation-table tbody tr >> nth=0")
        assert one[0] in page.inner_text("#details-title")
        assert page.inner_text("#details .source") == f"{one[1]}:{one[2]}"
        assert page.inner_text("#details pre") == one[3]
        assert one[4] in page.inner_text("#details dl")
        assert f"{one[5]:,}" in page.inner_text("#details dl")
        page.click("#details button:has-text('In Execution')")
        page.wait_for_selector("#execution:not([hidden])")
        assert one[0] in page.inner_text("#slice")


def test_an_op_shows_the_stack_of_lines_that_led_to_it(opened: Opener, facts: Facts, tmp_path: Path) -> None:
    callers = json.dumps([[f"/a/{HOSTILE}.py", 7, "model(x)"], ["/a/b.py", 9, HOSTILE]])
    operations = tuple(one._replace(callers=callers) for one in facts.tables["operations"])
    path = tmp_path / "stack.html"
    path.write_text(page_of(Facts({**facts.tables, "operations": operations}), "stack"), encoding="utf-8")
    with opened(path, "liveness") as page:
        page.click("#live-step details.stack summary")
        lines = page.locator("#live-step details.stack li")
        assert lines.count() == 3
        assert lines.nth(1).inner_text() == f"/a/b.py:9 {HOSTILE}"
        assert lines.nth(2).inner_text() == f"/a/{HOSTILE}.py:7 model(x)"
        go(page, "operations")
        page.click("#operation-table tbody tr >> nth=0")
        assert page.locator("#details details.stack li").count() == 3


def test_ten_numbers_of_the_page_are_those_of_all_other_files(opened: Opener, folder: Path) -> None:
    """The trace is read as any tool would: its JSON goes into a table of slices, and SQL counts them."""
    report = pva.openReport(str(folder / "profile.pop"))
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    with opened(folder / "report.html", "execution") as page:
        steps, runs, cycles = digits(page.inner_text("#execution .page > p.soft"))[:3]
        go(page, "overview")
        cards = "#overview .cards .card:nth-child({}) dd .number"
        update, rate, fullest, _, flops, operations = (shown(page, cards.format(at)) for at in range(1, 7))
        go(page, "liveness")
        peak = shown(page, "#live-step dd:nth-of-type(2) .number")
        go(page, "memory")
        always = shown(page, "#tile dd:nth-of-type(3) .number")
    with closing(slices_of(folder / "trace.json.gz")) as trace:
        inner, outer, end = trace.execute(
            "SELECT sum(micro_batch IS NULL), sum(micro_batch IS NOT NULL), max(ts + dur) FROM slice",
        ).fetchone()
    hertz = row_of(folder, "SELECT value FROM facts WHERE name = 'clock_hz'")[0]
    assert steps == summary["steps_per_update"] == inner == row_of(folder, "SELECT count(*) FROM execution")[0]
    assert runs == outer == row_of(folder, "SELECT count(*) FROM runs")[0]
    assert cycles == update == summary["cycles_per_update"]
    assert round(end * float(hertz) / 1e6) == row_of(folder, 'SELECT max("end") FROM runs')[0] <= cycles
    assert rate == summary["samples_per_second"]
    held = [tile.memory.total.includingGaps for tile in report.compilation.tiles]
    assert fullest == summary["fullest_tile_bytes"] == max(held)
    assert flops == summary["flops_per_update"] == row_of(folder, "SELECT sum(flops) FROM operations")[0]
    assert operations == summary["operations"] == row_of(folder, "SELECT count(*) FROM operations")[0]
    assert peak == row_of(folder, "SELECT max(live_bytes) FROM liveness")[0]
    assert always == row_of(folder, "SELECT always FROM tiles ORDER BY including_gaps DESC, ipu, tile LIMIT 1")[0]


def slices_of(path: Path) -> sqlite3.Connection:
    """Return a table ``slice`` of a trace, as Perfetto has one."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    table = sqlite3.connect(":memory:")
    table.execute("CREATE TABLE slice (name, category, ts, dur, micro_batch)")
    table.executemany("INSERT INTO slice VALUES (?, ?, ?, ?, ?)", [
        (one["name"], one["cat"], one["ts"], one["dur"], one["args"].get("micro_batch"))
        for one in events if one["ph"] == "X"
    ])
    return table


# --------------------------------------------------------------------------- controls
def test_tables_sort_both_ways_filter_and_group(opened: Opener, folder: Path) -> None:
    with opened(folder / "report.html", "operations") as page:

        def column(at: int) -> list[float]:
            return shown_all(page, f"#operation-table tbody td:nth-child({at}) .number")

        heads = page.locator("#operation-table thead th")
        for at in range(heads.count()):
            for way in range(2):
                heads.nth(at).locator("button").click()
                assert heads.nth(at).get_attribute("aria-sort") in ("ascending", "descending")
                values = column(at + 1) if "amount" in (heads.nth(at).get_attribute("class") or "") else []
                assert values == sorted(values, reverse=heads.nth(at).get_attribute("aria-sort") == "descending"), way
        page.fill("#operation-filter", "second")
        named = row_of(folder, "SELECT count(*) FROM operations WHERE module = 'second' OR block = 'second' OR "
                               "file LIKE '%second%' OR code LIKE '%second%' OR name LIKE '%second%'")[0]
        assert digits(page.inner_text("#operation-table caption"))[0] == named > 0
        page.fill("#operation-filter", "")
        page.select_option("#operations select >> nth=0", "line")
        lines = row_of(folder, "SELECT count(DISTINCT file || ':' || line) FROM operations")[0]
        assert digits(page.inner_text("#operation-table caption"))[0] == lines
        page.select_option("#operations select >> nth=1", "update")
        updates = row_of(folder, "SELECT count(DISTINCT file || ':' || line) FROM operations WHERE leg = 'update'")[0]
        assert digits(page.inner_text("#operation-table caption"))[0] == updates


def test_tiles_open_by_pointer_and_keys_in_both_pictures(opened: Opener, folder: Path) -> None:
    with opened(folder / "report.html", "memory") as page:
        for view in ("map", "profile"):
            page.select_option("#memory select >> nth=1", view)
            canvas = page.locator("#tile-maps canvas").nth(1)
            box = canvas.bounding_box()
            canvas.click(position={"x": box["width"] / 2, "y": 5})
            ipu, tile, held = digits(page.inner_text("#tile-readout"))
            assert (ipu, tile > 0) == (1, True)
            assert held == row_of(folder, f"SELECT including_gaps FROM tiles WHERE ipu = 1 AND tile = {tile}")[0]
            canvas.press("ArrowRight")
            assert digits(page.inner_text("#tile-readout"))[1] == tile + 1
        page.select_option("#memory select >> nth=0", "code")
        code = f"SELECT sum(bytes) FROM tile_categories WHERE ipu = 1 AND tile = {tile + 1} AND category = 'code'"
        assert digits(page.inner_text("#tile-readout"))[2] == (row_of(folder, code)[0] or 0)
        assert page.input_value("#tile-number") == str(tile + 1)
        page.fill("#tile-number", "0")
        page.press("#tile-number", "Enter")
        page.click("#tile [role=tab]:text-is('Variables')")
        variables = page.locator("#tile table caption").inner_text()
        assert variables == "Variables on this tile"
        shares = row_of(folder, "SELECT count(*) FROM shares JOIN variables ON variable = number "
                                "WHERE ipu = 1 AND NOT off_chip AND first_tile = 0")[0]
        more = page.locator("#tile button:visible:has-text('Show all')")
        if more.count():
            more.click()
        assert page.locator("#tile tbody tr").count() == shares


def test_steps_of_liveness_move_by_slider_and_keys(opened: Opener, folder: Path) -> None:
    with opened(folder / "report.html", "liveness") as page:
        page.locator("#live-slider").fill("3")
        step, ipu = row_of(folder, "SELECT step, ipu FROM liveness LIMIT 1 OFFSET 3")
        assert digits(page.inner_text("#live-step h3"))[:2] == [step, ipu]
        live = row_of(folder, f"SELECT count(*) FROM variables WHERE ipu = {ipu} AND NOT always AND NOT off_chip AND "
                              f'"begin" <= {step} AND "end" >= {step}')[0]
        assert digits(page.inner_text("#live-step caption"))[0] == live
        page.locator("#liveness canvas").press("ArrowRight")
        following = row_of(folder, "SELECT step FROM liveness LIMIT 1 OFFSET 4")[0]
        assert digits(page.inner_text("#live-step h3"))[0] == following


def test_a_micro_batch_is_followed_through_all_ipus(opened: Opener, folder: Path) -> None:
    with opened(folder / "report.html", "pipeline") as page:
        page.fill("#micro-batch", "2")
        with closing(sqlite3.connect(folder / "profile.pop")) as connection:
            way = connection.execute(
                'SELECT action, "begin" FROM runs WHERE micro_batch = 2 AND function <> "" ORDER BY "begin"'
            ).fetchall()
        lines = page.locator("#journey tbody tr")
        names = [lines.nth(at).locator("td").first.inner_text() for at in range(lines.count())]
        assert names == [name for name, _ in way]
        begins = shown_all(page, "#journey td:nth-child(5) .number")
        assert begins == [begin for _, begin in way]
        assert {name[:2] for name, _ in way} == {"0F", "1F", "1B", "0B"}
        page.locator("#pipeline canvas").press("ArrowUp")
        assert "Micro-batch 3" in page.inner_text("#journey h3")
        page.select_option("#pipeline select >> nth=0", "stage")
        lines.first.click()
        assert "Operations of 0F" in page.inner_text("#details-title")


def test_the_time_line_zooms_and_tells_of_slices(opened: Opener, folder: Path) -> None:
    with opened(folder / "report.html", "execution") as page:
        canvas = page.locator("#execution canvas").first
        first = 'SELECT "begin", "end", action FROM runs WHERE ipu = 0 AND function <> "" LIMIT 1'
        begin, end, action = row_of(folder, first)
        box = canvas.bounding_box()
        whole = row_of(folder, "SELECT value FROM facts WHERE name = 'cycles_per_update'")[0]
        x = 84 + (begin + end) / 2 / int(whole) * (box["width"] - 84)
        canvas.click(position={"x": x, "y": 27})
        assert page.inner_text("#slice h3") == action
        page.click("#slice button:has-text('Zoom to')")
        before = canvas.screenshot()
        for key in ("+", "ArrowRight", "-", "0"):
            canvas.press(key)
            after = canvas.screenshot()
            assert after != before, key
            before = after


def test_tiles_are_seen_step_by_step_once_it_is_zoomed(opened: Opener, folder: Path) -> None:
    with opened(folder / "report.html", "execution") as page:
        tiles = page.locator("#tiles canvas")
        page.click("text=Zoom to the longest step")
        longest = row_of(folder, "SELECT name, started, cycles_by_tile, cycles * runs FROM execution "
                                 "WHERE vertices AND ipu = 0 ORDER BY cycles * runs DESC, started LIMIT 1")
        assert longest[0] in page.inner_text("#slice h3")
        box = tiles.bounding_box()
        assert box["height"] > 200
        assert "Tiles 0 to 1471 of ipu0" in page.inner_text("#execution")
        middle, wide = longest[1] + longest[3] / 2, max(120, 4.5 * longest[3])
        share = (middle - max(0, middle - wide)) / (2 * wide)  # in the middle, unless it is one of the first
        tiles.click(position={"x": 84 + (box["width"] - 84) * share, "y": 8})
        assert longest[0] in page.inner_text("#slice h3")
        tile = int(re.search(r"Tile (\d+)\n", page.inner_text("#slice"))[1])
        assert tile < 60
        cycles = row_of(folder, f"SELECT value FROM patterns WHERE pattern = {longest[2]} AND first_tile <= {tile} AND "
                                f"end_tile > {tile}")
        assert shown(page, f"#slice dt:text-is('Tile {tile}') + dd .number") == (cycles or [0])[0]
        page.select_option("#execution label:has-text('Tiles') select", "16")
        tiles.press("ArrowDown")
        assert "Tiles 4 to 19 of ipu0" in page.inner_text("#execution")
        page.click("#execution button:has-text('All')")
        page.select_option("#execution label:has-text('IPU') select", "1")
        assert "ipu1" in page.inner_text("#tiles [role=status]")


def test_the_graph_opens_from_blocks_to_ops(opened: Opener, folder: Path) -> None:
    with opened(folder / "report.html", "graph") as page:
        boxes = page.locator("#graph-picture .node")
        blocks = "SELECT DISTINCT ipu, stage, block FROM operations WHERE leg = 'forward'"
        assert boxes.count() == row_of(folder, f"SELECT count(*) FROM ({blocks})")[0]
        boxes.first.click()
        assert boxes.count() > 2
        page.keyboard.press("Enter")  # what the box holds has the focus
        assert boxes.first.get_attribute("aria-label").startswith("addmm")
        page.keyboard.press("Enter")
        assert page.locator("#details").is_visible()
        page.keyboard.press("Escape")
        assert page.locator("#graph-picture .flow").count() > 2


def test_the_theme_is_that_of_the_system_until_one_is_chosen(opened: Opener, folder: Path) -> None:
    with opened(folder / "report.html", color_scheme="dark") as page:
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 23, 29)"
        page.select_option("header label:has-text('Theme') select", "light")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_keys_alone_reach_everything(opened: Opener, folder: Path) -> None:
    with opened(folder / "report.html") as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
        for _ in range(30):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.hash") == "#operations":
                break
        page.keyboard.press("Enter")
        page.wait_for_selector("#operations:not([hidden])")
        seen = set()
        for _ in range(40):
            page.keyboard.press("Tab")
            seen.add(page.evaluate("document.activeElement.tagName"))
            if page.evaluate("document.activeElement.closest('tbody') !== null"):
                break
        page.keyboard.press("Enter")
        assert {"SELECT", "INPUT", "BUTTON", "DIV"} <= seen
        assert page.locator("#details").is_visible()
        page.keyboard.press("Escape")
        assert not page.locator("#details").is_visible()
        assert page.evaluate("document.activeElement.closest('tbody') !== null")


# --------------------------------------------------------------------------- compare
def test_a_run_beside_itself_differs_in_nothing(opened: Opener, folder: Path, facts: Facts) -> None:
    with opened(write_comparison(folder, facts, folder, facts), "compare") as page:
        assert page.inner_text("#compare-verdict") == "All numbers are the same."
        page.uncheck("#only-changed")
        changes = {one.get_attribute("data-value") for one in page.locator("#compare-table td:nth-child(5) span").all()}
        assert changes == {"0"}


def test_two_runs_beside_each_other_show_every_change(
    opened: Opener, folder: Path, facts: Facts, other_facts: Facts, tmp_path: Path,
) -> None:
    other = tmp_path / "other"
    write_directory(other_facts, other)

    def change_of(page: Any, name: str) -> tuple[float, ...]:
        page.fill("#compare-filter", name)
        cells = page.locator("#compare-table tbody tr").first.locator("[data-value]")
        return tuple(float(one.get_attribute("data-value")) for one in cells.all())

    cycles = [json.loads((one / "summary.json").read_text())["cycles_per_update"] for one in (folder, other)]
    steps = [row_of(one, "SELECT count(*) FROM execution")[0] for one in (folder, other)]
    with opened(write_comparison(folder, facts, other, other_facts), "compare") as page:
        shares = [one.inner_text() for one in page.locator("#compare-table td:nth-child(6)").all()]
        assert shares[0] == "new"
        assert change_of(page, "cycles_per_update") == (*cycles, cycles[1] - cycles[0])
        assert change_of(page, "steps_per_update") == (*steps, steps[1] - steps[0])
        assert "io_tiles" in page.inner_text("#compared")
    with opened(folder / "report.html", "compare") as page:  # any other page can be chosen
        page.set_input_files("#other-report", str(other / "report.html"))
        page.wait_for_selector("#compare-verdict")
        assert change_of(page, "cycles_per_update") == (*cycles, cycles[1] - cycles[0])
        page.set_input_files("#other-report", str(other / "summary.json"))
        page.wait_for_selector("text=is no report.html of torchipu")


# --------------------------------------------------------------------------- other tables, hostile names, sizes
def test_hostile_names_are_text_on_every_page(opened: Opener, facts: Facts, tmp_path: Path) -> None:
    changed = {
        "operations": tuple(
            one._replace(name=HOSTILE, code=HOSTILE, module=HOSTILE, block=HOSTILE, file=HOSTILE)
            for one in facts.tables["operations"]
        ),
        "variables": tuple(one._replace(name=HOSTILE) for one in facts.tables["variables"]),
        "steps": tuple(one._replace(name=HOSTILE, codelets=HOSTILE) for one in facts.tables["steps"]),
        "settings": (rows.Setting("options", HOSTILE, HOSTILE, ""),),
    }
    path = tmp_path / "hostile.html"
    path.write_text(page_of(Facts({**with_all_tables(facts).tables, **changed}), HOSTILE), encoding="utf-8")
    with opened(path) as page:
        assert page.inner_text("h1") == HOSTILE
        for anchor in PAGES:
            go(page, anchor)
            assert page.locator("main img").count() == page.locator("main script").count() == 0
        for anchor in ("operations", "liveness", "host", "numerics", "compile", "what-if", "environment"):
            assert HOSTILE in page.locator(f"#{anchor}").text_content(), anchor
    with opened(path, java_script_enabled=False) as page:
        assert HOSTILE in page.inner_text("#plain")
        assert page.locator("#plain img").count() == 0


def test_tables_that_others_fill_are_shown(opened: Opener, facts: Facts, tmp_path: Path) -> None:
    path = tmp_path / "all.html"
    path.write_text(page_of(with_all_tables(facts), "all"), encoding="utf-8")
    with opened(path) as page:
        assert "move a block blocks=..." in page.inner_text("#overview .advice")
        assert "Graph breaks\n1" in page.inner_text("#overview")
        go(page, "host")
        assert shown(page, "#host tbody td:nth-child(4) .number") == 120.5
        go(page, "numerics")
        assert "inf" in page.inner_text("#numerics tbody")
        assert page.locator("#exponents rect").count() == 8  # from 2^-4 to 2^3
        page.click("#exponents p button")
        assert page.locator("#details").is_visible()
        page.keyboard.press("Escape")
        go(page, "compile")
        assert page.locator("#compile table").count() == 2
        go(page, "what-if")
        assert "torchipu estimate train.py" in page.inner_text("#alternative")
        assert "+30.0 %" in page.inner_text("#what-if table")
        assert page.locator("#alternative svg").count() == 2
        page.select_option("#what-if select", "2")
        assert "Refused: no such stage" in page.inner_text("#alternative")
        go(page, "execution")
        page.locator("#execution table tbody tr button:has-text('0F')").first.click()
        page.click("#details button:has-text('In Execution')")
        assert "Cycles by tile" in page.inner_text("#slice")
        assert page.locator("#slice canvas").get_attribute("aria-label").endswith("by tile, at most 700")


def test_a_million_steps_are_drawn_in_as_many_strokes_as_can_be_seen(
    opened: Opener, facts: Facts, tmp_path: Path,
) -> None:
    steps = tuple(
        rows.Step(
            "0F", at, ("compute", "exchange", "sync")[at % 3], f"s{at}", 0, at * 10, 10, 1, False, 0, 0, "", 1.0, -1,
            -1,
        )
        for at in range(1000)
    )
    runs = tuple(
        rows.Run(at, 0, "0F", f"0F{at}", at, "forward", at * 10_000, (at + 1) * 10_000, 0) for at in range(1000)
    )
    known = tuple(
        one._replace(value="10000000") if one.name == "cycles_per_update" else one for one in facts.tables["facts"]
    )
    many = Facts({**facts.tables, "steps": steps, "runs": runs, "facts": known})
    path = tmp_path / "many.html"
    path.write_text(page_of(many, "many"), encoding="utf-8")
    count = "let strokes = 0; const fill = CanvasRenderingContext2D.prototype.fillRect;" \
            "CanvasRenderingContext2D.prototype.fillRect = function (...box) { strokes += 1; fill.apply(this, box); };"\
            "window.strokes = () => { const found = strokes; strokes = 0; return found; };"
    with opened(path) as page:
        page.evaluate(count)
        go(page, "execution")
        assert digits(page.inner_text("#execution .page > p.soft"))[0] == 1_000_000
        canvas = page.locator("#execution canvas").first
        for _ in range(16):
            page.evaluate("strokes()")
            canvas.press("+")
            assert 0 < page.evaluate("strokes()") < 4 * 4 * 1400
        # Deep within, each step is a slice of its own again.
        assert 3 < page.evaluate("redrawAll(), strokes()") < 150


def test_pages_print_all_of_themselves(opened: Opener, folder: Path) -> None:
    with opened(folder / "report.html") as page:
        assert len(page.pdf()) > 100_000
        page.emulate_media(media="print")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.locator("main section:visible").count() == len(PAGES)
        assert not page.locator("nav").is_visible()
        blank = "canvas => !new Uint32Array(canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height)" \
                ".data.buffer).some(pixel => pixel)"
        assert [one.evaluate(blank) for one in page.locator("canvas").all()].count(True) == 0
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        page.emulate_media(media="screen")
        assert page.locator("main section:visible").count() == 1


def test_without_scripts_there_is_a_summary(opened: Opener, folder: Path) -> None:
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    with opened(folder / "report.html", java_script_enabled=False) as page:
        text = page.inner_text("body")
        assert f"{summary['cycles_per_update']:,} cycles" in text
        assert "Operations that take most" in text
        assert not page.locator("nav").is_visible()
