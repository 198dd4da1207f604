"""The converter of operators: onnx2pytorch, also where there is no torchvision, or one that torch cannot load."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from torchipu import forks
from torchipu.errors import UnsupportedOpError
from torchipu.onnx.files import EXTRA

NEED_TORCHVISION = frozenset({"DeformConv", "ImageDecoder", "MaxRoiPool", "NonMaxSuppression", "RoiAlign"})
"""Operators that the converter computes by torchvision's."""
_PARTS = ("torchvision", "torchvision.io", "torchvision.ops")
_LOCK = forks.lock()


@functools.cache
def has_torchvision() -> bool:
    """Whether torchvision can be imported: one that was made for another torch cannot."""
    try:
        importlib.import_module("torchvision.ops")
    except Exception:  # an ImportError, or what its operators raise that are missing from its library
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        return False
    return True


@functools.cache
def converter() -> tuple[Any, Any]:
    """Return the modules ``convert.operations`` and ``constants`` of onnx2pytorch.

    Raises:
        ImportError: It is not installed.
    """
    with _LOCK, _standing_in_for_torchvision():
        try:
            return (
                importlib.import_module("onnx2pytorch.convert.operations"),
                importlib.import_module("onnx2pytorch.constants"),
            )
        except ModuleNotFoundError as error:
            raise ImportError(
                f"ONNX models need {error.name}, which is missing\n  do      {EXTRA}", name=error.name,
            ) from error


class _Absent(ModuleType):
    """Stands for a module of torchvision: whatever is taken from it says so when it is called."""

    __path__: list[str] = []  # noqa: RUF012 - a package, to who imports from it

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def absent(*_: Any, **__: Any) -> Any:
            raise UnsupportedOpError(
                f"{self.__name__}.{name} is missing: torchvision is not installed, or was made for another torch",
                remedy="install the torchvision that belongs to this torch",
            )

        return absent


@contextmanager
def _standing_in_for_torchvision() -> Iterator[None]:
    """Let modules import from torchvision where there is none; nobody else sees what stands in for it."""
    if has_torchvision():
        yield
        return
    for name in _PARTS:
        sys.modules[name] = _Absent(name)
        sys.modules[name].__spec__ = ModuleSpec(name, None, is_package=True)
    for name in _PARTS[1:]:
        setattr(sys.modules[_PARTS[0]], name.rpartition(".")[2], sys.modules[name])
    try:
        yield
    finally:
        for name in _PARTS:
            del sys.modules[name]
