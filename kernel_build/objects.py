"""Object files: compiled on all cores, and again only where a source, a header that it includes or a flag changed."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
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
            shown.begin()
            begun = time.time()
            if subprocess.run(command).returncode:
                raise CompileError(f"torchipu: {source} was not compiled; what the compiler says is above")
            os.utime(target, (begun, begun))  # what changes while the compiler reads is newer
            made_by.write_text(text)
        return str(target)

    shown = Progress(len(sources))
    # Those that take longest begin first, by the size of what there is to translate.
    with ThreadPoolExecutor(workers) as pool:
        made = [pool.submit(compile_one, source) for source in sorted(sources, key=weight, reverse=True)]
        try:
            for each in as_completed(made):
                each.result()
                shown.advance()
            return sorted(each.result() for each in made)
        finally:
            pool.shutdown(cancel_futures=True)  # after the first that fails


class Progress:
    """Says on standard error how far a compilation is: on a terminal in one line, elsewhere every tenth of the way.

    Nothing is said where nothing had to be compiled. pip shows it with ``-v``.

    Args:
        total: Sources.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = 0
        self.has_begun = False

    def begin(self) -> None:
        """Take note that something is compiled."""
        self.has_begun = True

    def advance(self) -> None:
        """Take note of one more that is done."""
        self.done += 1
        is_terminal, is_last = sys.stderr.isatty(), self.done == self.total
        is_due = is_terminal or is_last or 10 * self.done // self.total > 10 * (self.done - 1) // self.total
        if self.has_begun and is_due:
            text = f"torchipu: {self.done} of {self.total} kernel sources compiled"
            end = "\n" if is_last or not is_terminal else "\r"
            print(text, end=end, file=sys.stderr, flush=True)


def weight(source: Path) -> tuple[bool, int]:
    """Return about how much work a source is: whether it is tiles, dozens of them, and its size or its body's."""
    body = Path("torchipu/_kernels") / f"{source.stem}_body.h"
    return source.stem.endswith("_tiles"), (body if body.is_file() else source).stat().st_size


def is_new_enough(target: Path, depends: Path) -> bool:
    """Whether an object file is newer than all that it was made of, as the compiler noted down."""
    if not target.is_file() or not depends.is_file():
        return False
    made = target.stat().st_mtime_ns
    noted = shlex.split(depends.read_text(encoding="utf-8").replace("\\\n", " ").partition(":")[2])
    return all(Path(path).is_file() and Path(path).stat().st_mtime_ns <= made for path in noted)
