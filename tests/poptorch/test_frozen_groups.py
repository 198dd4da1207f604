"""Every group within options is frozen with them, by a wrapper and by a loader; copies are thawed and apart."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from torchipu import poptorch
from torchipu.poptorch.options.values import OptionsDict

READING = {"toDict", "exists"}
LOCATIONS = ("location_activation", "location_weight", "location_optimizer", "location_accumulator")
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "useOnChipStorage": (False,), "useReplicatedTensorSharding": (True,), "minElementsForOffChip": (3,),
    "minElementsForReplicatedTensorSharding": (3,), "useIOTilesToLoad": (True,), "useIOTilesToStore": (True,),
    "setActivationLocation": (poptorch.TensorLocationSettings(),), "numIOTiles": (64,),
    "setWeightLocation": (poptorch.TensorLocationSettings(),),
    "setOptimizerLocation": (poptorch.TensorLocationSettings(),),
    "setAccumulatorLocation": (poptorch.TensorLocationSettings(),),
    "gradientAccumulation": (3,), "accumulationAndReplicationReductionType": (poptorch.ReductionType.Sum,),
    "accumulationReductionType": (poptorch.ReductionType.Sum,),
    "setMeanAccumulationAndReplicationReductionStrategy": (poptorch.MeanReductionStrategy.Running,),
    "setAutomaticLossScaling": (True,), "setConvolutionDithering": (True,), "setPartialsType": (torch.half,),
    "enableStochasticRounding": (True,), "enableFloatingPointExceptions": (True,),
    "halfFloatCasting": (poptorch.HalfFloatCastingBehavior.FloatDowncastToHalf,),
    "runningStatisticsAlwaysFloat": (True,), "autocastEnabled": (False,), "autocastPolicy": (None,),
    "traceModel": (False,), "disable": (), "setEnvVarNames": ("A", "B"), "configureProcessId": (0, 2),
    "setFileStore": ("store",), "set": ("autoRecomputation", 1), "setEngineOptions": ({"a": "b"},),
    "setPatterns": ({"a": True},), "createOrSet": (), "deleteIfExists": ("onChip",),
}


def groups(options: poptorch.Options) -> list[OptionsDict]:
    """Return all groups, and those within them."""
    locations = options.TensorLocations
    return [
        options.Training, options.Precision, options.Distributed, options.Jit, options._Popart, locations,
        *(getattr(locations, name) for name in LOCATIONS),
    ]


def setters(group: OptionsDict) -> list[Callable[[], Any]]:
    """Return a call of each method that changes a group."""
    names = [name for name in dir(type(group)) if not name.startswith("_") and name not in READING]
    calls = []
    for name in names:
        if isinstance(getattr(type(group), name), property):
            continue
        takes_keywords = name == "createOrSet" or (name == "set" and group.__class__.__name__ != "_PopartOptions")
        known = dict([next(iter(group.__dict__["_values"].items()), ("new", 1))])
        if takes_keywords and name == "set" and not group.__dict__["_values"]:
            continue  # nothing is there to be set
        more = known if takes_keywords else {}
        calls.append(lambda n=name, m=more: getattr(group, n)(*(() if m else ARGUMENTS[n]), **m))
    return calls


def by_model(options: poptorch.Options) -> None:
    poptorch.inferenceModel(nn.Linear(2, 2), options)


def by_loader(options: poptorch.Options) -> None:
    poptorch.DataLoader(options, torch.utils.data.TensorDataset(torch.ones(4)))


@pytest.mark.parametrize("freeze", [by_model, by_loader])
def test_no_group_can_be_changed_once_options_are_in_use(freeze: Callable[[poptorch.Options], None]) -> None:
    settings = poptorch.TensorLocationSettings().useOnChipStorage(False)
    options = poptorch.Options()
    options.TensorLocations.setOptimizerLocation(settings)
    freeze(options)
    before, count = repr(options), 0
    for group in groups(options):
        for call in setters(group):
            with pytest.raises(AttributeError, match="Can't modify frozen Options"):
                call()
            count += 1
    for write in (
        lambda: setattr(options.TensorLocations.location_optimizer, "onChip", True),
        lambda: setattr(options.Training, "gradient_accumulation", 2),
        lambda: settings.useOnChipStorage(True),
    ):
        with pytest.raises(AttributeError, match="Can't modify frozen Options"):
            write()
    assert repr(options) == before
    assert count > len(ARGUMENTS)


@pytest.mark.parametrize("duplicate", [poptorch.Options.clone, copy.deepcopy])
def test_a_copy_of_options_in_use_can_be_changed_without_changing_them(
    duplicate: Callable[[poptorch.Options], poptorch.Options],
) -> None:
    options = poptorch.Options()
    options.TensorLocations.setWeightLocation(poptorch.TensorLocationSettings().minElementsForOffChip(7))
    executor = poptorch.inferenceModel(nn.Linear(2, 2), options)
    for frozen in (options, executor.options):
        before = repr(frozen)
        twin = duplicate(frozen)
        for group in groups(twin):
            for call in setters(group):
                call()
        assert repr(frozen) == before
        assert repr(twin) != before
        with pytest.raises(AttributeError, match="Can't modify frozen Options"):
            frozen.TensorLocations.location_weight.useOnChipStorage(False)


def test_options_of_the_graph_compiler_are_read_and_removed_by_name() -> None:
    popart = poptorch.Options()._Popart.set("a.b", 3).createOrSet(autoRecomputation=1)
    assert popart("a.b") == 3
    assert popart("autoRecomputation") == 1
    assert not popart.deleteIfExists("a.b").exists("a.b")
    with pytest.raises(AssertionError, match=r"Invalid option a\.b"):
        popart("a.b")


def test_a_wrapper_keeps_the_locations_that_it_was_given() -> None:
    settings = poptorch.TensorLocationSettings().useOnChipStorage(False)
    options = poptorch.Options()
    options.TensorLocations.setWeightLocation(settings)
    executor = poptorch.inferenceModel(nn.Linear(2, 2), options)
    assert executor.options.TensorLocations.location_weight is not settings
    options._unfreeze()
    settings.useOnChipStorage(True)
    assert executor.options.TensorLocations.location_weight.toDict() == {"onChip": False}
