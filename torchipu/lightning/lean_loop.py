"""The loop over training batches without what nobody looks at: hooks that are not overridden, copies, contexts.

A batch costs Lightning about half a millisecond of Python, which a CPU or GPU step hides; a call of ours that has run a
hundred batches at once hands out their results in less. What a batch changes, and whom it tells, stays: progress,
callbacks, logs, schedulers, validation. Where somebody may see a difference, Lightning's own ``advance`` runs.
"""

from __future__ import annotations

from typing import Any

from torchipu.lightning.package import Package, module_of

HOOKS = (
    "on_train_batch_start", "on_train_batch_end", "on_before_batch_transfer", "transfer_batch_to_device",
    "on_after_batch_transfer",
)


class LeanEpoch:
    """Stands in for ``advance`` of the loop over batches.

    Args:
        trainer: The Trainer, in a fit of automatic optimisation.
        module: The Lightning module.
        package: Which of Lightning's packages.
        has_gradient_hooks: Whether somebody looks at gradients.
    """

    def __init__(self, trainer: Any, module: Any, package: Package, has_gradient_hooks: bool) -> None:
        self.trainer, self.module = trainer, module
        self.loop = trainer.fit_loop.epoch_loop
        self.calling = module_of(package.name, "trainer.call")
        self.fetchers = module_of(package.name, "loops.fetchers")
        self.watching = {
            name: any(package.is_overridden(name, callback) for callback in trainer.callbacks)
            for name in ("on_train_batch_start", "on_train_batch_end")
        }
        self.is_watched = any(self.watching.values())
        self.has_gradient_hooks = has_gradient_hooks
        signature = module_of(package.name, "utilities.signature_utils").is_param_in_hook_signature
        self.takes_index = signature(module.training_step, "batch_idx", min_args=2)
        self.usual = self.loop.advance

    def advance(self, fetcher: Any) -> None:
        """Run a batch.

        Args:
            fetcher: Of the loop's batches.
        """
        loop = self.loop
        if loop.restarting or isinstance(fetcher, self.fetchers._DataLoaderIterDataFetcher):
            self.usual(fetcher)
            return
        loop.val_loop.restarting = False
        trainer, progress, connector = self.trainer, loop.batch_progress, self.trainer._logger_connector
        batch, _, _ = next(fetcher)
        index = loop.batch_idx + 1
        progress.is_last_batch = fetcher.done
        if batch is not None:
            batch = trainer.strategy.batch_to_device(trainer.precision_plugin.convert_input(batch))
        progress.increment_ready()
        connector.on_batch_start(batch)
        outputs, is_within = None, False
        if batch is None:
            loop._warning_cache.warn(
                "train_dataloader yielded None. If this was on purpose, ignore this warning..."
            )
        else:
            self._tell("on_train_batch_start", batch, index)
            progress.increment_started()
            is_within = index % trainer.accumulate_grad_batches != 0 and loop._should_accumulate()
            outputs = self._step(batch, index, is_within)
        progress.increment_processed()
        if not is_within:
            loop.update_lr_schedulers("step", update_plateau_schedulers=False)
            if loop._num_ready_batches_reached():
                loop.update_lr_schedulers("epoch", update_plateau_schedulers=False)
        self._tell("on_train_batch_end", outputs, batch, index)
        if is_within and not self.is_watched:
            # The next batch overwrites what nobody has asked for.
            loop._results.batch = loop._results.batch_size = None
        else:
            connector.on_batch_end()
        progress.increment_completed()
        if not is_within:
            connector.update_train_step_metrics()

    def _tell(self, hook: str, *args: Any) -> None:
        if self.watching[hook]:
            self.calling._call_callback_hooks(self.trainer, hook, *args)

    def _step(self, batch: Any, index: int, is_within: bool) -> Any:
        """Run the step; within a group of accumulated batches nothing is cleared before it, nor updated behind it."""
        trainer, automatic = self.trainer, self.loop.automatic_optimization
        given = {"batch": batch, "batch_idx": index} if self.takes_index else {"batch": batch}
        if not is_within or self.has_gradient_hooks or automatic._skip_backward:
            return automatic.run(trainer.optimizers[0], index, given)
        held = self.module.__dict__
        before, held["_current_fx_name"] = held["_current_fx_name"], "training_step"
        try:
            returned = trainer.strategy.training_step(*given.values())
        finally:
            held["_current_fx_name"] = before
        result = automatic.output_result_cls.from_training_step_output(returned, trainer.accumulate_grad_batches)
        return {} if result.loss is None else result.asdict()


def lean_epoch(trainer: Any, module: Any, package: Package, has_gradient_hooks: bool) -> LeanEpoch | None:
    """Return what stands in for ``advance``, or None where Lightning's own has to run.

    Args:
        trainer: The Trainer.
        module: The Lightning module.
        package: Which of Lightning's packages.
        has_gradient_hooks: Whether somebody looks at gradients.
    """
    loops = module_of(package.name, "loops.training_epoch_loop")
    profilers = module_of(package.name, "profilers.profiler")
    loop = trainer.fit_loop.epoch_loop
    owners = [module, *([] if trainer.datamodule is None else [trainer.datamodule])]
    is_usual = (
        module.automatic_optimization and trainer.world_size == 1 and type(loop) is loops._TrainingEpochLoop
        and "advance" not in loop.__dict__ and _passes_through(trainer.profiler, profilers)
        and not any(package.is_overridden(name, owner) for name in HOOKS for owner in owners)
    )
    return LeanEpoch(trainer, module, package, has_gradient_hooks) if is_usual else None


def _passes_through(profiler: Any, profilers: Any) -> bool:
    return type(profiler).__name__ == "PassThroughProfiler" and isinstance(profiler, profilers.Profiler)
