"""What the tests of the old integration asserted (reference: PyTorch Lightning 2.0, tests of the accelerator "ipu")."""

from __future__ import annotations

import json
import os
import pickle
import re
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.accelerators import IPUAccelerator  # type: ignore[attr-defined]
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.plugins import IPUPrecision  # type: ignore[attr-defined]
from lightning.pytorch.strategies import IPUPlugin, IPUStrategy  # type: ignore[attr-defined]
from lightning.pytorch.trainer.states import RunningStage, TrainerFn
from lightning.pytorch.utilities.exceptions import MisconfigurationException

import torchipu.poptorch as poptorch
from tests.lightning.runs import QUIET, Classifier, Run, loader, samples
from torchipu.report.database import read_database


def trainer(**kwargs: Any) -> Trainer:
    return Trainer(accelerator="ipu", **{**QUIET, "devices": 1, **kwargs})


class _Stop(Callback):
    """Calls a function when training starts, and ends."""

    def __init__(self, look: Any) -> None:
        self.look = look

    def on_train_start(self, trainer: Any, module: Any) -> None:
        self.look(trainer, module)
        raise SystemExit


def looked_at(look: Any, model: Any = None, **kwargs: Any) -> None:
    with pytest.raises(SystemExit):
        trainer(max_epochs=1, num_sanity_val_steps=0, callbacks=[_Stop(look)], **kwargs).fit(
            model or Classifier(), loader(16)
        )


def test_auto_device_count_is_four() -> None:
    assert IPUAccelerator.auto_device_count() == 4
    assert trainer(devices="auto").num_devices == 4


@mock.patch("lightning.pytorch.accelerators.IPUAccelerator.is_available", return_value=False)
def test_trainer_fails_where_there_are_no_ipus(available: mock.MagicMock) -> None:
    with pytest.raises(MisconfigurationException, match="`IPUAccelerator` can not run on your system"):
        trainer()
    with pytest.raises(MisconfigurationException, match="The IPU Accelerator requires IPU devices to run"):
        IPUStrategy()


@pytest.mark.parametrize("devices", [1, 4])
def test_all_stages_run(devices: int) -> None:
    ours = trainer(devices=devices, fast_dev_run=True)
    model = BoringModel()
    ours.fit(model)
    ours.validate(model)
    ours.test(model)
    assert len(ours.predict(model)) == 1


def test_fit_converges_and_a_checkpoint_gives_the_same_metrics(tmp_path: Path) -> None:
    torch.manual_seed(42)
    ours = trainer(max_epochs=15)
    model = Classifier()
    ours.fit(model, loader(200, shuffle=True), loader(40))
    found = ours.test(model, loader(40), verbose=False)
    assert found[0]["val_acc"] > 0.7
    ours.save_checkpoint(tmp_path / "model.ckpt")
    again = trainer().test(
        Classifier(), loader(40), ckpt_path=tmp_path / "model.ckpt", verbose=False, weights_only=False,
    )
    assert again == found


@pytest.mark.parametrize(("given", "name"), [("16-mixed", "16-mixed"), (16, "16-mixed"), ("16-true", "16-true"),
                                              (32, "32-true")])
def test_precision_is_ipu_precision(given: Any, name: str) -> None:
    plugin = trainer(precision=given).strategy.precision_plugin
    assert isinstance(plugin, IPUPrecision)
    assert plugin.precision == name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_floating_batches_become_half(dtype: torch.dtype) -> None:
    assert trainer(precision=16).strategy.batch_to_device(torch.zeros(1, dtype=dtype)).dtype == torch.float16


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32, torch.int64])
def test_whole_numbers_in_batches_stay(dtype: torch.dtype) -> None:
    assert trainer(precision=16).strategy.batch_to_device(torch.zeros(1, dtype=dtype)).dtype == dtype


def test_pure_half_precision_halves_the_parameters() -> None:
    def look(trainer: Any, module: Any) -> None:
        assert trainer.strategy.precision_plugin.precision == "16-true"
        assert all(parameter.dtype == torch.float16 for parameter in trainer.strategy.model.parameters())

    looked_at(look, precision="16-true")


@pytest.mark.parametrize("precision", ["bf16-mixed", "64-true", "bf16-true"])
def test_other_precisions_are_refused(precision: str) -> None:
    with pytest.raises(ValueError, match=rf"accelerator='ipu', precision='{precision}'\)` is not supported"):
        trainer(precision=precision)


def test_device_iterations_are_in_the_options() -> None:
    def look(trainer: Any, module: Any) -> None:
        assert trainer.strategy.device_iterations == 2
        assert trainer.strategy.poptorch_models[RunningStage.TRAINING]._options.toDict()["device_iterations"] == 2

    looked_at(look, strategy=IPUStrategy(device_iterations=2))


def test_accumulation_is_in_the_options() -> None:
    def look(trainer: Any, module: Any) -> None:
        options = trainer.strategy.poptorch_models[RunningStage.TRAINING]._options
        assert options.Training.toDict()["gradient_accumulation"] == 2

    looked_at(look, accumulate_grad_batches=2)


def test_each_stage_calls_its_own_step() -> None:
    class Staged(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = self.loss(batch)
            return (loss - loss) + torch.tensor(1)

        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            loss = self.loss(batch)
            return (loss - loss) + torch.tensor(2)

        def test_step(self, batch: Any, batch_idx: int) -> Any:
            loss = self.loss(batch)
            return (loss - loss) + torch.tensor(3)

        def predict_step(self, batch: Any, batch_idx: int) -> Any:
            loss = self.loss(batch)
            return (loss - loss) + torch.tensor(4)

    seen: dict[str, float] = {}

    class Look(Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, *rest: Any) -> None:
            seen["train"] = float(outputs["loss"])

        def on_validation_batch_end(self, trainer: Any, module: Any, outputs: Any, *rest: Any) -> None:
            seen["validate"] = float(outputs)

        def on_test_batch_end(self, trainer: Any, module: Any, outputs: Any, *rest: Any) -> None:
            seen["test"] = float(outputs)

        def on_predict_batch_end(self, trainer: Any, module: Any, outputs: Any, *rest: Any) -> None:
            seen["predict"] = float(outputs)

    ours, model = trainer(fast_dev_run=True, callbacks=[Look()]), Staged()
    ours.fit(model, loader(16), loader(16))
    ours.test(model, loader(16), verbose=False)
    ours.validate(model, loader(16), verbose=False)
    ours.predict(model, loader(16))
    assert seen == {"train": 1, "validate": 2, "test": 3, "predict": 4}


def test_autoreport_writes_a_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", "")
    folder = tmp_path / "report"
    strategy = IPUStrategy(autoreport=True, autoreport_dir=folder)
    assert json.loads(os.environ["POPLAR_ENGINE_OPTIONS"]) == {
        "autoReport.all": True, "autoReport.directory": str(folder),
    }
    trainer(fast_dev_run=True, strategy=strategy).fit(Classifier(), loader(16), loader(16))
    for name in ("training", "inference"):  # completed with what ran when the Trainer has ended
        kinds = {one.kind for one in read_database(folder / name / "profile.pop").tables["host"]}
        assert kinds >= {"kernel", "python"}


def test_loader_of_poptorch_is_kept_as_it_is() -> None:
    own, other = poptorch.Options(), poptorch.Options()
    loader = poptorch.DataLoader(own, samples(32), batch_size=4, drop_last=True)
    ours = trainer(fast_dev_run=True, devices=2, strategy=IPUStrategy(training_opts=other))
    ours.fit(Classifier(), loader)
    assert ours.strategy.training_opts is other
    assert ours.train_dataloader is loader
    assert loader.options is own
    assert loader.drop_last


def test_batch_of_a_poptorch_loader_is_a_whole_call() -> None:
    def options() -> Any:
        opts = poptorch.Options()
        opts.deviceIterations(2)
        opts.replicationFactor(2)
        opts.Training.gradientAccumulation(3)
        return opts

    opts = options()
    ours = trainer(max_epochs=1, strategy=IPUStrategy(training_opts=opts))
    torch.manual_seed(3)
    model = Classifier()
    ours.fit(model, poptorch.DataLoader(opts, samples(96), batch_size=4))
    torch.manual_seed(3)
    other = Classifier()
    Trainer(accelerator="cpu", max_epochs=1, **QUIET).fit(other, loader(96, batch_size=24))
    assert ours.global_step == 2  # calls, of two updates each
    torch.testing.assert_close(model.net[0].weight, other.net[0].weight, rtol=1e-4, atol=1e-5)


def test_options_of_the_user_name_the_machine() -> None:
    opts = poptorch.Options()
    opts._Popart.set("torchipu.target", "bow-pod16,num_tiles=736")
    ours = trainer(max_steps=1, strategy=IPUStrategy(training_opts=opts))
    ours.fit(Classifier(), loader(8, batch_size=4))
    stage = ours.strategy.poptorch_models[RunningStage.TRAINING]
    assert stage.core().target == "bow-pod16,num_tiles=736"
    (program,) = stage.programs
    assert program.target.num_tiles == 736


def test_options_of_the_user_are_used() -> None:
    training, inference = poptorch.Options(), poptorch.Options()
    training.deviceIterations(8)
    training.replicationFactor(2)
    training.Training.gradientAccumulation(2)
    inference.deviceIterations(16)
    inference.replicationFactor(1)
    inference.Training.gradientAccumulation(1)
    ours = trainer(max_epochs=1, strategy=IPUStrategy(training_opts=training, inference_opts=inference))
    torch.manual_seed(3)
    model = Classifier()
    ours.fit(model, loader(96, batch_size=4), loader(96))
    models = ours.strategy.poptorch_models
    assert models[RunningStage.TRAINING]._options.toDict()["replication_factor"] == 2
    assert models[RunningStage.TRAINING]._options.toDict()["device_iterations"] == 8
    assert models[RunningStage.TRAINING]._options.Training.gradient_accumulation == 2
    assert models[RunningStage.VALIDATING]._options.toDict()["replication_factor"] == 1
    assert models[RunningStage.VALIDATING]._options.toDict()["device_iterations"] == 16
    torch.manual_seed(3)
    other = Classifier()
    Trainer(accelerator="cpu", max_epochs=1, **QUIET).fit(other, loader(96, batch_size=16))
    assert ours.global_step == 6
    torch.testing.assert_close(model.net[0].weight, other.net[0].weight, rtol=1e-4, atol=1e-5)


def test_options_that_nobody_gives_are_one() -> None:
    strategy = IPUStrategy()
    assert strategy.training_opts.device_iterations == 1
    assert strategy.training_opts.replication_factor == 1
    assert strategy.training_opts.Training.gradient_accumulation == 1
    assert strategy.inference_opts.replication_factor == 1


def test_replication_factor_by_stage() -> None:
    strategy = IPUStrategy()
    ours = trainer(devices=2, strategy=strategy, fast_dev_run=True)
    assert isinstance(ours.accelerator, IPUAccelerator)
    assert ours.num_devices == 2
    assert ours.strategy.replication_factor == 2

    model = BoringModel()
    training, inference = poptorch.Options(), poptorch.Options()
    training.replicationFactor(8)
    inference.replicationFactor(7)
    strategy = IPUStrategy(inference_opts=inference, training_opts=training)
    assert strategy.replication_factor == 8
    ours = trainer(strategy=strategy, fast_dev_run=True)
    strategy._lightning_module = model
    model.trainer = ours
    ours.state.fn = TrainerFn.FITTING
    ours.strategy.setup(ours)
    ours.state.stage = RunningStage.TRAINING
    assert ours.strategy.replication_factor == 8
    ours.state.stage = RunningStage.VALIDATING
    assert ours.strategy.replication_factor == 7
    for fn, stage in ((TrainerFn.VALIDATING, RunningStage.VALIDATING), (TrainerFn.TESTING, RunningStage.TESTING),
                      (TrainerFn.PREDICTING, RunningStage.PREDICTING)):
        ours.state.fn, ours.state.stage = fn, stage
        ours.strategy.setup(ours)
        assert ours.strategy.replication_factor == 7


def test_models_by_stage() -> None:
    strategy = IPUStrategy()
    ours = trainer(devices=8, strategy=strategy)
    model = BoringModel()
    model.trainer = ours
    strategy._lightning_module = model
    ours.state.fn = TrainerFn.FITTING
    ours.strategy.setup(ours)
    assert list(strategy.poptorch_models) == [
        RunningStage.TRAINING, RunningStage.VALIDATING, RunningStage.SANITY_CHECKING,
    ]
    for fn, stage in ((TrainerFn.VALIDATING, RunningStage.VALIDATING), (TrainerFn.TESTING, RunningStage.TESTING),
                      (TrainerFn.PREDICTING, RunningStage.PREDICTING)):
        ours.state.fn, ours.state.stage = fn, stage
        ours.strategy.setup(ours)
        assert list(strategy.poptorch_models) == [stage]


def test_estimated_stepping_batches_count_updates() -> None:
    ours = trainer(max_epochs=1, devices=2, accumulate_grad_batches=2)
    model = Classifier()
    ours.fit(model, loader(96, batch_size=4))
    assert ours.global_step == 6
    assert ours.estimated_stepping_batches == 6


# --------------------------------------------------------------------------- refusals
class _Two(Classifier):
    def configure_optimizers(self) -> Any:
        return [torch.optim.Adam(self.parameters()), torch.optim.Adam(self.parameters())]


class _Lbfgs(Classifier):
    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters())


class _Skipping(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return None


@pytest.mark.parametrize(("make", "words"), [
    (_Lbfgs, "IPUs and the LBFGS optimizer are not compatible."),
    (_Skipping, "Skipping backward by returning `None` from your `training_step` is not implemented for IPUs."),
])
def test_what_ipus_cannot_do_is_refused(make: type, words: str) -> None:
    with pytest.raises(MisconfigurationException, match=re.escape(words)):
        trainer(max_epochs=1).fit(make(), loader(16))


def test_several_optimizers_are_refused() -> None:
    with pytest.raises((MisconfigurationException, RuntimeError), match="optimizer"):
        trainer(max_epochs=1).fit(_Two(), loader(16))


def test_backward_of_the_user_is_ignored_and_named() -> None:
    make = type("Hooked", (Classifier,), {"backward": lambda self, *args, **kwargs: None})
    with pytest.warns(UserWarning, match="`backward` hook in `Hooked`, but it will be ignored"):
        trainer(fast_dev_run=True).fit(make(), loader(16))


def test_zero_grad_of_the_user_is_called_and_harmless() -> None:
    called: list[int] = []

    class Zeroing(Classifier):
        def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Any) -> None:
            called.append(batch_idx)
            optimizer.zero_grad()

    trainer(fast_dev_run=True).fit(Zeroing(), loader(16))
    assert called == [0]


def test_batch_sampler_on_several_ipus_is_refused() -> None:
    class Sampler(torch.utils.data.BatchSampler):
        pass

    sampler = Sampler(torch.utils.data.SequentialSampler(samples(16)), 4, False)
    with pytest.raises(MisconfigurationException, match="not possible to have a batch sampler in your dataloader"):
        trainer(devices=2, max_epochs=1).fit(
            Classifier(), torch.utils.data.DataLoader(samples(16), batch_sampler=sampler)
        )


@pytest.mark.parametrize(("kwargs", "words"), [
    ({"devices": 3}, "IPUs come in powers of two"),
    ({"strategy": "ddp", "devices": 2}, "needs the strategy `IPUStrategy`"),
])
def test_arguments_that_contradict_each_other(kwargs: dict[str, Any], words: str) -> None:
    with pytest.raises(MisconfigurationException, match=words):
        trainer(**kwargs)


def test_strategy_on_the_cpu_is_refused() -> None:
    with pytest.raises(MisconfigurationException, match=r"needs `Trainer\(accelerator='ipu'\)`, found CPUAccelerator"):
        Trainer(accelerator="cpu", strategy=IPUStrategy(), **QUIET)


@pytest.mark.parametrize("given", [0, 1.5, True])
def test_device_iterations_are_a_number_from_one(given: Any) -> None:
    with pytest.raises(MisconfigurationException, match="takes a number from 1"):
        IPUStrategy(device_iterations=given)


def test_options_are_those_of_poptorch() -> None:
    with pytest.raises(MisconfigurationException, match=r"training_opts=...\) takes poptorch.Options, got dict"):
        IPUStrategy(training_opts={})


def test_accumulation_of_trainer_and_options_must_agree() -> None:
    opts = poptorch.Options()
    opts.Training.gradientAccumulation(3)
    with pytest.raises(MisconfigurationException, match="contradict each other"):
        trainer(max_epochs=1, accumulate_grad_batches=2, strategy=IPUStrategy(training_opts=opts)).fit(
            Classifier(), loader(16)
        )


def test_accumulation_beside_a_poptorch_loader_is_refused() -> None:
    opts = poptorch.Options()
    with pytest.raises(MisconfigurationException, match="gives the micro-batches of a whole call at once"):
        trainer(max_epochs=1, accumulate_grad_batches=2, strategy=IPUStrategy(training_opts=opts)).fit(
            Classifier(), poptorch.DataLoader(opts, samples(16), batch_size=4)
        )


def test_schedulers_by_step_with_several_updates_a_call_are_warned_of() -> None:
    class Stepped(Classifier):
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    with pytest.warns(UserWarning, match="a call makes 4 updates, all with the learning rates of its beginning"):
        trainer(fast_dev_run=True, strategy=IPUStrategy(device_iterations=4)).fit(Stepped(), loader(16))


def test_older_name_is_the_strategy_and_classes_are_pickled() -> None:
    assert IPUPlugin is IPUStrategy
    assert pickle.loads(pickle.dumps(IPUStrategy)) is IPUStrategy
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert isinstance(trainer(strategy="ipu_strategy").strategy, IPUStrategy)
        assert isinstance(Trainer(accelerator=IPUAccelerator(), devices=1, **QUIET).strategy, IPUStrategy)


@pytest.mark.parametrize("precision", ["16-true", "16-mixed"])
def test_half_precision_learns_and_keeps_float_moments(precision: str) -> None:
    ours = Run("ipu", Classifier, lambda: (loader(200, shuffle=True), loader(40)), max_epochs=15, precision=precision)
    assert ours.metrics["val_acc"] > 0.7
    state = ours.trainer.optimizers[0].state[ours.module.net[0].weight]
    assert state["exp_avg_sq"].dtype == torch.float32
    assert ours.module.net[0].weight.dtype == (torch.float16 if precision == "16-true" else torch.float32)
