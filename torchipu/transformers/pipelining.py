"""`pipeline_model`: puts the parts of a model of transformers on IPUs, as an `IPUConfig` says."""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MethodType
from typing import Any, TypeVar

import torch
from torch.utils import _pytree as pytree

from torchipu import poptorch
from torchipu.errors import PlacementError
from torchipu.transformers.configuration import IPUConfig
from torchipu.transformers.layers import parts_of, stacks_of
from torchipu.transformers.losses import place_loss, unplace_loss
from torchipu.transformers.projection import serialise
from torchipu.transformers.sentence_ends import place_ends, unplace_ends
from torchipu.transformers.speech import logger

M = TypeVar("M", bound=torch.nn.Module)
FRAMES = 32
"""Of the sound on which the order of a model's parts is seen; the first filters are longer than their strides."""


@dataclass(frozen=True)
class Layout:
    """Where the parts of a model are.

    Attributes:
        ipu_by_block: IPU of each block by its name, in the order in which they run.
    """

    ipu_by_block: Mapping[str, int]

    def __str__(self) -> str:
        """Return the text in which optimum-graphcore told it."""
        width = max(map(len, self.ipu_by_block), default=0)
        lines = [f"{name:<{width}} --> IPU {ipu}" for name, ipu in self.ipu_by_block.items()]
        rule = "-" * 59
        return "\n".join([" Device Allocation ".center(59, "-"), *lines, rule])


def pipeline_model(
    model: M, ipu_config: IPUConfig, inputs: Mapping[str, Any] | None = None, *, for_inference: bool = False,
) -> M:
    """Let blocks begin with the parts of a model, for ``poptorch.trainingModel`` or ``poptorch.inferenceModel``.

    The layers lie as ``layers_per_ipu`` says. What runs before the first of them is on IPU 0, what runs after the
    last on the last IPU; a head whose weights are those of the embeddings is on IPU 0 with them. The order in which
    the parts run is seen in one run of the model on the host. A loss that would look at values, such as that of CTC, is
    computed from tensors alone in a program; one that is the sum of several is marked as final.

    Args:
        model: A model of transformers, or any module with a stack of layers; changed in place, and free to be placed
            otherwise by another call. Without the IPU it computes what it did.
        ipu_config: How many layers go where, whether each is recomputed, in how many parts the vocabulary is.
        inputs: Arguments of ``forward`` by name, for that run; None for the model's own ``dummy_inputs``.
        for_inference: Whether the numbers of inference count.

    Returns:
        The model.

    Raises:
        PlacementError: No stack of layers is found.
        OptionsError: The configuration is for another number of layers.
    """
    order = _order_of(model, inputs)
    ipu_by_layer = ipu_config.ipu_by_layer(len(order.layers), for_inference=for_inference)
    last, tied = ipu_config.num_ipus(for_inference=for_inference) - 1, order.tied(model)
    unplace(model)
    blocks = [(path, 0) for path in order.before]
    blocks += zip(order.layers, ipu_by_layer, strict=True)
    blocks += [(path, 0 if path in tied else last) for path in order.after]
    for path, ipu in blocks:
        poptorch.BeginBlock(model.get_submodule(path), path, ipu)
    if ipu_config.recompute_checkpoint_every_layer and not for_inference:
        for path in order.layers:
            model.get_submodule(path).register_forward_hook(_Checkpoint())
    place_loss(model)
    place_ends(model)
    serialise(model, ipu_config.projection_parts(for_inference=for_inference))
    _LAYOUTS[model] = Layout(dict(blocks))
    logger.info("%s", _LAYOUTS[model])
    return model


def unplace(model: torch.nn.Module) -> None:
    """Undo `pipeline_model`.

    Args:
        model: The model.
    """
    poptorch.removeBlocks(model)
    for module in model.modules():
        for key, hook in list(module._forward_hooks.items()):
            if isinstance(hook, _Checkpoint):
                del module._forward_hooks[key]
    unplace_loss(model)
    unplace_ends(model)
    serialise(model, 1)
    _LAYOUTS.pop(model, None)


def to_pipelined(model: M, ipu_config: IPUConfig, force: bool = False) -> M:
    """Give a model the methods of optimum-graphcore's pipelined models, over `pipeline_model` and `unplace`.

    ``model.parallelize(for_inference=None)`` places its parts, with the numbers of inference if the model is in that
    mode and nothing else is said; ``model.deparallelize()`` undoes it. Both return the model, which is changed in
    place and stays of its class.

    Args:
        model: A model of transformers, or any module with a stack of layers.
        ipu_config: Which layers go where; it becomes ``model.ipu_config``.
        force: Accepted: there is no list of models that could be pipelined, and no other way for the rest.

    Returns:
        The model.
    """
    for name, value in (
        ("ipu_config", ipu_config), ("parallelize", MethodType(_parallelize, model)),
        ("deparallelize", MethodType(_deparallelize, model)),
    ):
        vars(model)[name] = value
    return model


def _parallelize(model: Any, for_inference: bool | None = None) -> Any:
    """Place the parts of a model."""
    return pipeline_model(
        model, model.ipu_config, for_inference=not model.training if for_inference is None else for_inference,
    )


def _deparallelize(model: Any) -> Any:
    """Take the parts of a model from their places."""
    unplace(model)
    return model


def layout_of(model: torch.nn.Module) -> Layout:
    """Return where `pipeline_model` has put the parts of a model.

    Args:
        model: The model.

    Raises:
        PlacementError: It has not.
    """
    if model not in _LAYOUTS:
        raise PlacementError(
            f"{type(model).__name__} has not been placed on IPUs", remedy="call pipeline_model(model, ipu_config)"
        )
    return _LAYOUTS[model]


_LAYOUTS: weakref.WeakKeyDictionary[torch.nn.Module, Layout] = weakref.WeakKeyDictionary()


class _Checkpoint:
    """Keeps the results of a layer for the backward; an object and no closure, so that the model can be copied."""

    def __call__(self, module: torch.nn.Module, inputs: Any, outputs: Any) -> Any:
        """Return the results."""
        return pytree.tree_map_only(torch.Tensor, poptorch.recomputationCheckpoint, outputs)


# ---------------------------------------------------------------------- the order in which parts run
@dataclass
class _Order:
    """The parts of a model by path, each list in the order in which its members first run.

    Attributes:
        paths: Of all parts, as the model had them.
        layers: Of all stacks.
        before: What runs before the first layer only.
        after: What runs after the last layer only.
    """

    paths: frozenset[str]
    layers: list[str] = field(default_factory=list)
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)

    def tied(self, model: torch.nn.Module) -> set[str]:
        """Return what of `after` shares weights with something of `before`."""
        weights = {id(weight) for path in self.before for weight in model.get_submodule(path).parameters()}
        return {
            path for path in self.after
            if any(id(weight) in weights for weight in model.get_submodule(path).parameters())
        }


_ORDERS: weakref.WeakKeyDictionary[torch.nn.Module, _Order] = weakref.WeakKeyDictionary()


def _order_of(model: torch.nn.Module, inputs: Mapping[str, Any] | None) -> _Order:
    """Return the order of a model; it is found out once for the parts that there are."""
    stacks = stacks_of(model)
    if not stacks:
        raise PlacementError(
            f"{type(model).__name__} holds no stack of layers: no torch.nn.ModuleList of modules of one class",
            remedy="place it by poptorch.BeginBlock",
        )
    layers = {f"{path}.{number}": layer for path, stack in stacks.items() for number, layer in enumerate(stack)}
    parts = parts_of(model, list(stacks.values()))
    known = _ORDERS.get(model)
    if known is None or known.paths != {*layers, *parts}:
        known = _ORDERS[model] = _find_order(model, layers, parts, inputs)
    return known


def _find_order(
    model: torch.nn.Module, layers: Mapping[str, torch.nn.Module], parts: Mapping[str, torch.nn.Module],
    inputs: Mapping[str, Any] | None,
) -> _Order:
    # A module at several paths goes by the first of them.
    paths = {id(module): path for path, module in reversed([*parts.items(), *layers.items()])}
    calls = _calls(model, paths, _sample(model) if inputs is None else inputs)
    if not set(layers) & set(calls):  # it could not be run: as its modules were made
        calls = [paths[id(module)] for module in model.modules() if id(module) in paths]
    runs = [place for place, path in enumerate(calls) if path in layers]
    order = _Order(frozenset({*layers, *parts}), layers=list(dict.fromkeys(calls[place] for place in runs)))
    for path in dict.fromkeys(path for path in calls if path not in layers):
        places = [place for place, call in enumerate(calls) if call == path]
        if places[-1] < runs[0]:
            order.before.append(path)
        elif places[0] > runs[-1]:
            order.after.append(path)
    return order


def _calls(model: torch.nn.Module, paths: Mapping[int, str], inputs: Mapping[str, Any] | None) -> list[str]:
    """Return which modules one run of a model calls, in order; those until it fails, if it does."""
    calls: list[str] = []

    def note(module: torch.nn.Module, given: Any) -> None:
        calls.append(paths[id(module)])

    handles = [module.register_forward_pre_hook(note) for module in model.modules() if id(module) in paths]
    try:
        if inputs is not None:
            with _evaluating(model), torch.no_grad(), torch.random.fork_rng(devices=[]):
                model(**inputs)
    except Exception as error:  # whatever a model raises for inputs that it does not take
        logger.debug("%s does not run on the inputs given: %s", type(model).__name__, error)
        calls.clear()
    finally:
        for handle in handles:
            handle.remove()
    return calls


@contextlib.contextmanager
def _evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Leave the mode of each module as it was."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, was_training in before:
            module.training = was_training


def _sample(model: torch.nn.Module) -> Mapping[str, Any] | None:
    """Return small inputs of a model of transformers; None where it does not say what it takes."""
    config = getattr(model, "config", None)
    if getattr(model, "main_input_name", None) == "pixel_values" and config is not None:
        sizes = getattr(config, "image_size", 224)
        height, width = sizes if isinstance(sizes, Sequence) else (sizes, sizes)
        channels = getattr(config, "num_channels", 3)
        dtype = next(model.parameters()).dtype
        return {"pixel_values": torch.zeros(1, channels, height, width, dtype=dtype)}
    if getattr(model, "main_input_name", None) == "input_values" and config is not None:
        strides = getattr(config, "conv_stride", (320,))
        return {"input_values": torch.zeros(1, FRAMES * math.prod(strides), dtype=next(model.parameters()).dtype)}
    given = getattr(model, "dummy_inputs", None)
    if not isinstance(given, Mapping):
        return None
    return {
        name: value[:1] % max(getattr(config, "vocab_size", 2), 2) if name.endswith("input_ids") else value[:1]
        for name, value in given.items()
    }
