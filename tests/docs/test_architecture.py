"""The layers in docs/architecture.md are those that import-linter checks; paths in all pages lead somewhere."""

from __future__ import annotations

import importlib
import re
import tomllib
from itertools import groupby
from pathlib import Path

import pytest

from tests.checked import TESTS

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| (\d+) \| `(\w+)` \| .+ \| (no)? ?\|$", re.MULTILINE)
PAGES = ["README.md", "CONTRIBUTING.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
PLACES = ("torchipu", "torchipu/_kernels", "torchipu/poptorch", "examples")  # from where pages name files
FOLDERS = ("torchipu", "tests", "docs", "examples", "benchmarks")
# A path in backquotes or in a link; one in capitals stands for any.
QUOTED = re.compile(r"`(?!DIR|_body|\.py)([\w./-]+/|[\w./-]+\.(?:py|pyx|md|h|toml))`|\]\(([\w./-]+)\)")
IN_CODE = re.compile(rf"\b(?:{'|'.join(FOLDERS)})/[\w/.-]+\.(?:py|pyx|md|h|toml)\b")
DOTTED = re.compile(r"`(torchipu(?:\.\w+)+)[`(]")


def contract(name: str) -> dict[str, list[str]]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return next(one for one in settings["tool"]["importlinter"]["contracts"] if one["name"] == name)


def rows() -> list[tuple[int, str, str]]:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    return [(int(layer), module, torch) for layer, module, torch in ROW.findall(page)]


def test_layers_are_those_of_the_contract() -> None:
    by_layer = [{module for _, module, _ in group} for _, group in groupby(rows(), lambda row: row[0])]
    assert by_layer == [set(layer.split(" | ")) for layer in contract("data flows one way")["layers"]]
    assert [layer for layer, _ in groupby(layer for layer, _, _ in rows())] == list(range(1, len(by_layer) + 1))


def test_modules_without_torch_are_those_of_the_contract() -> None:
    named = {f"torchipu.{module}" for _, module, torch in rows() if torch == "no"}
    assert named == set(contract("the core does not know torch")["source_modules"])


def test_folders_of_poptorch_are_all_there_in_the_order_of_their_layers() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| `(\w+)/` \| ", page, re.MULTILINE)
    assert set(named) == {path.parent.name for path in (ROOT / "torchipu" / "poptorch").glob("*/__init__.py")}
    layers = contract("the sub-packages of poptorch stand on one another, and its doors on them")["layers"]
    places = [next(place for place, layer in enumerate(layers) if name in re.split(r"\W+", layer)) for name in named]
    assert places == sorted(places)


def prose(page: str) -> str:
    """Return a page without its blocks of code."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES)
def test_paths_in_a_page_are_there(page: str) -> None:
    named = {first or second for first, second in QUOTED.findall(prose(page))}
    named = {path for path in named if "FAMILY" not in path}  # which stands for a name
    places = (ROOT, (ROOT / page).parent, *(ROOT / place for place in PLACES))
    assert [path for path in sorted(named) if not any((place / path).exists() for place in places)] == []


@pytest.mark.parametrize("page", [page for page in PAGES if page != "docs/operators.md"])  # which names torch's
def test_names_of_ours_in_a_page_mean_something(page: str) -> None:
    assert [name for name in sorted(set(DOTTED.findall(prose(page)))) if not means_something(name)] == []


def means_something(name: str) -> bool:
    """Whether a dotted name can be imported, or is an attribute of what can."""
    module, _, attribute = name.rpartition(".")
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        return bool(module) and hasattr(importlib.import_module(module), attribute)
    return True


def test_paths_in_code_are_there() -> None:
    named = {
        (path, str(file.relative_to(ROOT)))
        for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")
        for path in IN_CODE.findall(file.read_text(encoding="utf-8"))
    }
    assert [(path, file) for path, file in sorted(named) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("path", TESTS)
def test_what_is_checked_under_sanitizers_is_there(path: str) -> None:
    assert (ROOT / path).exists()
