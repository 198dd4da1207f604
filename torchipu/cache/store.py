"""Entries in a folder that several processes and hosts share: each is whole or not there, old ones make room."""

from __future__ import annotations

import contextlib
import logging
import os
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from torchipu import __version__
from torchipu.cache import settings
from torchipu.stored import tensor_file

logger = logging.getLogger("torchipu.cache")

KIND = "torchipu cached capture"
LAYOUT = "1"
"""Of the entries: raised where those of before cannot be read any more."""
SUFFIX = ".capture"
LOCK = "evict.lock"
STALE_SECONDS = 3600.0
"""After which what a process was writing is taken to be left by one that was killed."""
_REFUSED: set[str] = set()
"""Folders that a warning has named."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of the cache.

    Attributes:
        path: Of the file.
        num_bytes: Its size.
        used: When it was last read or written, in seconds since 1970.
        texts: What its header says: ``what``, ``version``; empty where that cannot be read.
    """

    path: Path
    num_bytes: int
    used: float
    texts: Mapping[str, str]


class Store:
    """A folder of entries.

    No method raises because of the file system but `opened`: where an entry cannot be written there is none, with a
    warning unless the caller wants none.

    Args:
        folder: Of the cache.
        most_bytes: That entries may take together.
    """

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self.folder = folder
        self.most_bytes = most_bytes

    @classmethod
    def opened(cls) -> Store:
        """Return the store that the environment asks for; its folder is made, for the user alone.

        Raises:
            OSError: The folder cannot be made, or is one that others can write into.
            OptionsError: The size in the environment is none.
        """
        folder, most_bytes = settings.folder(), settings.most_bytes()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        reason = settings.refusal_of(folder)
        if reason:
            raise OSError(f"{folder}: {reason}")
        return cls(folder, most_bytes)

    @classmethod
    def usable(cls) -> Store | None:
        """Return the cache; None where there is none, with one warning for each folder that cannot be used.

        Raises:
            OptionsError: The size in the environment is none.
        """
        if not settings.is_on():
            return None
        try:
            return cls.opened()
        except OSError as error:
            where = str(settings.folder())
            if where not in _REFUSED:
                _REFUSED.add(where)
                warnings.warn(
                    f"torchipu: the compile cache is not used: {error}. Set {settings.DIRECTORY} to a folder of your "
                    f"own that others cannot write into, or {settings.SWITCH}=0", stacklevel=2,
                )
            return None

    # ------------------------------------------------------------------ reading
    def names(self, prefix: str = "") -> list[str]:
        """Return the names of entries that begin so, the last used first; half written files are none."""
        found = [(used, path.name.removesuffix(SUFFIX)) for path, _, used in self._files()]
        return [name for _, name in sorted(found, reverse=True) if name.startswith(prefix)]

    def read_texts(self, name: str) -> dict[str, str] | None:
        """Return the header of an entry, not yet held to its checksum; None where it is gone, foreign or damaged."""
        path = self._path(name)
        try:
            return _checked(tensor_file.read_texts(path), name)
        except FileNotFoundError:
            return None
        except (ValueError, OSError) as error:
            self._drop(path, error)
            return None

    def read(self, name: str) -> tuple[dict[str, torch.Tensor], dict[str, str]] | None:
        """Return an entry, which is now the last used; None where it is gone, foreign or damaged."""
        path = self._path(name)
        try:
            tensors, texts = tensor_file.read(path)
            texts = _checked(texts, name)
        except FileNotFoundError:
            return None
        except (ValueError, OSError) as error:
            self._drop(path, error)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return tensors, texts

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}{SUFFIX}"

    def _drop(self, path: Path, error: Exception) -> None:
        """Remove an entry that cannot be used: it is made anew."""
        logger.warning("the entry %s of the compile cache is not used: %s", path, error)
        if isinstance(error, ValueError):
            with contextlib.suppress(OSError):
                path.unlink()

    def _files(self) -> Iterator[tuple[Path, int, float]]:
        """Yield each entry with its size and when it was last used; what vanishes meanwhile is left out."""
        try:
            with os.scandir(self.folder) as found:
                for one in found:
                    if one.name.endswith(SUFFIX) and not one.name.startswith("."):
                        with contextlib.suppress(OSError):
                            status = one.stat(follow_symlinks=False)
                            yield Path(one.path), status.st_size, status.st_mtime
        except OSError as error:
            logger.debug("the compile cache %s is not listed: %s", self.folder, error)

    # ------------------------------------------------------------------ writing
    def write(
        self, name: str, tensors: Mapping[str, torch.Tensor], texts: Mapping[str, str], *, is_told: bool = True,
    ) -> bool:
        """Write an entry, and make room for it.

        Args:
            name: By which it is found.
            tensors: By name.
            texts: By name.
            is_told: Whether a warning says that it cannot be written; else the log does.

        Returns:
            Whether it is there.
        """
        path = self._path(name)
        described = {"kind": KIND, "layout": LAYOUT, "version": __version__, "name": name, **texts}
        try:
            tensor_file.write(path, tensors, described)
        except OSError as error:
            if not is_told:
                logger.debug("%s is not written: %s", path, error)
                return False
            warnings.warn(
                f"torchipu: a capture is not cached in {self.folder}: {error}. Free some room there, or set "
                f"{settings.DIRECTORY} to another folder, or {settings.SWITCH}=0 to do without", stacklevel=2,
            )
            return False
        self.evict()
        return True

    def evict(self) -> int:
        """Remove the entries that were not used for longest until the rest fits; return how many.

        One process does so at a time: two would remove twice as much.
        """
        files = sorted(self._files(), key=lambda file: file[2])
        excess = sum(size for _, size, _ in files) - self.most_bytes
        self._remove_leftovers()
        if excess <= 0:
            return 0
        from filelock import FileLock, Timeout

        removed = 0
        try:
            with FileLock(self.folder / LOCK, timeout=0):
                files = sorted(self._files(), key=lambda file: file[2])
                excess = sum(size for _, size, _ in files) - self.most_bytes
                for path, size, _ in files:
                    if excess <= 0:
                        break
                    with contextlib.suppress(OSError):
                        path.unlink()
                        removed += 1
                        excess -= size
        except (Timeout, OSError) as error:
            logger.debug("room is not made in %s: %s", self.folder, error)
        return removed

    def _remove_leftovers(self) -> None:
        """Remove what processes that were killed have left half written."""
        with contextlib.suppress(OSError):
            for path in self.folder.glob(f".*{SUFFIX}.*"):
                with contextlib.suppress(OSError):
                    if time.time() - path.stat().st_mtime > STALE_SECONDS:
                        path.unlink()

    # ------------------------------------------------------------------ for users
    def entries(self) -> list[Entry]:
        """Return all entries, the last used first."""
        found = []
        for path, size, used in sorted(self._files(), key=lambda file: -file[2]):
            try:
                texts = tensor_file.read_texts(path)
            except (ValueError, OSError):
                texts = {}
            found.append(Entry(path, size, used, texts))
        return found

    def clear(self) -> int:
        """Remove all entries, and what was left half written; return how many entries."""
        removed = 0
        for path, _, _ in list(self._files()):
            with contextlib.suppress(OSError):
                path.unlink()
                removed += 1
        for path in (*self.folder.glob(f".*{SUFFIX}.*"), self.folder / LOCK):
            with contextlib.suppress(OSError):
                path.unlink()
        return removed

    def verify(self) -> dict[Path, str]:
        """Return for each entry what is wrong with it; nothing where it is sound."""
        found = {}
        for path, _, _ in sorted(self._files()):
            try:
                _checked(tensor_file.read(path)[1], path.name.removesuffix(SUFFIX))
                found[path] = ""
            except (ValueError, OSError) as error:
                found[path] = str(error)
        return found


def _checked(texts: dict[str, str], name: str) -> dict[str, str]:
    """Return the texts of an entry.

    Raises:
        ValueError: It is none, of another layout or version, or one that was renamed.
    """
    if texts.get("kind") != KIND:
        raise ValueError("it is no entry of the compile cache")
    for what, ours in (("layout", LAYOUT), ("version", __version__)):
        if texts.get(what) != ours:
            raise ValueError(f"it was written with {what} {texts.get(what)}, and this is {what} {ours}")
    if texts.get("name") != name:
        raise ValueError(f"it was written as {texts.get('name')}, and is named {name}")
    return texts
