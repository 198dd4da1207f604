"""Lets a module be imported under a second name, one object under both: ``poptorch`` for ``torchipu.poptorch``.

The distribution installs a file ``poptorch.py`` and no folder of that name. So a real PopTorch in the same folder is
neither overwritten nor hidden, since Python takes a package before a module; one in another folder is looked for here.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


def stand_in(name: str, target: str, file: str, lacking: str = "") -> None:
    """Put a module in the place of the one that is being imported, unless a package of that name lies elsewhere.

    Args:
        name: Name being imported, ``poptorch``.
        target: Name of the module to give for it, ``torchipu.poptorch``.
        file: The file that calls this; its folder is not searched.
        lacking: What to tell who imports a submodule that ``target`` lacks: what is there, and what to use instead.
    """
    real = package_elsewhere(name, file)
    if real is not None:
        warnings.warn(
            f"{name} is installed at {real.origin}: torchipu stands aside, its own is {target}", stacklevel=3
        )
        _load(name, real)
        return
    sys.modules[name] = importlib.import_module(target)
    if not any(isinstance(finder, AliasFinder) and finder.name == name for finder in sys.meta_path):
        # First, since the finder of paths would load the files of submodules a second time.
        sys.meta_path.insert(0, AliasFinder(name, target, lacking))


def refuse(name: str, file: str, message: str) -> None:
    """Refuse the import of a module that torchipu has nothing for, unless a package of that name lies elsewhere.

    Args:
        name: Name being imported, ``popxl``.
        file: The file that calls this; its folder is not searched.
        message: What to use instead.

    Raises:
        ImportError: There is no such package.
    """
    real = package_elsewhere(name, file)
    if real is None:
        raise ImportError(message, name=name)
    _load(name, real)


def package_elsewhere(name: str, file: str) -> ModuleSpec | None:
    """Return where a package of this name lies outside the folder of ``file``, or None."""
    here = os.path.realpath(os.path.dirname(file))
    folders = [folder for folder in sys.path if os.path.realpath(folder or os.curdir) != here]
    spec = PathFinder.find_spec(name, folders)
    # A folder without __init__.py has no origin: a working directory of that name is no installation.
    return spec if spec is not None and spec.submodule_search_locations is not None and spec.origin else None


def _load(name: str, spec: ModuleSpec) -> None:
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    assert spec.loader is not None
    spec.loader.exec_module(module)


class AliasFinder(MetaPathFinder, Loader):
    """Finds submodules of an alias: ``poptorch.optim`` is the object ``torchipu.poptorch.optim``.

    Args:
        name: The alias.
        target: The module that it stands for.
        lacking: What the error says of submodules that the target lacks; without it the import system has its word.
    """

    def __init__(self, name: str, target: str, lacking: str = "") -> None:
        self.name = name
        self.target = target
        self.lacking = lacking

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec for a submodule that exists.

        Raises:
            ModuleNotFoundError: There is none, and the alias has something to say of that.
        """
        if not fullname.startswith(f"{self.name}."):
            return None
        if importlib.util.find_spec(self._real(fullname)) is not None:
            return ModuleSpec(fullname, self)
        if self.lacking:
            raise ModuleNotFoundError(f"No module named {fullname!r}. {self.lacking}", name=fullname)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Import under the real name; importlib will put the alias's spec on what is returned."""
        module = importlib.import_module(self._real(spec.name))
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its own spec back."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state

    def _real(self, fullname: str) -> str:
        return self.target + fullname.removeprefix(self.name)
