"""Checks of the installation that run when torchipu is imported: the version of torch, and the compiled kernels."""

from __future__ import annotations

import re
import sys
from importlib import metadata, util

# The same range as in pyproject.toml: what the tests ran with.
OLDEST_TORCH = (2, 13)
FIRST_UNTESTED_TORCH = (2, 14)
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
    """Refuse a torch that the tests did not run with.

    Args:
        version: Such as ``2.13.0+cpu``; None when torch is not installed.

    Raises:
        ImportError: The version is outside the tested range, or there is no torch.
    """
    tested = f"torch >= {dotted(OLDEST_TORCH)} and < {dotted(FIRST_UNTESTED_TORCH)}"
    remedy = f'pip install "torch>={dotted(OLDEST_TORCH)},<{dotted(FIRST_UNTESTED_TORCH)}"'
    if version is None:
        raise ImportError(f"torchipu needs {tested}, and torch is not installed\n  do      {remedy}", name="torch")
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if not numbers or not OLDEST_TORCH <= (int(numbers[1]), int(numbers[2])) < FIRST_UNTESTED_TORCH:
        raise ImportError(
            f"torchipu needs {tested}, and torch {version} is installed\n  do      {remedy}", name="torch"
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
