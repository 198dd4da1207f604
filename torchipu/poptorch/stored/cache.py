"""Captured programs kept in a folder, so that a model that was captured once is not captured again.

What costs time in a compilation is the capture. It is looked up by `torchipu.capture.identity`, which sees all that a
graph depends on; so an entry never has to be thrown away, and one of another version is never found.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from torchipu import __version__
from torchipu.capture.captured import Captured
from torchipu.capture.identity import identity_of
from torchipu.capture.running import Running
from torchipu.options import Options as CoreOptions
from torchipu.poptorch._logging import logger
from torchipu.poptorch.options import Options
from torchipu.stored import tensor_file
from torchipu.stored.captures import capture_from_data, capture_to_data

KIND = "torchipu.poptorch cached graph"
SUFFIX = ".executable"
NOTICE_SECONDS = 5.0
"""How long a process waits for another one that compiles before it says so, again and again."""
PATIENCE_SECONDS = 300.0
"""How long it waits at all: the other one may have been stopped."""


class ExecutableCache:
    """A folder of captured programs. Where it cannot be read or written, a model is captured without it.

    Args:
        folder: Made if need be.

    Raises:
        OSError: It cannot be made.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def fetch(
        self, running: Running, tensors: Sequence[torch.Tensor], options: CoreOptions, make: Callable[[], Captured],
    ) -> Captured:
        """Return the capture of a model, from the folder if it is there.

        Of several processes that need the same one, one makes it and the others wait for it, though not for ever.

        Args:
            running: Calls the model.
            tensors: Inputs of one micro-batch.
            options: Of the compilation; others have an entry of their own, as in PopTorch.
            make: Captures it.
        """
        described = dataclasses.replace(options, seed=None, host_threads=None, process_group=None)
        identity = identity_of(running, tensors, f"{__version__} {type(running).__name__} {described}")
        if identity is None:
            logger.debug("The executable cache cannot tell this model from others: it is compiled anew")
            return make()
        path = self.folder / f"{identity}{SUFFIX}"
        is_there = os.path.exists(path)  # that of Path raises where the folder may not be read
        found = _read(path) if is_there else None
        if found is not None:
            return found
        with _turn(self.folder / f"{identity}.lock") as is_ours:
            if not is_there and os.path.exists(path):  # another process has made it meanwhile
                found = _read(path)
            if found is None:
                found = make()
                if is_ours or not os.path.exists(path):
                    _write(path, found)
            return found


@contextlib.contextmanager
def _turn(lock: Path) -> Iterator[bool]:
    """Wait for the process that has a lock; after a long time go on without it, since that one may have been stopped.

    Args:
        lock: Its file.

    Yields:
        Whether the lock is held.
    """
    from filelock import FileLock, Timeout

    held, maker = FileLock(lock), lock.with_suffix(".maker")
    began = time.monotonic()
    is_held = False
    while not is_held and time.monotonic() - began < PATIENCE_SECONDS:
        try:
            held.acquire(timeout=min(NOTICE_SECONDS, PATIENCE_SECONDS))
            is_held = True
        except Timeout:
            logger.warning(
                "Process %d waits for process %s to compile the same model, for %.0f s now", os.getpid(),
                _text(maker) or "?", time.monotonic() - began,
            )
        except OSError as error:  # a full disk, a folder that may not be written
            logger.debug("Process %d compiles the model without a lock: %s", os.getpid(), error)
            break
    else:
        if not is_held:
            logger.warning(
                "Process %d compiles the model itself: process %s takes too long", os.getpid(), _text(maker),
            )
    try:
        if is_held:
            with contextlib.suppress(OSError):
                maker.write_text(str(os.getpid()))
        yield is_held
    finally:
        if is_held:
            with contextlib.suppress(OSError):
                maker.unlink(missing_ok=True)
                # Who waits at this file holds it all the same, and finds the entry.
                lock.unlink(missing_ok=True)
            held.release()


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def cache_of(options: Options) -> ExecutableCache | None:
    """Return the cache that options ask for; None, with a warning, where its folder cannot be made."""
    popart = options._popart.options
    if not popart.get("enableEngineCaching") or not popart.get("cachePath"):
        if options.Distributed.numProcesses > 1:
            logger.warning(
                "Every one of %d processes compiles the model: poptorch.Options().enableExecutableCaching() lets one "
                "do it for all", options.Distributed.numProcesses,
            )
        return None
    try:
        return ExecutableCache(popart["cachePath"])
    except OSError as error:
        _warn_unused(popart["cachePath"], error)
        return None


def _warn_unused(folder: str | os.PathLike[str], error: OSError) -> None:
    logger.warning("The executable cache %s is not used, and the model compiled each time: %s", folder, error)


def _read(path: Path) -> Captured | None:
    """Return the capture of a file; None if it is damaged and has to be made anew."""
    try:
        tensors, texts = tensor_file.read(path)
        if texts.get("kind") != KIND:
            raise ValueError("it is no cached graph")
        captured = capture_from_data(json.loads(texts["capture"]), tensors)
    except (ValueError, KeyError, OSError) as error:
        logger.warning("The entry %s of the executable cache is not used: %s", path, error)
        return None
    logger.debug("Loading the cached executable %s", path)
    return captured


def _write(path: Path, captured: Captured) -> None:
    try:
        data, tensors = capture_to_data(captured)
    except TypeError as error:
        logger.debug("The executable cache leaves this model out: %s", error)
        return
    try:
        tensor_file.write(path, tensors, {"kind": KIND, "capture": json.dumps(data)})
    except OSError as error:
        _warn_unused(path.parent, error)
        return
    logger.debug("Saving the executable to the cache as %s", path)
