"""Writes the reference of public names, by pdoc from their docstrings: ``python -m tests.docs.reference FOLDER``."""

from __future__ import annotations

import inspect
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pdoc
from torch.library import CustomOpDef

MODULES = [
    "torchipu", "torchipu.optim", "torchipu.fp8", "torchipu.target", "torchipu.poptorch", "torchipu.popdist",
    "torchipu.horovod.torch", "torchipu.transformers",
]
"""Those with names for users; the accelerator of Lightning has its names in Lightning's own modules."""


def public(module: ModuleType) -> dict[str, object]:
    """Return the public names of a module, those that it lists or else those that it defines, and what they mean."""
    own = [name for name, value in vars(module).items() if inspect.getmodule(value) is module and name[0] != "_"]
    return {name: getattr(module, name) for name in getattr(module, "__all__", own)}


def main(folder: Path) -> None:
    """Write a page for each module."""
    for name in MODULES:
        module = import_module(name)
        for member, value in public(module).items():  # pdoc does not see names that are imported at their first use
            if isinstance(value, CustomOpDef):
                setattr(module, member, value._init_fn)  # an operator documents the function that it is made of
    pdoc.render.configure(docformat="google", show_source=False)
    pdoc.pdoc(*MODULES, output_directory=folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
