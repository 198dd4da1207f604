"""What entries of the compile cache depend on beside what they were made from: versions, and our own sources."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Iterator
from functools import cache

import torch

import torchipu


@cache
def surroundings(sources: tuple[str, ...]) -> str:
    """Return what is the same for all entries of a kind that a process makes.

    Args:
        sources: Our own folders and files on which they depend: a version that is worked at is another one after each
            change.
    """
    digests = " ".join(map(_digest_of, sources))
    return f"{torchipu.__version__} {digests} {torch.__version__} {sys.version} {platform.machine()}"


@cache
def _digest_of(source: str) -> str:
    """Return the digest of what a folder of ours, or a file, holds as Python."""
    root = torchipu.__path__[0]
    digest = hashlib.sha256()
    for file in sorted(_python_files(os.path.join(root, source))):
        with open(file, "rb", buffering=0) as read:
            digest.update(os.path.relpath(file, root).encode() + read.readall())
    return digest.hexdigest()


def _python_files(path: str) -> Iterator[str]:
    """Yield the Python files within a folder, or the file; of hundreds, `pathlib` takes longer than reading them."""
    if path.endswith(".py"):
        yield path
        return
    with os.scandir(path) as found:
        for one in found:
            if one.is_dir():
                yield from _python_files(one.path)
            elif one.name.endswith(".py"):
                yield one.path
