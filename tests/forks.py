"""Processes for tests, each a fork of one that has imported torch and compiled.

That takes five seconds of processor time, and what a test asks of a process often less. So each process that runs tests
starts one that has done so, and nothing else, once it is first asked for, and forks it.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).parents[1]
ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # those of a pool would be missing in forks
LONGEST_REQUEST = 1 << 17


class Fork:
    """A process that leads a group of its own.

    Args:
        pid: Its number.
        output: The file of what it prints.
        status: Gives its exit status as text when it ends, or nothing where a signal ends it.
    """

    def __init__(self, pid: int, output: Path, status: int) -> None:
        self.pid, self._output, self._status = pid, output, status

    def wait(self, seconds: float) -> str:
        """Wait until it has ended; after that many seconds it is killed.

        Returns:
            What it has printed.

        Raises:
            AssertionError: It has not ended by itself, or not with status 0. Shows what it has printed.
        """
        timer = threading.Timer(seconds, self.kill)
        timer.start()
        with os.fdopen(self._status) as file:
            status = file.read()
        timer.cancel()
        timer.join()
        printed = self._output.read_text(encoding="utf-8", errors="replace")
        assert status == "0", f"process {self.pid} ended with {status or 'a signal'} within {seconds} s:\n{printed}"
        return printed

    def kill(self) -> None:
        """End it, and what it has started in its group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


def fork(
    function: str, *arguments: object, output: Path, environment: Mapping[str, str] | None = None,
    path: Sequence[Path] = (), streams: Sequence[int] = (),
) -> Fork:
    """Call a function in a new process, whose folder is the project's.

    Args:
        function: ``module:name``.
        arguments: For it, as JSON has them; numbers of ``streams`` come behind them.
        output: A file for what it prints.
        environment: Variables of this process that it has otherwise.
        path: Folders in which it looks for modules before others.
        streams: Numbers of open files of this process that it has, too.
    """
    channel = _server()
    reading, writing = os.pipe()
    asked = json.dumps([
        function, arguments, {**os.environ, **ONE_THREAD, **(environment or {})}, [str(one) for one in path],
    ])
    with output.open("wb") as file:
        socket.send_fds(channel, [asked.encode()], [file.fileno(), writing, *streams])
    os.close(writing)
    pid = channel.recv(64)
    assert pid, f"the process that is forked has ended:\n{Path(_said().name).read_text(encoding='utf-8')}"
    return Fork(int(pid), output, reading)


@functools.cache
def _said() -> Any:
    return tempfile.NamedTemporaryFile(prefix="torchipu-forked-")


@functools.cache
def _server() -> socket.socket:
    """Start the process that is forked; it ends when nobody holds the other end of this socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.forks", str(theirs.fileno())], cwd=ROOT, env={**os.environ, **ONE_THREAD},
        stdin=subprocess.DEVNULL, stdout=_said(), stderr=subprocess.STDOUT, pass_fds=[theirs.fileno()],
    )
    theirs.close()
    atexit.register(process.wait)
    atexit.register(ours.close)
    return ours


def compile_once() -> None:
    """Import what a first step imports, and leave the collector of garbage none of it to look through."""
    import torch
    import torch.distributed

    import torchipu
    import torchipu.distributed.exchange
    from tests.spared import spare

    torch.set_num_threads(1)
    spare()
    state = torch.get_rng_state()

    class Model(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).sum()

    model = Model(2, 2)
    step = torchipu.TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), torchipu.Options(host_threads=1))
    step(torch.ones(2, 2))
    spare()  # Dynamo's part
    torch.set_rng_state(state)
    gc.collect()
    gc.freeze()


def serve(channel: socket.socket) -> None:
    """Fork as often as asked to, and say the number of each process."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # who ends is gone at once: nobody waits for it here
    while True:
        asked, streams, _, _ = socket.recv_fds(channel, LONGEST_REQUEST, 8)
        if not asked:
            return
        pid = os.fork()
        if not pid:
            channel.close()
            _call(*json.loads(asked), *streams)
        channel.send(str(pid).encode())
        for stream in streams:
            os.close(stream)


def _call(
    function: str, arguments: list[Any], environment: dict[str, str], path: list[str], output: int, status: int,
    *streams: int,
) -> NoReturn:
    """Call a function in this fork, and end it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    for standard in (1, 2):
        os.dup2(output, standard)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = path
    code = 0
    try:
        module, _, name = function.partition(":")
        getattr(importlib.import_module(module), name)(*arguments, *streams)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os.write(status, str(code).encode())
    os._exit(code)


if __name__ == "__main__":
    compile_once()
    with socket.socket(fileno=int(sys.argv[1])) as asked_here:
        serve(asked_here)
