"""Tensor locations, IO tiles and sync patterns of PopTorch: what the core is told, and that values stay."""

from __future__ import annotations

import poptorch
import pytest
import torch

from torchipu.options import Options, TensorLocation
from torchipu.poptorch.options.locations import core_locations


def options_with(**settings: poptorch.TensorLocationSettings) -> poptorch.Options:
    options = poptorch.Options()
    for name, location in settings.items():
        getattr(options.TensorLocations, name)(location)
    return options


def told(options: poptorch.Options) -> Options:
    """Return the core's options."""
    return Options(**core_locations(options))


def test_locations_reach_the_core() -> None:
    location = poptorch.TensorLocationSettings().useOnChipStorage(False).minElementsForOffChip(4)
    shared = poptorch.TensorLocationSettings().useReplicatedTensorSharding().minElementsForReplicatedTensorSharding(9)
    found = told(options_with(setWeightLocation=location, setOptimizerLocation=shared))
    assert found.weight_location == TensorLocation(on_chip=False, min_elements_off_chip=4)
    assert found.optimiser_state_location == TensorLocation(replicated_sharding=True, min_elements_sharding=9)
    assert found.activation_location is found.accumulator_location is None


def test_io_tiles_are_used_only_where_there_are_some() -> None:
    location = poptorch.TensorLocationSettings().useOnChipStorage(False).useIOTilesToLoad().useIOTilesToStore(False)
    options = options_with(setActivationLocation=location)
    assert told(options).activation_location == TensorLocation(on_chip=False)
    options.TensorLocations.numIOTiles(32)
    found = told(options)
    assert (found.io_tiles, found.activation_location) == (32, TensorLocation(on_chip=False, io_tiles_to_load=True))


@pytest.mark.parametrize("pattern", list(poptorch.SyncPattern))
def test_sync_patterns_reach_the_core(pattern: poptorch.SyncPattern) -> None:
    words = {"Full": "full", "SinglePipeline": "single_pipeline", "ReplicaAndLadder": "replica_and_ladder"}
    assert told(poptorch.Options().syncPattern(pattern)).sync_pattern == words[pattern.name]


def test_a_program_trains_alike_with_its_states_off_chip() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = torch.nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return poptorch.identity_loss(self.layer(x).square(), "mean")

    off_chip = poptorch.TensorLocationSettings().useOnChipStorage(False)
    weights = []
    for options in (poptorch.Options(), options_with(setOptimizerLocation=off_chip, setWeightLocation=off_chip)):
        model = Model()
        trained = poptorch.trainingModel(model, options, poptorch.optim.Adam(model.parameters(), lr=0.1))
        trained(torch.arange(8.0).reshape(2, 4))
        weights.append(model.layer.weight.detach().clone())
    assert torch.equal(*weights)
