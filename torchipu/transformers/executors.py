"""The programs of an `IPUTrainer`: one for training, and one for each shape of a batch in inference."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from torchipu import poptorch
from torchipu.errors import ConstraintError
from torchipu.transformers.batches import filled, in_type, joined, num_rows, rows_of
from torchipu.transformers.configuration import IPUConfig
from torchipu.transformers.pipelining import pipeline_model
from torchipu.transformers.step import ComputeLoss, LossStep

Shapes = tuple[tuple[str, Any], ...]


class Executors:
    """Compiles a model for training and inference, and runs it on whole batches.

    Args:
        model: A model of transformers.
        ipu_config: How it lies on IPUs.
        compute_loss: ``Trainer.compute_loss``.
        shows_progress: Whether compilations show how far they are.

    Attributes:
        training: The program of training; None until it is made.
    """

    def __init__(
        self, model: torch.nn.Module, ipu_config: IPUConfig, compute_loss: ComputeLoss, *, shows_progress: bool = True,
    ) -> None:
        self.model = model
        self.shows_progress = shows_progress
        self.ipu_config = ipu_config
        self.step = LossStep(model, compute_loss)
        self.training: poptorch.PoplarExecutor | None = None
        self._shapes: Shapes = ()
        self._inference: dict[Any, poptorch.PoplarExecutor] = {}

    # ------------------------------------------------------------------ training
    def begin_training(self, optimiser: torch.optim.Optimizer, *, compile_only: bool = False) -> None:
        """Wrap the model for training; it is compiled at the first batch.

        Args:
            optimiser: Makes the updates on the device.
            compile_only: Compile for a machine that is not there.
        """
        self.end_training()
        self.step.train()
        options = self._options(compile_only=compile_only)
        self.training = poptorch.trainingModel(self.step, options, optimiser)

    def _options(self, *, for_inference: bool = False, compile_only: bool = False) -> poptorch.Options:
        """Return options; torch's random numbers on the host stay as they are."""
        with torch.random.fork_rng(devices=[]):
            options = self.ipu_config.to_options(for_inference=for_inference, compile_only=compile_only)
        return options.showCompilationProgressBar(self.shows_progress)

    def end_training(self) -> None:
        """Bring weights and the optimiser's states to the host; the model is a plain one again."""
        if self.training is not None:
            self.training.destroy()
            self.training = None

    def compile(self, batch: Mapping[str, Any]) -> None:
        """Compile for training, where that is still to be done.

        Args:
            batch: A batch for one call.

        Raises:
            ConstraintError: It was compiled for a batch of another shape.
        """
        assert self.training is not None
        if self.training.isCompiled():
            if self._shapes != _shapes(batch):
                raise ConstraintError(
                    f"training was compiled for a batch of other shapes: {_difference(self._shapes, _shapes(batch))}",
                    remedy="pad rows to one length, by padding='max_length' in the tokenizer or by "
                    "torchipu.transformers.FixedLengthCollator",
                )
            return
        self.step.train()
        pipeline_model(self.model, self.ipu_config, self._sample(batch))
        self.training.compile(**batch)
        self._shapes = _shapes(batch)

    def train(self, batch: Mapping[str, Any], optimiser: torch.optim.Optimizer) -> torch.Tensor:
        """Update the weights; return the losses that come back.

        Args:
            batch: A batch for one call.
            optimiser: With the learning rates of this call.
        """
        assert self.training is not None
        self.compile(batch)
        self.training.setOptimizer(optimiser)
        losses: torch.Tensor = self.training(**batch)
        return losses.detach().float()

    def fetch(self) -> None:
        """Bring what the device has trained to the host."""
        if self.training is not None and self.training.isCompiled():
            self.training.copyWeightsToHostIfNeeded()

    def push(self) -> None:
        """Bring the weights of the host to the device."""
        if self.training is not None and self.training.isCompiled():
            self.training.copyWeightsToDevice()

    # ------------------------------------------------------------------ inference
    def refresh_inference(self) -> None:
        """Let the programs of inference take over the weights of now."""
        self.fetch()
        for executor in self._inference.values():
            executor.copyWeightsToDevice()

    def infer(
        self, batch: Mapping[str, Any], micro_batch: int, *, has_loss: bool, loss_only: bool,
        ignore_keys: Sequence[str],
    ) -> tuple[torch.Tensor | None, Any]:
        """Return the loss of each row, that of its micro-batch, and what else the model returns for all rows.

        Rows that make no whole micro-batch are a micro-batch of their own, so that their loss is none of others'.

        Args:
            batch: Any number of rows.
            micro_batch: Rows of a micro-batch.
            has_loss: Whether the batch has labels.
            loss_only: Whether the loss is all that is wanted.
            ignore_keys: Names of results that are not wanted.
        """
        rows = num_rows(batch)
        whole = rows - rows % micro_batch
        begins_and_sizes = [(0, whole, micro_batch)] if whole else []
        if rows > whole:
            begins_and_sizes.append((whole, rows, rows - whole if has_loss else micro_batch))
        losses, others = [], []
        for begin, end, size in begins_and_sizes:
            loss, results = self._infer(rows_of(batch, begin, end), size, (has_loss, loss_only, tuple(ignore_keys)))
            losses.append(loss)
            others.append(results)
        return (joined(losses) if has_loss else None), joined(others)

    def _infer(
        self, batch: Mapping[str, Any], micro_batch: int, wanted: tuple[bool, bool, tuple[str, ...]]
    ) -> tuple[Any, Any]:
        rows = num_rows(batch)
        parallel = self.ipu_config.inference_device_iterations * self.ipu_config.inference_replication_factor
        losses, others = [], []
        for begin in range(0, rows, micro_batch * parallel):
            part = rows_of(batch, begin, begin + micro_batch * parallel)
            count = num_rows(part)
            whole = filled(part, micro_batch * parallel)
            loss, results = self._inference_model(whole, micro_batch, wanted)(**whole)
            losses.append(None if loss is None else loss.float().reshape(-1).repeat_interleave(micro_batch)[:count])
            others.append(_first_rows(results, count))
        return (joined(losses) if wanted[0] else None), joined(others)

    def _inference_model(
        self, batch: Mapping[str, Any], micro_batch: int, wanted: tuple[bool, bool, tuple[str, ...]]
    ) -> Callable[..., Any]:
        """Return the program for batches of a shape, compiled."""
        key = (micro_batch, wanted, _shapes(batch))
        if key not in self._inference:
            with self._evaluating(wanted):
                executor = poptorch.inferenceModel(self.step, self._options(for_inference=True))
                pipeline_model(self.model, self.ipu_config, self._sample(batch), for_inference=True)
                executor.compile(**batch)
            self._inference[key] = executor
        return self._inference[key]

    def _sample(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return one row, for the run that shows the order of the model's parts."""
        return in_type(rows_of(batch, 0, 1), next(self.model.parameters()).dtype)

    @contextlib.contextmanager
    def _evaluating(self, wanted: tuple[bool, bool, tuple[str, ...]]) -> Iterator[None]:
        """Let the step be one of inference."""
        before = self.step.training, self.model.training
        self.step.eval()
        self.step.has_loss, self.step.loss_only, self.step.ignore_keys = wanted
        try:
            yield
        finally:
            self.step.training = before[0]
            self.model.train(before[1])


def _shapes(batch: Mapping[str, Any]) -> Shapes:
    return tuple(
        (name, (tuple(value.shape), value.dtype) if isinstance(value, torch.Tensor) else value)
        for name, value in sorted(batch.items())
    )


def _difference(before: Shapes, now: Shapes) -> str:
    one, other = dict(before), dict(now)
    names = [name for name in sorted({*one, *other}) if one.get(name) != other.get(name)]
    return "; ".join(f"{name} was {_words(one.get(name))}, and is {_words(other.get(name))}" for name in names)


def _words(shape: Any) -> str:
    return "missing" if shape is None else str(list(shape[0])) if isinstance(shape, tuple) else repr(shape)


def _first_rows(results: Any, count: int) -> Any:
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda value: value[:count], results)
