"""Object files: compiled on all cores, and again only where a source, a header that it includes or a flag changed."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from setuptools.errors import CompileError


def compile_all(
    compiler: Sequence[str], sources: Sequence[Path], folder: Path, flags: Sequence[str], workers: int | None, *,
    header: Path | None = None, translate: Callable[[], Path] | None = None, translated_flags: Sequence[str] = (),
    force: bool = False,
) -> list[str]:
    """Compile C files and return their object files.

    Args:
        compiler: The command that compiles C for an extension.
        sources: The files.
        folder: Where the object files are put.
        flags: Of the compiler.
        workers: How many are compiled at a time.
        header: What the files include first, by its name alone. It is translated once, where the compiler is GCC, and
            read from there.
        translate: Makes one more file, while others are compiled.
        translated_flags: Of that file, behind those of all.
        force: Whether to compile what is new enough too.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shown = Progress(len(sources) + (translate is not None))

    def compile_one(source: Path, precompiled: Path | None, further_flags: Sequence[str] = ()) -> str:
        found_first = [f"-I{precompiled.parent}"] if precompiled else []
        target = folder / f"{source.stem}.o"
        command = [*compiler, *found_first, *flags, *further_flags, "-c"]
        compile_to(target, source, command, precompiled, shown.begin, force=force)
        return str(target)

    # Those that take longest begin first, by the size of what there is to translate.
    with ThreadPoolExecutor(workers) as pool:
        try:
            made = [pool.submit(lambda: compile_one(translate(), None, translated_flags))] if translate else []
            precompiled = None
            if header is not None:
                precompiled = folder / "precompiled" / f"{header.name}.gch"
                precompiled.parent.mkdir(exist_ok=True)
                compile_to(precompiled, header, [*compiler, *flags, "-x", "c-header"], None, shown.begin, force=force)
            ordered = sorted(sources, key=weight, reverse=True)
            made += [pool.submit(compile_one, source, precompiled) for source in ordered]
            for each in as_completed(made):
                each.result()
                shown.advance()
            return sorted(each.result() for each in made)
        finally:
            pool.shutdown(cancel_futures=True)  # after the first that fails


def compile_to(
    target: Path, source: Path, command: Sequence[str], precompiled: Path | None, begin: Callable[[], None], *,
    force: bool,
) -> None:
    """Compile a file, unless what came of it is new enough.

    Args:
        target: What is written; beside it, what it depends on and the command that made it.
        source: What is compiled.
        command: Of the compiler, without files.
        precompiled: The header that is read in place of what the compiler would note down.
        begin: Is called before the compiler.
        force: Whether to compile in any case.
    """
    depends, made_by = target.with_suffix(".d"), target.with_suffix(".command")
    whole = [*command, "-MMD", "-MF", str(depends), str(source), "-o", str(target)]
    text = shlex.join(whole)
    is_made = is_new_enough(target, depends, precompiled) and made_by.is_file() and made_by.read_text() == text
    if is_made and not force:
        return
    made_by.unlink(missing_ok=True)
    begin()
    begun = time.time()
    if subprocess.run(whole).returncode:
        raise CompileError(f"torchipu: {source} was not compiled; what the compiler says is above")
    os.utime(target, (begun, begun))  # what changes while the compiler reads is newer
    made_by.write_text(text)


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


def is_new_enough(target: Path, depends: Path, precompiled: Path | None) -> bool:
    """Whether a file is newer than what the compiler noted that it was made of, and than a precompiled header."""
    if not target.is_file() or not depends.is_file():
        return False
    made = target.stat().st_mtime_ns
    noted = shlex.split(depends.read_text(encoding="utf-8").replace("\\\n", " ").partition(":")[2])
    made_of = [Path(path) for path in noted] + ([] if precompiled is None else [precompiled])
    return all(path.is_file() and path.stat().st_mtime_ns <= made for path in made_of)
