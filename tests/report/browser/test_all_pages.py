"""What all pages have, in a browser: by pointer and keys, beside what the database says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.report.browser.conftest import Opener, digits, go, row_of, shown
from torchipu.report.directory import write_comparison, write_directory
from torchipu.report.facts import rows
from torchipu.report.facts.gather import Facts
from torchipu.report.page import page_of


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
