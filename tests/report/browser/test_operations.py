"""Operations and their execution, in a browser: by pointer and keys, beside what the database says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchipu
from tests.report.browser.conftest import Opener, column, digits, go, row_of, rows_of, shown
from tests.report.test_reports import facts_of
from torchipu.report.directory import write_directory
from torchipu.report.facts.gather import Facts


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
