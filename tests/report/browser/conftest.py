"""A browser, and pages of reports in it that may neither complain nor leave."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.report.browser.chromium import find_chromium
from tests.report.test_reports import facts_of, pipelined, with_io_tiles
from torchipu.report.directory import write_directory
from torchipu.report.facts.gather import Facts

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

Opener = Callable[..., Any]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = find_chromium()
    if path is None:
        words = "there is no Chromium: python -m tests.report.browser installs one"
        if os.environ.get("TORCHIPU_BROWSER") == "required":
            pytest.fail(words)
        pytest.skip(words)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def facts() -> Facts:
    """Two IPUs, a pipeline with recomputation, two replicas."""
    return facts_of(pipelined())


@pytest.fixture(scope="session")
def other_facts() -> Facts:
    """Another model, on one IPU with IO tiles."""
    return facts_of(with_io_tiles())


@pytest.fixture(scope="session")
def folder(facts: Facts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a report, whose path has spaces and letters that are not ASCII."""
    folder = tmp_path_factory.mktemp("mit Leerzeichen") / "größe 数 #1"
    write_directory(facts, folder)
    return folder


@contextmanager
def open_page(browser: Browser, path: Path, anchor: str = "", **context: Any) -> Iterator[Page]:
    """Open a page: nothing may go wrong in it, and nothing leaves."""
    made = browser.new_context(**{"viewport": {"width": 1400, "height": 900}, **context})
    page = made.new_page()
    wrong: list[str] = []
    page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: wrong.append(request.url) if request.url != page_url else None)
    page_url = path.as_uri()
    page.goto(page_url + (f"#{anchor}" if anchor else ""))
    if context.get("java_script_enabled", True):
        page.wait_for_selector("html[data-ready]")
    yield page
    made.close()
    assert wrong == []


@pytest.fixture
def opened(browser: Browser) -> Opener:
    """Opens a page, as `open_page` does."""
    return partial(open_page, browser)


def row_of(folder: Path, query: str) -> tuple[Any, ...]:
    """Return the first row that a query of ``profile.pop`` finds."""
    return rows_of(folder, query)[0]


def rows_of(folder: Path, query: str) -> list[tuple[Any, ...]]:
    """Return all of them."""
    with closing(sqlite3.connect(folder / "profile.pop")) as connection:
        return connection.execute(query).fetchall()


def shown(page: Page, selector: str) -> float:
    """Return a number of the page."""
    return float(page.locator(selector).first.get_attribute("data-value") or "nan")


def shown_all(page: Page, selector: str) -> list[float]:
    """Return all numbers that a selector finds, asked for at once."""
    found: list[float] = page.eval_on_selector_all(selector, "all => all.map((one) => Number(one.dataset.value))")
    return found


def digits(text: str) -> list[int]:
    """Return all whole numbers in a text."""
    return [int(one.replace(",", "")) for one in re.findall(r"\d[\d,]*", text)]


def go(page: Page, anchor: str) -> None:
    """Turn to a page by its link."""
    page.click(f"nav a[href='#{anchor}']")
    page.wait_for_selector(f"section#{anchor}:not([hidden])")


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
