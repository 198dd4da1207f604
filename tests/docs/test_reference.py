"""Every public name has a docstring, and pdoc makes of it what the conventions mean; ``make docs`` writes the pages."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

pytest.importorskip("pdoc")

from pdoc.doc import Module
from pdoc.docstrings import convert

from tests.docs.reference import MODULES, public

SECTIONS = re.compile(r"^\s*(Args|Attributes|Returns|Raises|Yields|Examples?|Notes?):\s*$", re.MULTILINE)


def docstrings(name: str) -> dict[str, str]:
    """Return those of a module, and of the classes, functions and modules that it makes public; not of data."""
    if name == "torchipu.transformers":
        pytest.importorskip("transformers")
    module = import_module(name)
    found = {name: Module(module).docstring}
    for member, value in public(module).items():
        is_alias = getattr(value, "__name__", member) != member  # the other name has the docstring
        if inspect.ismodule(value):
            found[value.__name__] = Module(value).docstring
        elif (inspect.isclass(value) or inspect.isroutine(value)) and not is_alias:
            found[f"{name}.{member}"] = Module(module).members[member].docstring
    return found


def test_the_names_of_both_interfaces_are_in_the_reference() -> None:
    assert {"torchipu.TrainStep", "torchipu.Options", "torchipu.statistics"} <= set(docstrings("torchipu"))
    assert len(docstrings("torchipu")) == len(import_module("torchipu").__all__)  # itself; not the version
    assert {"torchipu.poptorch.trainingModel", "torchipu.poptorch.enums"} <= set(docstrings("torchipu.poptorch"))


@pytest.mark.parametrize("module", MODULES)
def test_public_names_have_docstrings_that_render(module: str) -> None:
    for name, text in docstrings(module).items():
        assert text, f"{name} has no docstring"
        rendered = convert(text, "google", None)
        assert text.split(".")[0].split("`")[0] in rendered
        assert not SECTIONS.findall(rendered), f"pdoc does not know a section of {name}"


def test_the_page_has_names_that_are_imported_late_and_says_what_each_option_does(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.docs.reference", str(tmp_path), "torchipu"]
    subprocess.run(command, cwd=Path(__file__).parents[2], check=True, timeout=120)
    page = (tmp_path / "torchipu.html").read_text(encoding="utf-8")
    assert 'id="TrainStep"' in page
    assert "weight updates, each over <code>gradient_accumulation</code> micro-batches" in page
    assert "micro-batches whose gradients make one weight update; PopTorch:" in page
