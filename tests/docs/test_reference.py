"""Every public name has a docstring, and pdoc makes of it what the conventions mean; ``make docs`` writes the pages."""

from __future__ import annotations

import inspect
import re
from importlib import import_module

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
