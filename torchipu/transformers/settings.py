"""`Settings`: what an `IPUConfig` holds, with the checks of each value."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from torchipu.errors import OptionsError, nearest
from torchipu.transformers.layers import WILDCARD, share_out

OUTPUT_MODES = ("all", "default", "final", "sum")


@dataclass(init=False)
class Settings:
    """How a model lies on IPUs, and how one call of it loops.

    Attributes:
        seed: Of the device's random numbers; None for that of the training arguments.
        layers_per_ipu: Layers on each IPU in training; -1 for an even share of those that the others leave.
        inference_layers_per_ipu: The same for inference; None for the same numbers.
        ipus_per_replica: IPUs of a replica; None for as many as `layers_per_ipu` names.
        inference_ipus_per_replica: The same for inference.
        replication_factor: Replicas in training.
        inference_replication_factor: Replicas in inference.
        gradient_accumulation_steps: Micro-batches of a weight update.
        device_iterations: Weight updates of one call in training.
        inference_device_iterations: Micro-batches of one call and replica in inference.
        matmul_proportion: Part of the tile memory for temporary values of products, for all IPUs or for each.
        inference_matmul_proportion: The same for inference; None for the same numbers.
        optimizer_state_offchip: Keep the states of the optimiser in Streaming Memory.
        replicated_tensor_sharding: Give each replica a part of the states of the optimiser.
        embedding_serialization_factor: Parts in which the product with the vocabulary is computed.
        inference_embedding_serialization_factor: The same for inference; None for the same number.
        projection_serialization_factor: The same by its later name; None for `embedding_serialization_factor`.
        inference_projection_serialization_factor: The same for inference; None for that of inference's embedding.
        synthetic_data: Send nothing to the device and return nothing that it computed.
        enable_half_partials: Sum products of halves in halves.
        enable_half_first_order_momentum: Keep first moments in halves where the model is in halves.
        recompute_checkpoint_every_layer: Keep only what leaves each layer for the backward; compute the rest again.
        auto_loss_scaling: Let the loss scale follow the gradients.
        output_mode: Which micro-batches' losses come back from training: all, final or sum.
        sharded_execution_for_inference: Run one micro-batch at a time over the IPUs in inference.
        executable_cache_dir: Folder for compiled programs; empty for none.
        profile_dir: Folder for profiles; empty for none.
    """

    seed: int | None = None
    layers_per_ipu: tuple[int, ...] = (WILDCARD,)
    inference_layers_per_ipu: tuple[int, ...] | None = None
    ipus_per_replica: int | None = None
    inference_ipus_per_replica: int | None = None
    replication_factor: int = 1
    inference_replication_factor: int = 1
    gradient_accumulation_steps: int = 1
    device_iterations: int = 1
    inference_device_iterations: int = 1
    matmul_proportion: float | tuple[float, ...] = 0.2
    inference_matmul_proportion: float | tuple[float, ...] | None = None
    optimizer_state_offchip: bool = False
    replicated_tensor_sharding: bool = False
    embedding_serialization_factor: int = 1
    inference_embedding_serialization_factor: int | None = None
    projection_serialization_factor: int | None = None
    inference_projection_serialization_factor: int | None = None
    enable_half_partials: bool = True
    enable_half_first_order_momentum: bool = False
    recompute_checkpoint_every_layer: bool = False
    auto_loss_scaling: bool = False
    output_mode: str = "final"
    sharded_execution_for_inference: bool = False
    synthetic_data: bool = False
    executable_cache_dir: str = ""
    profile_dir: str = ""

    def _check(self) -> None:
        """Raise OptionsError where a value is not of its kind."""
        # As files and scripts have written them: None for what is off.
        for name in ("executable_cache_dir", "profile_dir"):
            path = getattr(self, name)
            setattr(self, name, "" if path in (None, "disabled") else os.fspath(path) if _is_path(path) else path)
        self.embedding_serialization_factor = self.embedding_serialization_factor or 1
        for one in fields(self):
            _check_value(one.name, getattr(self, one.name), one.default)
        if self.output_mode not in OUTPUT_MODES:
            raise OptionsError(
                f"IPUConfig: output_mode={self.output_mode!r} is unknown{nearest(self.output_mode, OUTPUT_MODES)}",
                option="output_mode", value=self.output_mode, allowed=", ".join(OUTPUT_MODES),
            )
        for for_inference in (False, True):
            self.layers(for_inference=for_inference)

    def projection_parts(self, *, for_inference: bool = False) -> int:
        """Return in how many parts the product with the vocabulary is computed."""
        in_inference = self.inference_projection_serialization_factor or self.inference_embedding_serialization_factor
        in_training = self.projection_serialization_factor or self.embedding_serialization_factor
        return (in_inference if for_inference else None) or in_training

    def num_ipus(self, *, for_inference: bool = False) -> int:
        """Return the IPUs of a replica."""
        if for_inference:
            if self.inference_ipus_per_replica:
                return self.inference_ipus_per_replica
            if self.inference_layers_per_ipu:
                return len(self.inference_layers_per_ipu)
        return self.ipus_per_replica or len(self.layers_per_ipu)

    def layers(self, *, for_inference: bool = False) -> tuple[int, ...]:
        """Return the numbers of layers by IPU, -1 where a share of the rest goes.

        Raises:
            OptionsError: They are not for as many IPUs as a replica has.
        """
        num_ipus = self.num_ipus(for_inference=for_inference)
        chosen = self.inference_layers_per_ipu if for_inference else None
        name = "inference_layers_per_ipu" if chosen else "layers_per_ipu"
        numbers = chosen or self.layers_per_ipu
        # Those of training say nothing of an inference over another number of IPUs.
        if tuple(numbers) == (WILDCARD,) or (for_inference and not chosen and len(numbers) != num_ipus):
            return (WILDCARD,) * num_ipus
        if len(numbers) != num_ipus:
            raise OptionsError(
                f"IPUConfig: {name}={list(numbers)} is for {len(numbers)} IPUs, and a replica has {num_ipus}",
                option=name, value=numbers, allowed=f"one number for each of {num_ipus} IPUs, or [-1]",
            )
        return tuple(numbers)

    def ipu_by_layer(self, num_layers: int, *, for_inference: bool = False) -> tuple[int, ...]:
        """Return the IPU of each layer of a model.

        Args:
            num_layers: Of encoder and decoder together.
            for_inference: Whether the numbers of inference count.

        Raises:
            OptionsError: The numbers are those of a model with more layers, or with fewer.
        """
        return share_out(self.layers(for_inference=for_inference), num_layers)


COUNTS = frozenset({
    "ipus_per_replica", "inference_ipus_per_replica", "replication_factor", "inference_replication_factor",
    "gradient_accumulation_steps", "device_iterations", "inference_device_iterations",
    "embedding_serialization_factor", "inference_embedding_serialization_factor",
    "projection_serialization_factor", "inference_projection_serialization_factor",
})
LAYERS = frozenset({"layers_per_ipu", "inference_layers_per_ipu"})
PROPORTIONS = frozenset({"matmul_proportion", "inference_matmul_proportion"})


def _check_value(name: str, value: Any, default: Any) -> None:
    """Raise OptionsError where a value is not of its kind."""
    if value is None and default is None:
        return
    if name in COUNTS:
        is_right, allowed = _is_int(value) and value >= 1, "a whole number from 1"
    elif name in LAYERS:
        is_right = isinstance(value, Sequence) and bool(value) and all(_is_int(n) and n >= WILDCARD for n in value)
        allowed = "whole numbers from 0, or -1 for a share of the rest"
    elif name in PROPORTIONS:
        parts = value if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
        is_right = bool(parts) and all(isinstance(one, (int, float)) and 0 < one <= 1 for one in parts)
        allowed = "a number above 0 and at most 1, or one for each IPU"
    elif name == "seed":
        is_right, allowed = _is_int(value), "a whole number"
    else:
        is_right, allowed = isinstance(value, type(default)), f"of type {type(default).__name__}"
    if not is_right:
        raise OptionsError(f"IPUConfig: {name}={value!r}", option=name, value=value, allowed=allowed)


def _is_path(value: Any) -> bool:
    return isinstance(value, os.PathLike)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
