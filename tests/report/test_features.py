"""The list of the report's features: each names tests that exist, and the documentation says the same."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.report.features import OWN, POPVISION, count_of, page

ROOT = Path(__file__).parents[2]


def test_every_feature_names_tests_that_exist() -> None:
    known: dict[str, set[str]] = {}
    for name in (name for one in (*POPVISION, *OWN) for name in one.tests):
        file, test = name.split("::")
        if file not in known:
            tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
            known[file] = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert f"test_{test}" in known[file], name


def test_there_are_as_many_as_popvision_had_and_each_is_told_once() -> None:
    assert (len(POPVISION), len(OWN)) == (36, 8)
    assert len({one.what for one in (*POPVISION, *OWN)}) == 44
    assert count_of((*POPVISION, *OWN)) >= 30


def test_the_page_of_the_documentation_is_the_list() -> None:
    """After a change: python -m tests.report.features docs/report_features.md."""
    assert (ROOT / "docs" / "report_features.md").read_text(encoding="utf-8") == page()
