"""`IPUTrainer`: the Trainer of transformers, whose step is one program on IPUs."""

from __future__ import annotations

import copy
import functools
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer
from transformers.trainer_utils import TrainOutput

from torchipu.errors import OptionsError
from torchipu.transformers.configuration import IPUConfig
from torchipu.transformers.executors import Executors
from torchipu.transformers.loaders import IPULoader, make_loader
from torchipu.transformers.optimisers import give_back, leave_to_device, make_optimiser
from torchipu.transformers.training_arguments import IPUTrainingArguments

RANDOM_STATE_NAME = "ipu_random_state.json"


class IPUTrainer(Trainer):
    """Trains a model of transformers on IPUs, pipelined as an `IPUConfig` says.

    Forward, backward, accumulation of gradients and update are one program. A batch of the training loop is what one
    call of it takes: micro-batches for all replicas, steps of accumulation and device iterations. Methods such as
    ``compute_loss`` may be overridden as with the Trainer; they are run while the program is captured.

    Args:
        model: A model of transformers; None with ``model_init``.
        ipu_config: How it lies on IPUs; None for that of ``args.ipu_config_name``, or for one IPU.
        args: The training arguments; None for defaults.
        tokenizer: The name that ``processing_class`` had.
        **kwargs: Further arguments of the Trainer.

    Raises:
        OptionsError: Arguments exclude each other.
    """

    args: IPUTrainingArguments
    optimizer: Any
    lr_scheduler: Any
    _created_lr_scheduler: bool

    def __init__(
        self, model: Any = None, ipu_config: IPUConfig | None = None, args: IPUTrainingArguments | None = None, *,
        tokenizer: Any = None, **kwargs: Any,
    ) -> None:
        args = IPUTrainingArguments(output_dir="tmp_trainer") if args is None else args
        if not isinstance(args, IPUTrainingArguments):
            raise OptionsError(
                f"IPUTrainer takes IPUTrainingArguments, not {type(args).__name__}", option="args", value=args,
                remedy="make them with torchipu.transformers.IPUTrainingArguments, which takes the same arguments",
            )
        if ipu_config is None:
            ipu_config = IPUConfig.from_pretrained(args.ipu_config_name) if args.ipu_config_name else IPUConfig()
        _check(ipu_config)
        self.ipu_config = args.applied_to(ipu_config)
        args = copy.copy(args)  # another trainer may be made of the same
        args.gradient_accumulation_steps = self.ipu_config.gradient_accumulation_steps
        if tokenizer is not None:
            kwargs["processing_class"] = tokenizer
        self._executors: Executors | None = None
        self._num_parameters: int | None = None
        self._random_state: list[int] | None = None
        super().__init__(model, args, **kwargs)

    @property
    def executors(self) -> Executors:
        """The programs of the model of now."""
        if self._executors is None or self._executors.model is not self.model:
            if not self.args.fp32:
                self.model.half()
            shows_progress = not self.args.disable_tqdm and self.is_world_process_zero()
            self._executors = Executors(self.model, self.ipu_config, self.compute_loss, shows_progress=shows_progress)
        return self._executors

    # ------------------------------------------------------------------ data
    def _get_dataloader(self, *args: Any, **kwargs: Any) -> IPULoader:
        """Return what transformers loads, in batches as large as one call takes; shuffled alike."""
        names = ("dataset", "description", "batch_size", "sampler_fn", "is_training")
        named = dict(zip(names, args, strict=False)) | kwargs
        is_training, batch_size = bool(named.get("is_training", False)), int(named["batch_size"])
        plain = super()._get_dataloader(*args, **kwargs)
        with torch.random.fork_rng(devices=[]):
            options = self.ipu_config.to_options(for_inference=not is_training)
        loader = make_loader(plain, options, batch_size, self.args.dataloader_mode, is_training=is_training)
        kept = getattr(self, "_eval_dataloaders", {})  # where workers stay from one evaluation to the next
        kept.update({key: loader for key, one in kept.items() if one is plain})
        return loader

    def get_total_train_batch_size(self, args: Any) -> int:
        """Return the rows of one call of all processes."""
        config = self.ipu_config
        calls = config.replication_factor * config.gradient_accumulation_steps * config.device_iterations
        return int(self._train_batch_size) * calls * int(args.world_size)

    def _get_num_items_in_batch(self, *args: Any, **kwargs: Any) -> None:
        """Return None: the mean over micro-batches is taken, and processes need not count labels together."""

    # ------------------------------------------------------------------ the optimiser
    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """Return the optimiser, which updates on the device."""
        if self.optimizer is None:
            decayed = set(self.get_decay_parameter_names(self.model))
            named = [(name, one) for name, one in self.model.named_parameters() if one.requires_grad]
            groups = [
                {"params": [one for name, one in named if (name in decayed) is is_decayed],
                 "weight_decay": self.args.weight_decay if is_decayed else 0.0}
                for is_decayed in (True, False)
            ]
            self.optimizer = make_optimiser(groups, self.args, self.ipu_config)
        leave_to_device(self.optimizer)
        return self.optimizer

    # ------------------------------------------------------------------ training
    def train(self, *args: Any, **kwargs: Any) -> TrainOutput:
        """Train as ``Trainer.train`` does; at the end, whatever it is, the weights are on the host."""
        accumulation = self.args.gradient_accumulation_steps
        try:
            return super().train(*args, **kwargs)
        finally:
            self.args.gradient_accumulation_steps = accumulation
            if self._executors is not None:
                self._executors.end_training()
            if self.optimizer is not None:
                give_back(self.optimizer)

    def _inner_training_loop(self, *args: Any, **kwargs: Any) -> TrainOutput:
        self.args.gradient_accumulation_steps = 1  # for the loop: it is in the program
        return super()._inner_training_loop(*args, **kwargs)

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: Any) -> Any:
        """Wrap the model for training instead of preparing it by accelerate."""
        if self._created_lr_scheduler:
            self.lr_scheduler, self._created_lr_scheduler = None, False
        executors = self.executors
        optimiser = self.create_optimizer()
        self.create_scheduler(num_training_steps=max_steps)
        if resume_from_checkpoint is not None:
            self._load_optimizer_and_scheduler(resume_from_checkpoint)
        self._num_parameters = None
        executors.begin_training(optimiser, compile_only=self.args.compile_only)
        for name in ("model", "optimizer", "lr_scheduler"):
            setattr(self.callback_handler, name, getattr(self, name))
        self.callback_handler.train_dataloader = train_dataloader
        return _OnDevice(self.model), train_dataloader

    def _wrap_model(self, model: Any, training: bool = True, dataloader: Any = None) -> Any:
        """Return something that accelerate, which would compile the model or move it, leaves alone."""
        return _OnDevice(model)

    def training_step(self, model: Any, inputs: Mapping[str, Any], num_items_in_batch: Any = None) -> torch.Tensor:
        """Run one call of the program; return the mean of the losses that come back.

        Args:
            model: Not looked at.
            inputs: A batch for one call.
            num_items_in_batch: Not looked at: the mean over micro-batches is taken.
        """
        executors = self.executors
        batch = self._prepare_inputs(dict(inputs))
        is_first = executors.training is not None and not executors.training.isCompiled()
        executors.compile(batch)
        if is_first:
            self._go_on_from_random_state()
            if self.args.compile_only:
                self.control.should_training_stop = True
                return torch.tensor(0.0)
        losses = executors.train(batch, self.optimizer)
        if self.ipu_config.output_mode == "sum":
            config = self.ipu_config
            return losses.mean() / (config.device_iterations * config.gradient_accumulation_steps)
        return losses.mean()

    def _clip_grad_norm(self, model: Any) -> None:
        """Do nothing: the program clips."""

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> None:
        """Return None: the norm stays on the device."""

    def floating_point_ops(self, inputs: Mapping[str, Any]) -> int:
        """Return what transformers counts, without looking at the weights, which are on the device."""
        if self._num_parameters is None:
            count = getattr(self.model, "num_parameters", None)
            self._num_parameters = int(count(exclude_embeddings=True)) if count is not None else 0
        tokens = getattr(self.model, "estimate_tokens", None)
        return 6 * int(tokens(inputs)) * self._num_parameters if tokens is not None else 0

    # ------------------------------------------------------------------ inference
    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate or predict with the weights of now, on the device; several processes gather what they find."""
        self.executors.refresh_inference()
        loader = args[0] if args else kwargs["dataloader"]
        if isinstance(loader, IPULoader) and loader.evaluates_in_step:
            self.gather_function = functools.partial(_gathered, loader)
        return super().evaluation_loop(*args, **kwargs)

    def prediction_step(
        self, model: Any, inputs: Mapping[str, Any], prediction_loss_only: bool, ignore_keys: list[str] | None = None,
    ) -> tuple[torch.Tensor | None, Any, Any]:
        """Return the loss of each row, the other results, and the labels.

        Args:
            model: Not looked at.
            inputs: A batch of any number of rows.
            prediction_loss_only: Whether the loss is all that is wanted.
            ignore_keys: Names of results that are not wanted; None for those of the model's configuration.
        """
        batch = self._prepare_inputs(dict(inputs))
        has_labels = bool(self.label_names) and all(batch.get(name) is not None for name in self.label_names)
        has_loss = has_labels or (not self.label_names and bool(batch.get("return_loss") or self.can_return_loss))
        if ignore_keys is None:
            config = getattr(self.model, "config", None)
            ignore_keys = list(getattr(config, "keys_to_ignore_at_inference", ["past_key_values"]))
        loss, results = self.executors.infer(
            batch, self.args.per_device_eval_batch_size, has_loss=has_loss, ignore_keys=ignore_keys,
            loss_only=prediction_loss_only and has_loss,
        )
        if prediction_loss_only:
            return loss, None, None
        labels = tuple(batch[name].detach() for name in self.label_names) if has_loss and has_labels else None
        return loss, _alone(results), _alone(labels)

    # ------------------------------------------------------------------ checkpoints
    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model as it is on the device, and the `IPUConfig` with it.

        Args:
            output_dir: Folder; None for that of the training arguments.
        """
        if self._executors is not None:
            self._executors.fetch()
        super().save_model(output_dir, _internal_call)
        if self.args.should_save:
            self.ipu_config.save_pretrained(output_dir if output_dir is not None else self.args.output_dir)

    def _load_best_model(self) -> None:
        if self._executors is not None:
            self._executors.fetch()  # else what is loaded would be fetched over
        super()._load_best_model()
        if self._executors is not None:
            self._executors.push()

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        training = self._executors.training if self._executors is not None else None
        if training is not None and training.isCompiled() and self.args.should_save:  # the same in all processes
            (Path(output_dir) / RANDOM_STATE_NAME).write_text(json.dumps(training.rng_state), encoding="utf-8")

    def _load_rng_state(self, checkpoint: str | None) -> None:
        super()._load_rng_state(checkpoint)
        file = Path(os.fspath(checkpoint or "")) / RANDOM_STATE_NAME
        if checkpoint is not None and file.is_file():
            self._random_state = json.loads(file.read_text(encoding="utf-8"))

    def _go_on_from_random_state(self) -> None:
        """Let the device draw what it would have drawn, had training not been interrupted."""
        training = self.executors.training
        if self._random_state is not None and training is not None:
            training.rng_state = self._random_state
            self._random_state = None


class _OnDevice:
    """Stands for the model in the training loop: clearing its gradients, for instance, would fetch the weights.

    Args:
        model: The model.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do nothing: gradients are on the device."""


def _check(ipu_config: Any) -> None:
    """Raise OptionsError for a configuration that is none."""
    if not isinstance(ipu_config, IPUConfig):
        raise OptionsError(
            f"IPUTrainer takes an IPUConfig, not {type(ipu_config).__name__}", option="ipu_config", value=ipu_config,
            remedy="give arguments by name: IPUTrainer(model, ipu_config=..., args=...)",
        )


def _alone(results: Any) -> Any:
    """Return the only one of several results as it is."""
    return results[0] if isinstance(results, tuple) and len(results) == 1 else results


def _gathered(loader: IPULoader, values: Any) -> Any:
    """Return what all processes have for the rows of a loader's batch of now."""
    assert loader.in_step is not None
    return loader.in_step.gathered(values)
