"""``torchipu.compile``: what ``torch.export`` has made, as a step for the emulated IPU."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import torch

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
        The step; it is called with the program's inputs, whose sizes are those of the export.

    Raises:
        CaptureError: It is a package of machine code, or no exported program.
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
    return InferenceStep(_Exported(program), options)


class _Exported(torch.nn.Module):
    """The module of an exported program.

    Args:
        program: The exported program.
    """

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        super().__init__()
        self.program = program.module(check_guards=False)

    def forward(self, *inputs: object, **named: object) -> object:
        """Return what the program returns."""
        return self.program(*inputs, **named)


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
