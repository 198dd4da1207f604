"""Processes of a server that has imported torch once, and forks.

It is one of our own beside that of `multiprocessing`, whose list of modules belongs to the program.
"""

from __future__ import annotations

import io
import os
import pickle
import sys
from multiprocessing import context, forkserver, popen_forkserver, process, reduction, spawn, util
from types import FunctionType, ModuleType
from typing import Any

WORKER_MODULE = "torchipu.poptorch.data.worker"

_SERVER = forkserver.ForkServer()


class _Popen(popen_forkserver.Popen):
    """Starts a process through our server, and spares it the program's main module where that is not wanted."""

    _fds: list[int]  # of the parent's, which the object refers to by their places

    def _launch(self, process_obj: process.BaseProcess) -> None:
        head, body = io.BytesIO(), io.BytesIO()
        preparation: dict[str, Any] = spawn.get_preparation_data(process_obj.name)
        main = {key for key in preparation if key.startswith("init_main_from_")}
        context.set_spawning_popen(self)
        try:
            reduction.dump(process_obj, body)
            wants_main = b"__main__" in body.getvalue()
            if wants_main and not main:
                raise pickle.PicklingError("it is of a class defined interactively, which no other process finds")
            reduction.dump({key: preparation[key] for key in preparation if wants_main or key not in main}, head)
        finally:
            context.set_spawning_popen(None)
        _SERVER.set_forkserver_preload([WORKER_MODULE, *(_modules_of_main() if wants_main else ())])
        self.sentinel, writer = _SERVER.connect_to_new_process(self._fds)
        # Held open for as long as this process lives: `multiprocessing.parent_process` in the child watches it.
        self.finalizer = util.Finalize(self, _close, (os.dup(writer), self.sentinel))
        with open(writer, "wb") as file:
            file.write(head.getbuffer())
            file.write(body.getbuffer())
        self.pid = forkserver.read_signed(self.sentinel)


class ServedProcess(context.ForkServerProcess):
    """A process that our server forks.

    Args:
        *args: As for `multiprocessing.Process`.
        **kwargs: Likewise.
    """

    @staticmethod
    def _Popen(process_obj: process.BaseProcess) -> _Popen:
        return _Popen(process_obj)


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _modules_of_main() -> list[str]:
    """Return the modules that the program's main module imports, so that they are imported once in the server."""
    values = vars(sys.modules["__main__"]).values()
    names = {value.__name__ for value in values if isinstance(value, ModuleType)}
    names |= {value.__module__ for value in values if isinstance(value, (type, FunctionType))}
    return sorted(name for name in names - {"__main__"} if name in sys.modules)
