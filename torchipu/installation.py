"""Checks of the installation that run when torchipu is imported: the version of torch, and the compiled kernels."""

from __future__ import annotations

import re
import sys
import warnings
from importlib import metadata, util

# The same range as in pyproject.toml; docs/torch_releases.md says what ran with which.
OLDEST_TORCH = (2, 10)
NEWEST_TESTED_TORCH = (2, 13)
BUILD_COMMAND = "python setup.py build_ext --inplace"


def torch_version() -> str | None:
    """Return the version of torch without importing it, or None when there is none."""
    if "torch" in sys.modules:
        return str(sys.modules["torch"].__version__)
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None


def check_torch(version: str | None) -> None:
    """Refuse a torch that is too old, and warn of one that is newer than what the tests ran with.

    Args:
        version: Such as ``2.13.0+cpu``; None when torch is not installed.

    Raises:
        ImportError: The version is too old, or is none, or there is no torch.
    """
    oldest, newest = dotted(OLDEST_TORCH), dotted(NEWEST_TESTED_TORCH)
    needed, remedy = f"torch {oldest} or newer", f'pip install "torch>={oldest}"'
    if version is None:
        raise ImportError(f"torchipu needs {needed}, and torch is not installed\n  do      {remedy}", name="torch")
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if not numbers or (int(numbers[1]), int(numbers[2])) < OLDEST_TORCH:
        raise ImportError(
            f"torchipu needs {needed}, and torch {version} is installed\n  do      {remedy}", name="torch"
        )
    if (int(numbers[1]), int(numbers[2])) > NEWEST_TESTED_TORCH:
        warnings.warn(
            f"torchipu was tested with torch {oldest} to {newest}, and torch {version} is installed: what torch has "
            "changed since may fail", stacklevel=2,
        )


def check_kernels(module: str = "torchipu._kernels.abi") -> None:
    """Refuse to run from sources whose kernels are not built.

    Raises:
        ImportError: The compiled module is missing.
    """
    if util.find_spec(module) is None:
        raise ImportError(
            f"the kernels of torchipu are not built: there is no compiled {module}\n"
            f"  do      {BUILD_COMMAND}  (in the checkout; it needs gcc and Cython)",
            name=module,
        )


def dotted(version: tuple[int, ...]) -> str:
    """Return ``2.13`` for ``(2, 13)``."""
    return ".".join(map(str, version))
