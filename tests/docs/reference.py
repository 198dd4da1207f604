"""Writes the reference of public names by pdoc: ``python -m tests.docs.reference FOLDER [MODULES]``."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pdoc
from torch.library import CustomOpDef

from torchipu.options import Options

MODULES = [
    "torchipu", "torchipu.optim", "torchipu.fp8", "torchipu.target", "torchipu.poptorch", "torchipu.popdist",
    "torchipu.horovod.torch", "torchipu.transformers",
]
"""Those with names for users; the accelerator of Lightning has its names in Lightning's own modules."""


def public(module: ModuleType) -> dict[str, object]:
    """Return the public names of a module, those that it lists or else those that it defines, and what they mean."""
    own = [name for name, value in vars(module).items() if inspect.getmodule(value) is module and name[0] != "_"]
    return {name: getattr(module, name) for name in getattr(module, "__all__", own)}


def described() -> str:
    """Return the docstring of the options with what each of them does, which their declarations say."""
    lines = [
        f"- `{option.name}` (`{option.default!r}`): {option.metadata['help']}"
        + (f"; PopTorch: `{option.metadata['poptorch']}`" if option.metadata["poptorch"] else "")
        for option in fields(Options)
    ]
    return "\n".join([inspect.getdoc(Options) or "", "", "Options and their defaults:", "", *lines])


def main(folder: Path, modules: Sequence[str]) -> None:
    """Write a page for each module."""
    Options.__doc__ = described()
    for name in modules:
        module = import_module(name)
        for member, value in public(module).items():  # pdoc does not see names that are imported at their first use
            if isinstance(value, CustomOpDef):
                setattr(module, member, value._init_fn)  # an operator documents the function that it is made of
    pdoc.render.configure(docformat="google", show_source=False)
    pdoc.pdoc(*modules, output_directory=folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] or MODULES)
