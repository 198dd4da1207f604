"""From PopTorch's tensor locations, IO tiles and sync pattern to the core's options."""

from __future__ import annotations

from typing import Any

from torchipu.options import TensorLocation
from torchipu.poptorch.enums import SyncPattern
from torchipu.poptorch.options.options import Options
from torchipu.poptorch.options.tensor_locations import TensorLocationSettings

FIELDS = {
    "onChip": "on_chip", "minElementsForOffChip": "min_elements_off_chip",
    "useReplicatedTensorSharding": "replicated_sharding",
    "minElementsForReplicatedTensorSharding": "min_elements_sharding", "useIOTilesToLoad": "io_tiles_to_load",
    "useIOTilesToStore": "io_tiles_to_store",
}
KINDS = {
    "location_weight": "weight_location", "location_activation": "activation_location",
    "location_accumulator": "accumulator_location", "location_optimizer": "optimiser_state_location",
}
PATTERNS = {
    SyncPattern.Full: "full", SyncPattern.SinglePipeline: "single_pipeline",
    SyncPattern.ReplicaAndLadder: "replica_and_ladder",
}


def core_locations(options: Options) -> dict[str, Any]:
    """Return the core's options of where tensors lie, and of who waits for transfers.

    IO tiles to load or store are used only where there are some, as in PopART.

    Args:
        options: The executor's.
    """
    locations = options.TensorLocations
    io_tiles = int(locations.toDict().get("numIOTiles", 0))
    values: dict[str, Any] = {"io_tiles": io_tiles, "sync_pattern": PATTERNS[SyncPattern(options.sync_pattern)]}
    for kind, name in KINDS.items():
        given = _location(getattr(locations, kind), has_io_tiles=io_tiles > 0)
        if given is not None:
            values[name] = given
    return values


def _location(settings: TensorLocationSettings, *, has_io_tiles: bool) -> TensorLocation | None:
    given = {FIELDS[name]: value for name, value in settings.toDict().items() if name in FIELDS}
    if not has_io_tiles:
        given = {field: value for field, value in given.items() if not field.startswith("io_tiles")}
    return TensorLocation(**given) if given else None
