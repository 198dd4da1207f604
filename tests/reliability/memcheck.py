"""The kernels under memcheck of valgrind: reads of what nobody has written, and beyond what was asked.

``python -m tests.reliability memcheck --size 3`` runs the tests of so many files below ``tests/kernels``, the smallest
first, and goes on behind those of earlier runs, one that was broken off among them. Valgrind knows no AVX-512, so that
they run with AVX2, fifty times as slowly as by themselves. To import torch alone takes minutes so, which several files
share. The interpreter and torch are not clean, by design: what
counts is findings with a kernel of ours among the callers.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from tests.reliability.elsewhere import JUDGED, RECORDED, so_far_and_on

TESTS = Path(__file__).parents[1] / "kernels"
OURS = "_kernels/abi."
"""Part of the path of the extension module, which holds all kernels."""
OTHERS = ("*/libpython*", "*/bin/python*", "*/lib-dynload/*", "*/torch/lib/*", "*/numpy/*")
"""Files whose own findings are not told: of so many that valgrind would look for no more."""
AT_A_TIME = 8
"""Files that one process runs."""
SIZES = (1, 2, 4, 8, 16, 32)
KINDS = ("Cond", "Overlap", "Free", *(f"{kind}{size}" for kind in ("Value", "Addr") for size in SIZES))


def findings(command: Sequence[str], ours: str = OURS) -> tuple[int, list[str]]:
    """Run a Python command under memcheck.

    Args:
        command: Arguments of the interpreter.
        ours: Part of the path of a shared library.

    Returns:
        The status with which the command ended, and what kinds of findings have that library among the callers.

    Raises:
        FileNotFoundError: There is no valgrind.
    """
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise FileNotFoundError("there is no valgrind: it is a package of most systems")
    # Memory of objects comes from malloc, one piece for each: a pool would hide where one ends.
    environment = os.environ | {"TORCHIPU_ISA": "avx2", "PYTHONMALLOC": "malloc", "TORCHIPU_CACHE": "0"}
    with tempfile.TemporaryDirectory() as folder:
        said, spared = Path(folder) / "said.xml", Path(folder) / "others.supp"
        spared.write_text("".join(
            f"{{\n{kind} {obj}\nMemcheck:{kind}\nobj:{obj}\n}}\n" for kind in KINDS for obj in OTHERS
        ))
        watched = [
            valgrind, "--quiet", "--num-callers=20", "--error-limit=no", "--child-silent-after-fork=yes",
            f"--suppressions={spared}", "--xml=yes", f"--xml-file={said}", sys.executable, *command,
        ]
        ended = subprocess.run(watched, env=environment, capture_output=True, text=True, check=False)
        return ended.returncode, _kinds(said, ours)


def _kinds(path: Path, ours: str) -> list[str]:
    """Return the kind of each error of valgrind's XML that one of these callers is part of."""
    found = []
    for _, element in ElementTree.iterparse(path):  # of gigabytes, where others are not clean
        if element.tag != "error":
            continue
        kind = element.findtext("kind", "")
        is_leak = kind.startswith("Leak_")  # objects that live as long as the interpreter
        if not is_leak and any(ours in str(obj.text) for obj in element.iter("obj")):
            found.append(kind)
        element.clear()
    return found


def smallest_first() -> list[Path]:
    """Return the files with tests of kernels in the order in which they run: a short run ends some of them."""
    return sorted(TESTS.glob("test_*.py"), key=lambda path: (path.stat().st_size, path.name))


def run(size: int, recorded: Path = RECORDED, folder: Path = JUDGED) -> dict[str, int]:
    """Run the tests of so many files, the smallest first, those of earlier runs counted, each file once.

    Args:
        size: How many files.
        recorded: Where runs that came to their end have left what they found.
        folder: Where results are kept as files end.

    Returns:
        files: With tests of kernels, that were run.
        all files: With tests of kernels.
        findings: With a kernel among the callers.
        failed: Processes in which a test failed, or that did not end.
    """
    every = smallest_first()
    paths = every[:size]
    counts = so_far_and_on("memcheck", "files", recorded, folder, lambda first: (
        _of_files(paths[start : start + AT_A_TIME]) for start in range(first, len(paths), AT_A_TIME)
    ))
    return {"all files": len(every)} | {name: counts[name] for name in ("files", "findings", "failed")}


def _of_files(paths: Sequence[Path]) -> dict[str, int]:
    status, kinds = findings(("-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *map(str, paths)))
    none = 5  # status of pytest where files have no tests for this instruction set
    return {"files": len(paths), "findings": len(kinds), "failed": int(status not in (0, none))}
