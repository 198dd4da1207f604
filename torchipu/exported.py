"""``torchipu.compile``: what ``torch.export`` has made, as a step for the emulated IPU."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import TreeSpec, tree_flatten

from torchipu.capture.captured import Captured
from torchipu.errors import CaptureError
from torchipu.options import Options
from torchipu.step import InferenceStep

_OF_INDUCTOR = "aotinductor"
"""In the names of what an AOT package holds."""


def compile(
    program: torch.export.ExportedProgram | str | os.PathLike[str], options: Options | None = None,
) -> InferenceStep:
    """Return an exported program as a step for the emulated IPU.

    Args:
        program: What ``torch.export.export`` returned, or a ``.pt2`` file that ``torch.export.save`` wrote.
        options: What to emulate.

    Returns:
        The step; it is called with the program's inputs, whose sizes in one micro-batch are those of the export. Where
        the export names a size as one that may change, each one is compiled when it is first met.

    Raises:
        CaptureError: It is a package of machine code, or no exported program; when the step is called: the inputs are
            others than those of the export, or have other sizes.
        FileNotFoundError: There is no such file.
    """
    if isinstance(program, (str, os.PathLike)):
        program = _loaded(Path(program))
    if not isinstance(program, torch.export.ExportedProgram):
        raise CaptureError(
            f"torchipu.compile takes an exported program, got {type(program).__name__}",
            remedy='use torch.compile(model, backend="ipu"), torchipu.InferenceStep(model), or export it first: '
            "torch.export.export(model, inputs)",
        )
    return _ExportedStep(_Exported(program), options)


class _Exported(torch.nn.Module):
    """The module of an exported program.

    Args:
        program: The exported program.
    """

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        super().__init__()
        self.program = program.module(check_guards=True)

    def forward(self, *inputs: object, **named: object) -> object:
        """Return what the program returns."""
        return self.program(*inputs, **named)

    def check(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Ask torch's own guards whether the program was exported for inputs such as these.

        Args:
            inputs: Positional inputs of one micro-batch.
            named: Its inputs by name.

        Raises:
            CaptureError: They are others, or have other sizes.
        """
        expected = self.program._in_spec
        in_order = {name: named[name] for name in expected.child(1).context if name in named} | named
        leaves, found = tree_flatten((inputs, in_order))
        if found != expected:
            raise CaptureError(
                f"the program was exported for other inputs: expected {_told(expected)}, got {_told(found)}",
                detail=f"expected {expected}\ngot      {found}",
                remedy="pass as many inputs as it was exported with, by the same names and nested in the same way",
            )
        guards = getattr(self.program, "_guards_fn", None)
        try:
            if guards is not None:
                guards(*leaves)
        except AssertionError as error:
            sizes = ", ".join(str(list(leaf.shape)) for leaf in leaves if isinstance(leaf, torch.Tensor))
            raise CaptureError(
                f"the program was not exported for these sizes: {error}, got {sizes} in one micro-batch",
                remedy="pass inputs of the sizes of the export, or export it with dynamic_shapes, which names those "
                "that may change",
            ) from error


class _ExportedStep(InferenceStep):
    """A step that asks an exported program before it compiles it for other inputs."""

    model: _Exported

    def _capture(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Captured:
        self.model.check(arguments, keywords)
        return super()._capture(arguments, keywords)


def _told(inputs: TreeSpec) -> str:
    """Return how many inputs there are by place, and the names of the others."""
    by_place, by_name = inputs.children()
    names = f" and {', '.join(by_name.context)}" if by_name.context else ""
    return f"{by_place.num_leaves} by place{names}"


def _loaded(path: Path) -> torch.export.ExportedProgram:
    if not path.is_file():
        raise FileNotFoundError(f"there is no exported program {path}")
    if not zipfile.is_zipfile(path):
        raise CaptureError(
            f"{path} is no exported program, or is damaged: it is no archive",
            remedy="write it with torch.export.save",
        )
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    if any(_OF_INDUCTOR in name for name in names):
        raise CaptureError(
            f"{path} is an AOT package: it holds machine code for the host, and no program that could be compiled",
            remedy="save the exported program itself with torch.export.save, and give that",
        )
    try:
        return torch.export.load(path)
    except Exception as error:  # torch's, of several kinds
        raise CaptureError(
            f"{path} is no exported program, or is damaged: {str(error).partition(chr(10))[0]}",
            remedy="write it with torch.export.save, by this version of torch",
        ) from error
