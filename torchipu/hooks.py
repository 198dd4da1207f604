"""What torchipu adds to other packages, at the moment when their modules are imported: `INSTALLERS`.

Nothing heavy is imported here: `install` runs at the end of every ``import torch``, by the entry point that
``torchipu_autoload`` is, and with ``import torchipu``.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from torchipu import forks

INSTALLERS: dict[str, str] = {
    "torch._dynamo.backends.registry": "torchipu.hooks:look_up_in_turn",
    # The last of Lightning's modules that a Trainer needs: the names that we extend are complete when it is.
    "lightning.pytorch.trainer.connectors.accelerator_connector": "torchipu.lightning.registration:install",
    "pytorch_lightning.trainer.connectors.accelerator_connector": "torchipu.lightning.registration:install",
    "accelerate.utils.dataclasses": "torchipu.transformers.dynamo:add_backend",
    "accelerate.launchers": "torchipu.transformers.dynamo:compile_in_place",
    "accelerate.commands.config.config_utils": "torchipu.transformers.dynamo:offer_backend",
}
"""By the module that is watched for, the ``module:function`` that is called with it once it has been executed.

A module that begins to import torch itself cannot be watched for: choose one that is imported later.
"""


def install() -> None:
    """Watch for the modules of `INSTALLERS`; serve those that are there already. A second call does nothing."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, _Finder())
    for name in INSTALLERS:
        module = sys.modules.get(name)
        if module is not None and not getattr(module.__spec__, "_initializing", False):
            _serve(module)


def _serve(module: ModuleType) -> None:
    """Call the installer of a module; one that fails costs the package nothing but what it would have added."""
    where, _, function = INSTALLERS[module.__name__].partition(":")
    try:
        getattr(importlib.import_module(where), function)(module)
    except Exception as error:
        first_line = str(error).partition("\n")[0]
        warnings.warn(
            f"torchipu does not know this version of {module.__name__}, and adds nothing to it: "
            f"{type(error).__name__}: {first_line}", stacklevel=2,
        )


def look_up_in_turn(registry: Any) -> None:
    """Let one thread at a time look a backend up by its name, and ours be told when Dynamo captures for it.

    torch imports what an entry point names, and registers it then: of two threads that begin to use a backend, the
    second one fails to register it again.

    Args:
        registry: The module ``torch._dynamo.backends.registry``.
    """
    lock, look_up = forks.reentrant_lock(), registry.lookup_backend

    @functools.wraps(look_up)
    def lookup_backend(compiler_fn: Any) -> Any:
        with lock:
            found = look_up(compiler_fn)
            ours: Any = sys.modules.get("torchipu.backend")
            if found is getattr(ours, "ipu_backend", None):  # once ours has been imported, which this may do
                ours.SIGNALS.watch()
            return found

    registry.lookup_backend = lookup_backend


class _Finder(MetaPathFinder):
    """Finds modules of `INSTALLERS` where they are, and lets their installers follow their execution."""

    def __init__(self) -> None:
        self._asked: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec that the other finders give, with a loader that calls the installer."""
        if fullname not in INSTALLERS or fullname in self._asked:
            return None
        self._asked.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._asked.discard(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    """Loads as another loader does, and serves the module then.

    Args:
        real: The other one, which the module keeps.
    """

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Leave it to the other one."""
        made: ModuleType | None = self._real.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        """Execute and serve the module."""
        assert module.__spec__ is not None
        module.__loader__ = module.__spec__.loader = self._real
        self._real.exec_module(module)
        _serve(module)
