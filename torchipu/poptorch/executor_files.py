"""How an executor is written to a file and takes its program from one."""

from __future__ import annotations

import os
from typing import Any

from torchipu.poptorch import executable_file
from torchipu.poptorch.session import Session


class Files:
    """The part of `PoplarExecutor` that has to do with files."""

    def _session(self) -> Session:
        raise NotImplementedError

    def _pull(self) -> None:
        raise NotImplementedError

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile; see `PoplarExecutor`."""
        raise NotImplementedError

    def save(self, filename: str | os.PathLike[str], export_model: bool = True, save_rng_state: bool = True) -> None:
        """Write the program, and with ``export_model`` the weights, to a file.

        Args:
            filename: Where to; a folder receives ``model.poptorch``.
            export_model: Whether `load` shall be able to build the executor from the file alone.
            save_rng_state: Whether the state of the random numbers goes with it.
        """
        self._session()
        self._pull()
        executable_file.save(self, filename, export_model, save_rng_state)

    def compileAndExport(
        self, filename: str | os.PathLike[str], *args: Any, export_model: bool = True, **kwargs: Any,
    ) -> None:
        """Compile and `save`.

        Args:
            filename: Where to.
            *args: Arguments as of a call.
            export_model: As for `save`.
            **kwargs: The same by name.
        """
        self.compile(*args, **kwargs)
        self.save(filename, export_model)

    def loadExecutable(self, filename: str | os.PathLike[str]) -> None:
        """Take a program from a file instead of capturing the model.

        Args:
            filename: Written by `save` or `compileAndExport`.
        """
        executable_file.load_into(self, filename)
