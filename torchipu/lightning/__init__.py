"""PyTorch Lightning on the emulated IPU: ``Trainer(accelerator="ipu")`` with unmodified modules.

Nobody needs to import this: `torchipu.hooks` calls `registration` when Lightning is imported, by either of its names.
The classes are in Lightning's own modules then, where programs look for them; here are those of ``lightning.pytorch``.
"""

from __future__ import annotations

import importlib
from typing import Any

_MODULE_BY_NAME = {
    "IPUAccelerator": "accelerators",
    "IPUPlugin": "strategies",
    "IPUPrecision": "plugins",
    "IPUStrategy": "strategies",
}


def __getattr__(name: str) -> Any:
    """Return a class of the ``lightning`` package.

    Raises:
        ImportError: Lightning is not installed.
    """
    if name not in _MODULE_BY_NAME:
        raise AttributeError(f"module 'torchipu.lightning' has no attribute {name!r}")
    try:
        importlib.import_module("lightning.pytorch")
    except ModuleNotFoundError as error:
        raise ImportError(
            f"torchipu.lightning.{name} needs Lightning, which is not installed: {error}\n"
            '  do      pip install "torchipu[lightning]"', name="lightning",
        ) from error
    return getattr(importlib.import_module(f"lightning.pytorch.{_MODULE_BY_NAME[name]}"), name)
