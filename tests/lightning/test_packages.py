"""Both of Lightning's packages have classes of their own; private names of theirs that are missing are named."""

from __future__ import annotations

import importlib

import pytest
import torch

from torchipu.lightning import package as packages
from torchipu.lightning import registration

PACKAGES = ("lightning.pytorch", "pytorch_lightning")


@pytest.mark.parametrize("name", PACKAGES)
def test_private_names_are_there(name: str) -> None:
    importlib.import_module(name)
    assert packages.missing_names(name) == []
    assert packages.missing_names(name, packages.CONNECTOR_NAMES) == []


@pytest.mark.parametrize("name", PACKAGES)
def test_module_trains_in_either_package(name: str) -> None:
    pl = importlib.import_module(name)
    boring = importlib.import_module(f"{name}.demos.boring_classes").BoringModel()
    trainer = pl.Trainer(
        accelerator="ipu", devices=1, max_epochs=1, limit_train_batches=4, limit_val_batches=1, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )
    before = boring.layer.weight.detach().clone()
    trainer.fit(boring)
    assert type(trainer.strategy).__module__ == f"{name}.strategies"
    assert isinstance(trainer.strategy, importlib.import_module(f"{name}.strategies").Strategy)
    assert not torch.equal(before, boring.layer.weight)


def test_accelerator_names_what_a_version_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    from lightning.pytorch import Trainer

    monkeypatch.delattr("lightning.pytorch.loops.fit_loop._FitLoop._skip_backward")
    with pytest.raises(ImportError, match=r"works with lightning>=2.6,<2.7; .* lacks .*_FitLoop._skip_backward"):
        Trainer(accelerator="ipu", devices=1, logger=False)


def test_connector_without_its_methods_leaves_a_name_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from lightning.pytorch.accelerators import AcceleratorRegistry
    from lightning.pytorch.trainer.connectors import accelerator_connector

    monkeypatch.delattr(accelerator_connector._AcceleratorConnector, "_choose_strategy")
    kept = AcceleratorRegistry.pop("ipu")
    try:
        registration.install(accelerator_connector)
        with pytest.raises(ImportError, match=r"_AcceleratorConnector\._choose_strategy"):
            AcceleratorRegistry.get("ipu")
    finally:
        AcceleratorRegistry["ipu"] = kept


def test_second_installation_changes_nothing() -> None:
    from lightning.pytorch import strategies
    from lightning.pytorch.trainer.connectors import accelerator_connector

    before = strategies.IPUStrategy
    registration.install(accelerator_connector)
    assert strategies.IPUStrategy is before


def test_names_are_those_of_lightning_and_its_absence_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from lightning.pytorch import strategies

    import torchipu.lightning as ours

    assert ours.IPUStrategy is strategies.IPUStrategy
    with pytest.raises(AttributeError, match="no attribute 'IPUTrainer'"):
        ours.IPUTrainer  # noqa: B018
    for name in [name for name in sys.modules if name.split(".")[0] == "lightning"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "lightning", None)
    with pytest.raises(ImportError, match=r'needs Lightning.*\n.*pip install "torchipu\[lightning\]"'):
        ours.IPUPrecision  # noqa: B018
