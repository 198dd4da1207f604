"""Memory, liveness and programs, in a browser: by pointer and keys, beside what the database says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.report.browser.conftest import column, digits, go, numbers, row_of, rows_of, shown_all
from torchipu import pva


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
