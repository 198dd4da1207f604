"""`IPUTrainingArguments`: the training arguments of transformers with those of the IPU."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from transformers import TrainingArguments

from torchipu.errors import OptionsError, nearest
from torchipu.transformers.configuration import IPUConfig
from torchipu.transformers.processes import join, with_replicas_of_launcher

LOADER_MODES = ("sync", "async", "async_rebatched")


@dataclass
class IPUTrainingArguments(TrainingArguments):
    """Arguments of `IPUTrainer`; those of transformers keep their meaning, a batch being a micro-batch.

    Attributes:
        gradient_accumulation_steps: Micro-batches of a weight update; None for that of the `IPUConfig`.
        replication_factor: Replicas in training; None for that of the `IPUConfig`.
        inference_replication_factor: Replicas in inference; None for that of the `IPUConfig`.
        n_ipu: IPUs to use for training: as many replicas as they are enough for.
        pod_type: Machine whose values of the `IPUConfig` hold.
        ipu_config_name: Local folder or file of the `IPUConfig`, for scripts that read it from there.
        ipu_config_overrides: Changes of the `IPUConfig`, as in ``device_iterations=4,output_mode=all``.
        fp32: Train in float32; half is the default, as on IPUs.
        lamb: Take LAMB as the optimiser.
        lamb_no_bias_correction: Take LAMB without its correction of the bias.
        loss_scaling: Factor on the loss; None for 1.
        auto_loss_scaling: Let it follow the gradients.
        dataloader_mode: Where batches are made: sync, async or async_rebatched.
        compile_only: Compile for training and end.
    """

    gradient_accumulation_steps: int | None = field(  # type: ignore[assignment, unused-ignore]
        default=None, metadata={"help": "Micro-batches of a weight update; of the IPUConfig if not given."}
    )
    replication_factor: int | None = field(default=None, metadata={"help": "Replicas in training."})
    inference_replication_factor: int | None = field(default=None, metadata={"help": "Replicas in inference."})
    n_ipu: int | None = field(default=None, metadata={"help": "IPUs to use for training, over all replicas."})
    pod_type: str | None = field(default=None, metadata={"help": "Machine whose values of the IPUConfig hold."})
    ipu_config_name: str | None = field(default=None, metadata={"help": "Local folder of ipu_config.json."})
    ipu_config_overrides: str | None = field(
        default=None, metadata={"help": "Changes of the IPUConfig: device_iterations=4,output_mode=all"}
    )
    fp32: bool = field(default=False, metadata={"help": "Train in float32 rather than in half."})
    lamb: bool = field(default=False, metadata={"help": "Take LAMB as the optimiser."})
    lamb_no_bias_correction: bool = field(default=False, metadata={"help": "LAMB without correction of the bias."})
    loss_scaling: float | None = field(default=None, metadata={"help": "Factor on the loss."})
    auto_loss_scaling: bool = field(default=False, metadata={"help": "Let the loss scale follow the gradients."})
    dataloader_mode: str = field(
        default="sync", metadata={"help": "Where batches are made.", "choices": list(LOADER_MODES)}
    )
    compile_only: bool = field(default=False, metadata={"help": "Compile for training and end."})

    def __post_init__(self) -> None:
        accumulation, self.gradient_accumulation_steps = self.gradient_accumulation_steps, 1
        self.use_cpu = True  # where the emulator is
        join()
        super().__post_init__()
        self.gradient_accumulation_steps = accumulation
        self._refuse()

    def _refuse(self) -> None:
        """Raise OptionsError for what cannot be had together with the IPU."""
        for name, remedy in {
            "fp16": "leave it out: half is the default, and fp32=True switches it off",
            "bf16": "leave it out: the IPU has float32 (fp32=True) and half, the default",
            "torch_compile": "leave it out: the whole step is a program; or use transformers.Trainer with it",
            "auto_find_batch_size": "choose per_device_train_batch_size",
        }.items():
            if getattr(self, name, False):
                raise OptionsError(
                    f"IPUTrainingArguments: {name} is not for the IPU", option=name, value=True, remedy=remedy,
                )
        if self.dataloader_mode not in LOADER_MODES:
            raise OptionsError(
                f"IPUTrainingArguments: dataloader_mode={self.dataloader_mode!r} is unknown"
                f"{nearest(self.dataloader_mode, LOADER_MODES)}", option="dataloader_mode",
                value=self.dataloader_mode, allowed=", ".join(LOADER_MODES),
            )

    def applied_to(self, ipu_config: IPUConfig) -> IPUConfig:
        """Return an `IPUConfig` with what these arguments say.

        Args:
            ipu_config: The configuration.

        Raises:
            OptionsError: The IPUs do not make up whole replicas, or a change names no option.
        """
        chosen = ipu_config if self.pod_type is None else ipu_config.for_pod_type(self.pod_type)
        chosen = chosen.update(**_parsed(self.ipu_config_overrides or ""))
        chosen = chosen.update(
            gradient_accumulation_steps=self.gradient_accumulation_steps, replication_factor=self.replication_factor,
            inference_replication_factor=self.inference_replication_factor,
            auto_loss_scaling=self.auto_loss_scaling or None,
        )
        if self.n_ipu is not None:
            replicas, rest = divmod(self.n_ipu, chosen.num_ipus())
            if rest or not replicas:
                raise OptionsError(
                    f"IPUTrainingArguments: n_ipu={self.n_ipu} are no whole replicas of {chosen.num_ipus()} IPUs",
                    option="n_ipu", value=self.n_ipu, allowed=f"multiples of {chosen.num_ipus()}",
                )
            chosen = chosen.update(replication_factor=replicas)
        chosen = with_replicas_of_launcher(chosen)
        return chosen if chosen.seed is not None else chosen.update(seed=self.seed)


def _parsed(overrides: str) -> dict[str, Any]:
    """Return the changes of a text such as ``device_iterations=4,layers_per_ipu=[2 2]``."""
    import json

    changes: dict[str, Any] = {}
    for change in filter(None, overrides.split(",")):
        name, equals, text = change.partition("=")
        if not equals or name.strip() not in IPUConfig.__dataclass_fields__:
            raise OptionsError(
                f"ipu_config_overrides: {change!r} changes nothing{nearest(name, IPUConfig.__dataclass_fields__)}",
                option="ipu_config_overrides", value=overrides, allowed="name=value,name=value, lists as [2 2 -1]",
            )
        words = text.strip()
        if words.startswith("["):
            words = ",".join(words.split())
        try:
            changes[name.strip()] = json.loads(words.lower() if words.lower() in ("true", "false") else words)
        except json.JSONDecodeError:
            changes[name.strip()] = words
    return changes
