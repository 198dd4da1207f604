"""What instances write: to the terminal line by line, to files, and the last lines for the summary."""

from __future__ import annotations

import contextlib
import os
import selectors
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs

from torchipu import forks

CHUNK_BYTES = 1 << 16
PATIENCE_SECONDS = 0.2
"""How long the beginning of a line, such as a prompt or a progress bar, waits for its end before it is shown, while no
instance writes anything."""
MOST_PATIENCE_SECONDS = 2.0
"""The same while others write: on a busy machine an instance may pause within a line, which should stay whole."""
KEPT_LINES = 20
STREAMS = ("stdout", "stderr")


@dataclass(slots=True)
class _Stream:
    """One of the two outputs of an instance."""

    rank: int
    name: str
    read_end: int
    log: IO[bytes] | None
    partial: bytes = b""
    since: float = 0.0
    at_line_start: bool = True
    last: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))


class Output(LogsSpecs):
    """Gives the agent pipes for its instances, and forwards what comes out of them.

    Args:
        tags: Whether each line begins with its instance.
        only_from: The one instance that is shown, or None for all.
        folder: Where the output of each is kept as well; an empty text for nowhere.
    """

    def __init__(self, *, tags: bool, only_from: int | None, folder: str) -> None:
        super().__init__()
        self._tags = tags
        self._only_from = only_from
        self._folder = Path(folder) if folder else None
        self._streams: dict[int, _Stream] = {}
        self._write_ends: list[int] = []
        self._selector = selectors.DefaultSelector()
        self._lock = forks.lock()
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def root_log_dir(self) -> str:
        """The folder of the files, for the agent's own log."""
        return str(self._folder or os.devnull)

    # ------------------------------------------------------------------ the agent's side
    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Make the pipes of an attempt.

        Args:
            envs: The variables of each instance of this host.

        Returns:
            Names that open their ends to write to.
        """
        self.drain()
        names: dict[str, dict[int, str]] = {name: {} for name in STREAMS}
        with self._lock:
            self._forget()
            for local_rank, environment in envs.items():
                environment["TORCHELASTIC_ERROR_FILE"] = ""
                for name in STREAMS:
                    read_end, write_end = os.pipe()
                    os.set_blocking(read_end, False)
                    stream = _Stream(int(environment["RANK"]), name, read_end, self._log(environment, name))
                    self._streams[read_end] = stream
                    self._selector.register(read_end, selectors.EVENT_READ)
                    self._write_ends.append(write_end)
                    names[name][local_rank] = f"/proc/self/fd/{write_end}"
        if self._thread is None:
            self._thread = threading.Thread(target=self._forward, name="output of instances", daemon=True)
            self._thread.start()
        return LogsDest(
            stdouts=names["stdout"], stderrs=names["stderr"], error_files=dict.fromkeys(envs, os.devnull),
        )

    def _log(self, environment: Mapping[str, str], name: str) -> IO[bytes] | None:
        if self._folder is None:
            return None
        attempt = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
        folder = self._folder / f"attempt_{attempt}" / f"instance_{environment['RANK']}"
        folder.mkdir(parents=True, exist_ok=True)
        return (folder / f"{name}.log").open("wb", buffering=0)

    # ------------------------------------------------------------------ the launcher's side
    def last_lines(self, rank: int, name: str = "stderr") -> list[str]:
        """Return the last lines of an instance that are not empty.

        Args:
            rank: Its number.
            name: Which of its outputs.
        """
        self.drain()
        with self._lock:
            found = [stream for stream in self._streams.values() if (stream.rank, stream.name) == (rank, name)]
            return [line for stream in found for line in stream.last]

    def drain(self) -> None:
        """Forward all that has been written so far."""
        with self._lock:
            while any(self._read(stream) for stream in list(self._streams.values())):
                pass
            for stream in self._streams.values():
                self._show_partial(stream)

    def close(self) -> None:
        """Forward what is left, and end."""
        self._ends.set()
        if self._thread is not None:
            self._thread.join()
        self.drain()
        with self._lock:
            self._forget()
            self._selector.close()

    def _forget(self) -> None:
        for read_end, stream in self._streams.items():
            self._selector.unregister(read_end)
            os.close(read_end)
            if stream.log is not None:
                stream.log.close()
        for write_end in self._write_ends:
            os.close(write_end)
        self._streams, self._write_ends = {}, []

    # ------------------------------------------------------------------ forwarding
    def _forward(self) -> None:
        quiet_since = time.monotonic()
        while not self._ends.is_set():
            ready = self._selector.select(timeout=PATIENCE_SECONDS / 2)
            now = time.monotonic()
            quiet_since = now if ready else quiet_since
            patience = PATIENCE_SECONDS if now - quiet_since > PATIENCE_SECONDS else MOST_PATIENCE_SECONDS
            with self._lock:
                for key, _ in ready:
                    stream = self._streams.get(key.fd)
                    if stream is not None:
                        self._read(stream)
                for stream in self._streams.values():
                    if stream.partial and now - stream.since > patience:
                        self._show_partial(stream)

    def _read(self, stream: _Stream) -> bool:
        """Take what is there; return whether there was anything."""
        try:
            chunk = os.read(stream.read_end, CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not chunk:
            return False
        if stream.log is not None:
            with contextlib.suppress(OSError):  # a full disk ends no training
                stream.log.write(chunk)
        if not stream.partial:
            stream.since = time.monotonic()
        text = stream.partial + chunk
        end = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
        if len(text) - end > CHUNK_BYTES:
            end = len(text)
        stream.partial = text[end:]
        if end:
            stream.since = time.monotonic()
            self._show(stream, text[:end])
        return True

    def _show_partial(self, stream: _Stream) -> None:
        if stream.partial:
            text, stream.partial = stream.partial, b""
            self._show(stream, text)

    def _show(self, stream: _Stream, text: bytes) -> None:
        lines = text.splitlines(keepends=True)
        stream.last.extend(line for line in (part.decode(errors="replace").rstrip() for part in lines) if line)
        if self._only_from not in (None, stream.rank):
            return
        if self._tags:
            tag = f"[1,{stream.rank}]<{stream.name}>:".encode()
            begins = [stream.at_line_start, *(part.endswith((b"\n", b"\r")) for part in lines[:-1])]
            text = b"".join((tag if begin else b"") + part for begin, part in zip(begins, lines, strict=True))
        stream.at_line_start = lines[-1].endswith((b"\n", b"\r"))
        target = sys.stdout if stream.name == "stdout" else sys.stderr
        # Who reads may have left, as head does: the training goes on.
        with contextlib.suppress(OSError, ValueError):
            target.buffer.write(text)
            target.buffer.flush()
