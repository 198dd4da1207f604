"""The strategy: which program a stage has, when it runs, and who is given its results."""

from __future__ import annotations

import json
import os
import warnings
from collections import deque
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch

from torchipu.lightning import lookahead, processes, refusals
from torchipu.lightning.expressions import Surroundings
from torchipu.lightning.gradient_hooks import ClippingHook, GradientHooks
from torchipu.lightning.lean_loop import LeanEpoch, lean_epoch
from torchipu.lightning.merged_loader import MergedLoader, pieces_of
from torchipu.lightning.package import Package

if TYPE_CHECKING:
    # Who imports Lightning imports this module: PopTorch's part of torchipu waits until a Trainer uses IPUs.
    from torchipu.lightning.batches import Batch
    from torchipu.lightning.stage import InferenceStage, Result, StageModel
    from torchipu.poptorch.options import Options

ENGINE_OPTIONS_VARIABLE = "POPLAR_ENGINE_OPTIONS"
TRANSFER_HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
STEPS = {
    "train": "training_step", "validate": "validation_step", "sanity_check": "validation_step", "test": "test_step",
    "predict": "predict_step",
}


_Base: Any = object
"""In its place comes ParallelStrategy of either package, when a class is made of the methods here."""


class IPUStrategyMethods(_Base):
    """What IPUStrategy does beside Lightning's ParallelStrategy, which is its other base.

    Args:
        accelerator: An IPUAccelerator, where the Trainer is given none.
        device_iterations: Weight updates, or batches of evaluation, in one call of the device.
        autoreport: Write the profile of each program.
        autoreport_dir: Where to; a folder for each stage is made in it.
        parallel_devices: IPUs.
        cluster_environment: Which process this is.
        checkpoint_io: How checkpoints are written.
        precision_plugin: An IPUPrecision.
        training_opts: poptorch.Options of training; made from the Trainer's arguments where there are none.
        inference_opts: The same for validation, tests and prediction.
        process_group: Processes that train together; None for the default group where there are several.

    Raises:
        MisconfigurationException: There are no IPUs, or options are none of PopTorch's.
    """

    strategy_name = "ipu_strategy"
    package: Package

    def __init__(
        self, accelerator: Any = None, device_iterations: int = 1, autoreport: bool = False,
        autoreport_dir: str | os.PathLike[str] | None = None, parallel_devices: list[torch.device] | None = None,
        cluster_environment: Any = None, checkpoint_io: Any = None, precision_plugin: Any = None,
        training_opts: Options | None = None, inference_opts: Options | None = None, process_group: Any = None,
    ) -> None:
        super().__init__(
            accelerator=accelerator, parallel_devices=parallel_devices, cluster_environment=cluster_environment,
            checkpoint_io=checkpoint_io, precision_plugin=precision_plugin,
        )
        from torchipu.lightning import stage_options

        error = self.package.misconfigured
        if not self.package.accelerator.is_available():
            raise error("The IPU Accelerator requires IPU devices to run")
        if isinstance(device_iterations, bool) or not isinstance(device_iterations, int) or device_iterations < 1:
            raise error(f"IPUStrategy(device_iterations=...) takes a number from 1, got {device_iterations!r}")
        stage_options.check(training_opts, "training_opts", error)
        stage_options.check(inference_opts, "inference_opts", error)
        self.device_iterations = device_iterations
        self.autoreport = autoreport
        self.autoreport_dir = autoreport_dir
        self.poptorch_models: dict[Any, StageModel] = {}
        self._training_opts = training_opts
        self._inference_opts = inference_opts
        self._made: dict[str, Options] = {}
        self._process_group = process_group
        self._whole_calls: dict[str, bool] = {}
        self._ready: dict[str, deque[Result]] = {}
        self._ready_of: dict[str, object] = {}
        self._converted: dict[str, deque[Any]] = {}
        self._has_transfer_hooks = False
        self._hooks: GradientHooks | None = None
        self._clipping: ClippingHook | None = None
        self._gradients: dict[str, torch.Tensor] | None = None
        self._lean: LeanEpoch | None = None
        if autoreport:
            self._switch_reports_on()

    def _switch_reports_on(self) -> None:
        wanted: dict[str, Any] = {"autoReport.all": True}
        if self.autoreport_dir is not None:
            os.makedirs(self.autoreport_dir, exist_ok=True)
            wanted["autoReport.directory"] = os.fspath(self.autoreport_dir)
        os.environ[ENGINE_OPTIONS_VARIABLE] = json.dumps(wanted)

    # ------------------------------------------------------------------ what Lightning reads
    @property
    def root_device(self) -> torch.device:
        """The host, where batches and weights lie between calls."""
        return torch.device("cpu")

    @property
    def is_distributed(self) -> bool:
        """Whether loaders are shared among processes; replicas share them in one process."""
        return bool(self.world_size > 1)

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """How samples are shared among processes."""
        return {"num_replicas": self.world_size, "rank": self.global_rank}

    @property
    def training_opts(self) -> Options:
        """poptorch.Options of training."""
        if self._training_opts is not None:
            return self._training_opts
        return self._made_for("training", self._accumulate)

    @property
    def inference_opts(self) -> Options:
        """poptorch.Options of validation, tests and prediction."""
        return self._inference_opts if self._inference_opts is not None else self._made_for("inference", 1)

    def _made_for(self, name: str, accumulation: int) -> Options:
        from torchipu.lightning import stage_options

        if name not in self._made:
            self._made[name] = stage_options.made_options(self.device_iterations, self._num_devices, accumulation)
        return self._made[name]

    @property
    def _num_devices(self) -> int:
        return len(self.parallel_devices or [0])

    @property
    def replication_factor(self) -> int:
        """Copies of the model in this stage."""
        module = self._module
        if module is not None and module._trainer is not None:
            stage = module.trainer.state.stage
            if stage in self.poptorch_models:
                return int(self.poptorch_models[stage]._options.toDict()["replication_factor"])
        for given in (self._training_opts, self._inference_opts):
            if given is not None:
                return int(given.replication_factor)
        return self._num_devices

    @property
    def _module(self) -> Any:
        return self.lightning_module

    @property
    def _trainer(self) -> Any:
        return self._module.trainer

    @property
    def _stage(self) -> Any:
        return self._trainer.state.stage

    @property
    def _accumulate(self) -> int:
        module = self._module
        return int(module.trainer.accumulate_grad_batches) if module is not None and module._trainer else 1

    # ------------------------------------------------------------------ setting up
    def setup_environment(self) -> None:
        """Join the other processes, if there are some."""
        super().setup_environment()
        processes.join(self.world_size, self.global_rank, self.cluster_environment)

    def model_to_device(self) -> None:
        """Do nothing: a program takes the weights with it when it runs."""

    def setup(self, trainer: Any) -> None:
        """Make the stages of a fit, a validation, a test or a prediction.

        Args:
            trainer: The Trainer.
        """
        module, package = self._module, self.package
        is_fit = trainer.state.fn == package.functions.FITTING
        self._forget()
        self._has_transfer_hooks = any(
            package.is_overridden(name, owner)
            for name in TRANSFER_HOOKS for owner in (module, trainer.datamodule) if owner is not None
        )
        if is_fit:
            refusals.check_fit(trainer, module, package.is_overridden, package.misconfigured)
            hooks = self._hooks = GradientHooks(trainer, module, package)
            self._clipping = ClippingHook(
                trainer, module,
                module.automatic_optimization and package.is_overridden("configure_gradient_clipping", module),
            )
        else:
            refusals.check_iterator_steps(module, package.misconfigured)
        before = self.poptorch_models
        self._make_stages(trainer, is_fit)
        super().setup(trainer)
        if is_fit:
            refusals.check_optimizers(
                self.optimizers, package.misconfigured, is_automatic=module.automatic_optimization,
            )
            training: Any = self.poptorch_models[package.stages.TRAINING]
            if module.automatic_optimization:
                self._warn_of_schedulers()
                training.optimizer = self._own_optimizer()
                training.shows_gradients = "by batch" if hooks.are_wanted_by_batch else hooks.are_wanted
                self._use_lean_loop(hooks)
            else:
                training.optimizers = [one for one in self.optimizers if one.param_groups]
        processes.broadcast_module(module, self.world_size)
        for stage, model in self.poptorch_models.items():
            known = before.get(stage)
            if known is not None and model.goes_on_from(known):
                known.take_over(model)
                self.poptorch_models[stage] = known
        validating = self.poptorch_models.get(package.stages.VALIDATING)
        if is_fit and validating is not None:
            self.poptorch_models[package.stages.SANITY_CHECKING] = validating

    def _use_lean_loop(self, hooks: GradientHooks) -> None:
        """Let the loop over batches leave out what nobody looks at."""
        epoch = lean_epoch(self._trainer, self._module, self.package, hooks.are_wanted or hooks.sees_losses)
        if epoch is not None:
            self._lean = epoch
            epoch.loop.advance = epoch.advance

    def _leave_lean_loop(self) -> None:
        if self._lean is not None:
            self._lean.loop.__dict__.pop("advance", None)
            self._lean = None

    def _own_optimizer(self) -> torch.optim.Optimizer | None:
        found = self.optimizers[0] if self.optimizers else None
        # Lightning's stand-in, where configure_optimizers gives none.
        return None if found is None or not found.param_groups else found

    def _warn_of_schedulers(self) -> None:
        options = self.training_opts
        configs = self.lr_scheduler_configs
        if options.device_iterations > 1 and any(config.interval == "step" for config in configs):
            warnings.warn(
                f"A learning-rate scheduler steps after every update, but a call makes {options.device_iterations} "
                "updates, all with the learning rates of its beginning: use interval='epoch', or device_iterations=1.",
                stacklevel=2,
            )

    def _make_stages(self, trainer: Any, is_fit: bool) -> None:
        from torchipu.lightning import stage_options
        from torchipu.lightning.manual_stage import ManualStage
        from torchipu.lightning.stage import TrainingStage

        stages, module = self.package.stages, self._module
        self._made.clear()
        models: dict[Any, StageModel] = {}
        if is_fit:
            kind = TrainingStage if module.automatic_optimization else ManualStage
            training = kind(
                module, stage_options.ready(self.training_opts, is_training=True), self._surroundings,
                self.package.misconfigured, self._training_changes(trainer),
            )
            models[stages.TRAINING] = training
            for stage in (stages.VALIDATING, stages.SANITY_CHECKING):
                models[stage] = self._inference_stage()
        else:
            stage = trainer.state.stage
            models[stages.VALIDATING if stage == stages.SANITY_CHECKING else stage] = self._inference_stage()
        self.poptorch_models = models

    def _inference_stage(self) -> InferenceStage:
        from torchipu.lightning import stage_options
        from torchipu.lightning.stage import InferenceStage

        options = stage_options.ready(self.inference_opts, is_training=False)
        return InferenceStage(
            self._module, options, self._surroundings, self.package.misconfigured,
            processes.alone(),
        )

    def _training_changes(self, trainer: Any) -> dict[str, Any]:
        """Return options of the core that the Trainer's arguments set."""
        changes: dict[str, Any] = {}
        limit = trainer.gradient_clip_val
        if limit is not None and limit > 0:
            by_value = trainer.gradient_clip_algorithm is not None and trainer.gradient_clip_algorithm == "value"
            changes["max_grad_value" if by_value else "max_grad_norm"] = float(limit)
        changes |= processes.options(self.world_size, self._process_group)
        return changes

    def _surroundings(self) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = self.precision_plugin.forward_context()
        return context

    def _forget(self) -> None:
        """Drop results and batches that nobody will ask for."""
        self._ready.clear()
        self._ready_of.clear()
        self._converted.clear()

    # ------------------------------------------------------------------ loaders
    def process_dataloader(self, dataloader: Any) -> Any:
        """Return a loader of Lightning's batches: in training those of all replicas together.

        Args:
            dataloader: The user's; one of PopTorch's is left as it is, and one of its batches is a whole call.
        """
        from torchipu.poptorch.data.loader import DataLoader as PoptorchLoader

        stage = self._stage
        prefix = getattr(stage, "value", str(stage))
        is_training = stage == self.package.stages.TRAINING
        is_poptorch = isinstance(dataloader, PoptorchLoader)
        self._whole_calls[prefix] = is_poptorch
        if is_training and not self._module.automatic_optimization:
            refusals.check_manual(self.training_opts, is_poptorch, self.package.misconfigured)
        if is_poptorch:
            if is_training and self._accumulate > 1:
                raise self.package.misconfigured(
                    "A poptorch.DataLoader gives the micro-batches of a whole call at once: set gradient accumulation "
                    "in its options and in training_opts, and leave `Trainer(accumulate_grad_batches=1)`, not "
                    f"{self._accumulate}"
                )
            return dataloader
        if not is_training:
            return dataloader
        count = self._batches_together()
        refusals.check_batch_sampler(dataloader, self.training_opts.replication_factor, self.package.misconfigured)
        return dataloader if count == 1 else MergedLoader(dataloader, count)

    def _batches_together(self) -> int:
        """Return how many of the user's batches are one of Lightning's: those of replicas, and accumulated ones."""
        options, accumulate = self.training_opts, self._accumulate
        wanted = options.Training.gradient_accumulation if self._training_opts is not None else accumulate
        if wanted % accumulate:
            raise self.package.misconfigured(
                f"training_opts.Training.gradientAccumulation({wanted}) and `Trainer(accumulate_grad_batches="
                f"{accumulate})` contradict each other: give one of them, or multiples"
            )
        return int(options.replication_factor * (wanted // accumulate))

    # ------------------------------------------------------------------ steps
    def batch_to_device(self, batch: Any, device: torch.device | None = None, dataloader_idx: int = 0) -> Any:
        """Return a batch as the step is given it.

        Args:
            batch: The batch.
            device: Ignored: it stays on the host until the program runs.
            dataloader_idx: Index of its loader.
        """
        if self._module is None or not self._has_transfer_hooks:
            return self.precision_plugin.convert_input(batch)
        kept = self._converted.get(self._stage)
        if kept:
            return kept.popleft()
        return self._transferred(batch, dataloader_idx)

    def _transferred(self, batch: Any, dataloader_idx: int) -> Any:
        moved = super().batch_to_device(batch, self.root_device, dataloader_idx)
        return self.precision_plugin.convert_input(moved)

    def _drawn_early(self, raw: Any, dataloader_idx: int) -> Any:
        """Do with a batch that is drawn early what the loop does with one in its turn."""
        raw = self.precision_plugin.convert_input(raw)
        if not self._has_transfer_hooks:
            return raw
        raw = self._module._on_before_batch_transfer(raw, dataloader_idx=dataloader_idx)
        moved = self._transferred(raw, dataloader_idx)
        self._converted.setdefault(self._stage, deque()).append(moved)
        return moved

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Train: run the call that this batch begins, or take its result of an earlier one."""
        trainer = self._trainer
        if trainer.fit_loop._skip_backward:  # the pass of SWA that refreshes batch normalisations
            with self._surroundings():
                return self._module.training_step(*args, **kwargs)
        return self._next("training_step", args, self._train)

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        """Validate a batch."""
        return self._next("validation_step", args, self._evaluate)

    def test_step(self, *args: Any, **kwargs: Any) -> Any:
        """Test a batch."""
        return self._next("test_step", args, self._evaluate)

    def predict_step(self, *args: Any, **kwargs: Any) -> Any:
        """Predict a batch."""
        return self._next("predict_step", args, self._evaluate)

    def _next(self, hook: str, args: tuple[Any, ...], run: Any) -> Any:
        trainer, stage = self._trainer, self._stage
        fetcher = trainer._active_loop._data_fetcher
        # Results of an epoch that ended early are nobody's.
        origin = (id(fetcher.iterator), trainer.current_epoch)
        ready = self._ready.setdefault(stage, deque())
        if ready and self._ready_of.get(stage) != origin:
            ready.clear()
        if not ready:
            ready.extend(run(hook, args, fetcher))
            self._ready_of[stage] = (id(fetcher.iterator), trainer.current_epoch)
        result = ready.popleft()
        self._gradients = result.gradients
        return result.replay(self._module)

    def _index(self, args: tuple[Any, ...]) -> int:
        """Return the index of the batch, which a step may leave out."""
        loop = self._trainer._active_loop
        loop = getattr(loop, "epoch_loop", loop)
        progress: Any = loop.batch_progress
        return int(progress.current.ready) - 1

    def _train(self, hook: str, args: tuple[Any, ...], fetcher: Any) -> list[Result]:
        from torchipu.lightning.batches import batch_of

        trainer = self._trainer
        stage: Any = self.poptorch_models[self.package.stages.TRAINING]
        index = self._index(args)
        if not self._module.automatic_optimization:
            return [self._train_manually(hook, args, index)]
        accumulate = self._accumulate
        whole = self._whole_calls.get(self.package.stages.TRAINING.value, False)
        options = stage.options
        if self._clipping is not None and stage.optimizer is not None:
            stage.limits = self._clipping.limits(stage.optimizer)
        stage.accumulate = accumulate
        stage.iterations_of_batch = options.device_iterations if whole else 1
        stage.pieces = self._batches_together() * stage.iterations_of_batch
        count = 1
        if not whole and (accumulate > 1 or options.device_iterations > 1):
            count = lookahead.batches_to_come(trainer, index, accumulate, options.device_iterations)
        raws = [args[0]] + [
            self._drawn_early(raw, 0) for raw, _, _ in lookahead.upcoming(fetcher, count - 1)
        ]
        at: dict[str, Any] = {}
        batches: list[Batch] = []
        for offset, raw in enumerate(raws):
            done = (index % accumulate + offset) // accumulate
            at = {**at, "batch_idx": index + offset, "global_step": trainer.global_step + done}
            rest = (index + offset, *args[2:]) if len(args) > 1 else ()
            pieces = stage.pieces if whole else pieces_of(raw, stage.pieces)
            batches.append(batch_of(hook, raw, rest, pieces, Surroundings(at)))
        results: list[Result] = stage.run(lookahead.into_updates(batches, index, accumulate))
        return results

    def _train_manually(self, hook: str, args: tuple[Any, ...], index: int) -> Result:
        """Run a step that calls its optimisers itself, on its batch alone."""
        from torchipu.lightning.batches import batch_of

        stage: Any = self.poptorch_models[self.package.stages.TRAINING]
        stage.pieces = self._batches_together()
        at = Surroundings({"batch_idx": index, "global_step": self._trainer.global_step})
        rest = (index, *args[2:]) if len(args) > 1 else ()
        result: Result = stage.run(batch_of(hook, args[0], rest, pieces_of(args[0], stage.pieces), at))
        return result

    def _evaluate(self, hook: str, args: tuple[Any, ...], fetcher: Any) -> list[Result]:
        from torchipu.lightning.batches import batch_of

        trainer = self._trainer
        stage: Any = self.poptorch_models[self._stage]
        options = stage.options
        group = options.device_iterations * options.replication_factor
        whole = self._whole_calls.get(self._stage.value, False)
        index = args[1] if len(args) > 1 else self._index(args)
        loader = args[2] if len(args) > 2 else 0
        coming = [] if whole or group == 1 else lookahead.upcoming(fetcher, group - 1)
        raws = [args[0]]
        for raw, _, which in coming:
            if which != loader:
                break
            raws.append(self._drawn_early(raw, which))
        pieces = group if whole else 1
        batches = [
            batch_of(
                hook, raw, (index + offset, *args[2:]) if len(args) > 1 else (), pieces,
                Surroundings({"batch_idx": index + offset, "global_step": trainer.global_step}),
            ) for offset, raw in enumerate(raws)
        ]
        results: list[Result] = stage.run(batches)
        return results

    # ------------------------------------------------------------------ in place of backward and step
    def backward(self, closure_loss: torch.Tensor, optimizer: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return the loss: the program has run the backward pass; hooks are given its gradients."""
        if self._hooks is not None:
            self._hooks.call("on_before_backward", closure_loss)
            if self._gradients is not None:
                self._hooks.show(self._gradients)
            self._hooks.call("on_after_backward")
        return closure_loss

    def optimizer_step(self, optimizer: Any, closure: Any, model: Any = None, **kwargs: Any) -> Any:
        """Run the closure, in which the program makes the update."""
        result = closure()
        optimizer._opt_called = True  # schedulers warn otherwise
        if self._hooks is not None:
            self._hooks.call("on_before_optimizer_step", optimizer)
        return result

    def load_optimizer_state_dict(self, checkpoint: Any) -> None:
        """Load states of optimisers in the types that they have in a checkpoint; torch would take the weights'."""
        super().load_optimizer_state_dict(checkpoint)
        for optimizer, saved in zip(self.optimizers, checkpoint["optimizer_states"], strict=False):
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            for number, parameter in enumerate(parameters):
                for name, value in saved["state"].get(number, {}).items():
                    held = optimizer.state[parameter].get(name)
                    if isinstance(value, torch.Tensor) and isinstance(held, torch.Tensor) and held.dtype != value.dtype:
                        optimizer.state[parameter][name] = value.detach().clone()

    # ------------------------------------------------------------------ processes
    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Reduce a tensor over the processes.

        Args:
            tensor: The tensor; anything else is returned as it is.
            group: The processes; None for all.
            reduce_op: ``mean``, ``sum`` or an operation of torch.distributed.
        """
        return processes.reduce(tensor, self.world_size, group, reduce_op)

    def barrier(self, name: str | None = None) -> None:
        """Wait for the other processes."""
        processes.barrier(self.world_size)

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """Return what one process has."""
        return processes.broadcast(obj, self.world_size, src)

    # ------------------------------------------------------------------ the end
    def on_exception(self, exception: BaseException) -> None:
        """Drop what was computed ahead."""
        self._forget()
        self._leave_lean_loop()
        super().on_exception(exception)

    def on_train_end(self) -> None:
        """Drop what was computed ahead."""
        self._forget()
        self._leave_lean_loop()

    def teardown(self) -> None:
        """Drop what was computed ahead, and complete the reports; programs stay, for another fit of the same module."""
        self._forget()
        self._leave_lean_loop()
        for model in self.poptorch_models.values():
            model.complete_reports()
        super().teardown()

    @classmethod
    def register_strategies(cls, registry: Any) -> None:
        """Register it under its name."""
        if cls.strategy_name not in registry:
            registry.register(cls.strategy_name, cls, description=f"{cls.__name__} of torchipu")
