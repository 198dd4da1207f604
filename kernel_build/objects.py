"""Object files: compiled on all cores, and again only where a source, a header that it includes or a flag changed."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools.errors import CompileError


def compile_all(
    compiler: Sequence[str], sources: Sequence[Path], folder: Path, flags: Sequence[str], workers: int | None, *,
    force: bool = False,
) -> list[str]:
    """Compile C files and return their object files.

    Args:
        compiler: The command that compiles C for an extension.
        sources: The files.
        folder: Where the object files are put.
        flags: Of the compiler.
        workers: How many are compiled at a time.
        force: Whether to compile what is new enough too.
    """
    folder.mkdir(parents=True, exist_ok=True)

    def compile_one(source: Path) -> str:
        target, depends, made_by = (folder / f"{source.stem}.{ending}" for ending in ("o", "d", "command"))
        command = [*compiler, *flags, "-MMD", "-MF", str(depends), "-c", str(source), "-o", str(target)]
        text = shlex.join(command)
        if force or not is_new_enough(target, depends) or not made_by.is_file() or made_by.read_text() != text:
            made_by.unlink(missing_ok=True)
            begun = time.time()
            if subprocess.run(command).returncode:
                raise CompileError(f"torchipu: {source} was not compiled; what the compiler says is above")
            os.utime(target, (begun, begun))  # what changes while the compiler reads is newer
            made_by.write_text(text)
        return str(target)

    # Those that take longest begin first, by the size of what there is to translate.
    with ThreadPoolExecutor(workers) as pool:
        made = [pool.submit(compile_one, source) for source in sorted(sources, key=weight, reverse=True)]
        try:
            return sorted(each.result() for each in made)
        finally:
            pool.shutdown(cancel_futures=True)  # after the first that fails


def weight(source: Path) -> int:
    """Return about how much work a source is: the size of its body, or its own."""
    body = Path("torchipu/_kernels") / f"{source.stem}_body.h"
    return (body if body.is_file() else source).stat().st_size


def is_new_enough(target: Path, depends: Path) -> bool:
    """Whether an object file is newer than all that it was made of, as the compiler noted down."""
    if not target.is_file() or not depends.is_file():
        return False
    made = target.stat().st_mtime_ns
    noted = shlex.split(depends.read_text(encoding="utf-8").replace("\\\n", " ").partition(":")[2])
    return all(Path(path).is_file() and Path(path).stat().st_mtime_ns <= made for path in noted)
