"""Which machine a program is for: its name, its generation, and whether it may be of any size."""

from __future__ import annotations

import os

from torchipu.errors import OptionsError
from torchipu.options import TARGET_VARIABLE
from torchipu.poptorch.enums import ConnectionType
from torchipu.poptorch.options import Options
from torchipu.poptorch.options.popart import TARGET
from torchipu.poptorch.poptorch_core import createPoptorchError
from torchipu.target import Target, lookup_target

TARGETS = {1: "mk1", 2: "mk2", 21: "c600"}
MODEL, SMALL_MODEL = "POPTORCH_IPU_MODEL", "POPTORCH_SMALL_IPU_MODEL"
SMALL_TILES = 4
"""Tiles of an IPU of the small model. Source: the reference of PopTorch's variables."""


def target_of(options: Options) -> Target:
    """Return the machine that is emulated.

    Source: ``_Popart.set("torchipu.target", ...)``, which PopTorch does not have, goes before the generation; the
    environment before both, as for all options of a compilation.

    Raises:
        Error: There is no such machine, or options exclude each other.
    """
    generation = TARGETS[device_version(options)]
    if _is_small(options):
        generation += f",num_tiles={SMALL_TILES}"
    try:
        return lookup_target(os.environ.get(TARGET_VARIABLE) or options._popart.options.get(TARGET, generation))
    except OptionsError as error:
        raise createPoptorchError(f"{TARGET}: {error}") from error


def device_version(options: Options) -> int:
    """Return which generation of the IPU is emulated: 1, 2 or 21.

    Raises:
        Error: ``POPTORCH_IPU_MODEL_VERSION`` names none, or options exclude each other.
    """
    if options.connection_type == ConnectionType.Never and is_ipu_model(options):
        what = "useOfflineIpuTarget" if options.exists("ipu_version") else "ConnectionType.Never"
        raise createPoptorchError(f"{what} is not supported for the IPU model")
    if options.exists("ipu_version"):
        if options.exists("ipu_id"):
            raise createPoptorchError("useIpuId is not supported by useOfflineIpuTarget: no device is attached to")
        if options._popart.options.get("instrumentWithHardwareCycleCounter"):
            raise createPoptorchError("logCycleCount is not supported by useOfflineIpuTarget: nothing runs")
        return _known_version(f"ipu{options.ipu_version}")
    named = os.environ.get("POPTORCH_IPU_MODEL_VERSION", "")
    if not named or not is_ipu_model(options):
        return 2
    return _known_version(named.partition(":")[0] if "ipu:" not in named else "ipu2")


def _known_version(name: str) -> int:
    versions = {f"ipu{version}": version for version in TARGETS}
    if name not in versions:
        raise createPoptorchError(f"Invalid IPU model version {name!r}. Known versions: {', '.join(versions)}")
    return versions[name]


def is_ipu_model(options: Options) -> bool:
    """Whether the program asks for an emulated machine of any size."""
    if options.exists("use_model"):
        return bool(options.use_model)
    return any(os.environ.get(name) == "1" for name in (MODEL, SMALL_MODEL))


def _is_small(options: Options) -> bool:
    """Whether the emulated machine is the small one, which a word for the whole one goes before."""
    return (
        not options.exists("use_model") and os.environ.get(MODEL) != "1" and os.environ.get(SMALL_MODEL) == "1"
    )
