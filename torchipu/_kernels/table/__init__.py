"""The table of kernels: a module for each family says what its kernels are called and what they take.

The build makes C structures of it, the emitters name the numbers they pass by it, and the engine refuses what does not
fit. A family's C functions are in the file ``<family>_body.h`` of the folder above.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType

from .kernel import AnyKernel, Kernel


def families() -> dict[str, ModuleType]:
    """Return the modules of the table by name."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("*.py"))
    return {name: import_module(f".{name}", __name__) for name in names if name not in ("__init__", "kernel")}


def kernels_of(family: ModuleType) -> list[AnyKernel]:
    """Return the records of a module."""
    return [value for value in vars(family).values() if isinstance(value, Kernel)]


def all_kernels() -> list[AnyKernel]:
    """Return the records of all families.

    Raises:
        ValueError: Two kernels have one name.
    """
    found: dict[str, AnyKernel] = {}
    for name, family in families().items():
        for kernel in kernels_of(family):
            if found.setdefault(kernel.name, kernel) is not kernel:
                raise ValueError(f"table/{name}.py: there are two kernels of the name {kernel.name!r}")
    return list(found.values())
