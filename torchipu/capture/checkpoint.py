"""The user's word on what a recomputing backward keeps or makes again; and an op that is there to be seen."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import torch
from torch import library
from torch._higher_order_ops import wrap
from torch.autograd import forward_ad
from torch.fx import traceback
from torch.utils import _pytree as pytree
from torch.utils import checkpoint as torch_checkpoint

from torchipu.capture.process_wide import replaced
from torchipu.capture.saved_values import WRITTEN_AFTER_READ, saved_as_read, without_account

T = TypeVar("T")

_KNOWN: set[Any] = set()
_MARKS = ("recompute", "ac_graph_id")


def _copy(value: torch.Tensor) -> torch.Tensor:
    return value.clone()  # a result of an operator of torch's may not share its argument's storage


def _pass_on(context: Any, gradient: torch.Tensor) -> torch.Tensor:
    return gradient


for _name in ("checkpoint", "nop"):
    library.define(f"torchipu::{_name}", "(Tensor self) -> Tensor")
    library.impl(f"torchipu::{_name}", "CompositeExplicitAutograd", _copy)
    library.register_fake(f"torchipu::{_name}", torch.empty_like)
    library.register_autograd(f"torchipu::{_name}", _pass_on)


def nop(value: torch.Tensor) -> torch.Tensor:
    """Return a value through an op that computes nothing and that no pass takes away."""
    result: torch.Tensor = torch.ops.torchipu.nop(value)
    return result


def recomputation_checkpoint(*values: Any) -> Any:
    """Keep tensors from the forward to the backward where the compiler would compute them again.

    Args:
        *values: Tensors, alone or in tuples, lists and dicts.

    Returns:
        The same values, to be used from here on: one alone as it is, several as a tuple.
    """
    kept = pytree.tree_map(lambda leaf: _marked(leaf), values)
    return kept[0] if len(values) == 1 else kept


def _marked(leaf: Any) -> Any:
    return torch.ops.torchipu.checkpoint(leaf) if isinstance(leaf, torch.Tensor) else leaf


def checkpoint_sequential(
    functions: Any, segments: int, input: Any, use_reentrant: bool | None = None, **kwargs: Any,
) -> Any:
    """Run a sequence in segments, each but the last one under torch.utils.checkpoint, as torch's function does.

    Dynamo traces no function of that module but ``checkpoint``.
    """
    layers = list(functions.children() if isinstance(functions, torch.nn.Sequential) else functions)
    length = len(layers) // segments
    reentrant = True if use_reentrant is None else use_reentrant

    def in_turn(first: int, end: int) -> Callable[[Any], Any]:
        def run(value: Any) -> Any:
            for layer in layers[first:end]:
                value = layer(value)
            return value

        return run

    last = length * (segments - 1)
    for first in range(0, last, length):
        input = torch_checkpoint.checkpoint(in_turn(first, first + length), input, use_reentrant=reentrant, **kwargs)
    return in_turn(last, len(layers))(input)


def register() -> None:
    """Tell Dynamo of `checkpoint_sequential`."""
    if torch_checkpoint.checkpoint_sequential not in _KNOWN:
        _KNOWN.add(torch_checkpoint.checkpoint_sequential)
        torch.compiler.substitute_in_graph(
            torch_checkpoint.checkpoint_sequential, skip_signature_check=True,
        )(checkpoint_sequential)


@contextmanager
def checkpoints_marked() -> Iterator[None]:
    """Let torch.utils.checkpoint mark what it runs, as it does under Dynamo, where forward is run on fake tensors.

    By itself it would run everything twice: the random bits would be others, and what is re-entrant would have no
    gradients. Policies of a ``context_fn`` are not looked at: all that is marked is computed again.
    """
    numbers = itertools.count()

    def apply(function: Callable[..., Any], preserves: bool, *args: Any) -> Any:
        with _marked_as(next(numbers)):
            return function(*args)

    def generator(*args: Any, **kwargs: Any) -> Iterator[None]:
        with _marked_as(next(numbers)):
            yield

    with (
        replaced(torch_checkpoint.CheckpointFunction, "apply", apply),
        replaced(torch_checkpoint, "_checkpoint_without_reentrant_generator", generator),
    ):
        yield


def with_regions_of_all_kinds(trace: Callable[[], T]) -> T:
    """Trace a graph of Dynamo's, also where regions of torch.utils.checkpoint do what torch does not trace.

    Eager saves nothing of a region but what it is given, so that its results, and what they are views of, may be
    written in place. A trace saves the tensors within too, and torch refuses gradients of what is written then: such
    regions save values. Torch refuses ``torch.func.grad`` and what is made of it within regions, whose hooks would
    see the tensors of its levels: such regions are only marked.

    Args:
        trace: Called a second time where torch has refused so.
    """
    try:
        with without_account(), _as_before_where_refused():
            return trace()
    except RuntimeError as error:
        # Not at once: a hook on each tensor that is saved would cost those that write nothing.
        again = next((regions for words, regions in _OTHERWISE.items() if words in str(error)), None)
        if again is None:
            raise
    with again():
        return trace()


@contextmanager
def _as_before_where_refused() -> Iterator[None]:
    """Leave a trace that failed within `torch.func` as it was begun: torch would refuse all regions from then on."""
    words = torch._C._autograd._saved_tensors_hooks_get_disabled_error_message()
    depth = torch._C._functorch.get_dynamic_layer_stack_depth()
    try:
        yield
    except BaseException:
        torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)
        if forward_ad._current_level < 0:  # whoever is within one has entered it, and leaves it
            with suppress(RuntimeError):
                torch._C._exit_dual_level(level=0)  # there is no more than one, and torch does not tell whether
        if words is None:
            torch._C._autograd._saved_tensors_hooks_enable()
        raise


@contextmanager
def _regions_marked() -> Iterator[None]:
    """Let regions be run as any other part of a graph, each call in them marked as what the backward computes again.

    As torch did before it traced hooks; policies of a ``context_fn`` are not looked at.
    """
    numbers = itertools.count()

    def run(module: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        marks = {"recompute": torch_checkpoint.CheckpointPolicy.PREFER_RECOMPUTE, "ac_graph_id": next(numbers)}
        for node in module.graph.nodes:
            if node.op in ("call_function", "call_method", "call_module"):
                node.meta.update(marks)
        with traceback.preserve_node_meta():
            return torch.fx.Interpreter(module).run(*args)

    with replaced(wrap, "tag_activation_checkpoint_impl", run):
        yield


@contextmanager
def _regions_saving_values() -> Iterator[None]:
    plain = torch_checkpoint._checkpoint_without_reentrant_generator

    def generator(*args: Any, **kwargs: Any) -> Iterator[None]:
        with saved_as_read():
            yield from plain(*args, **kwargs)

    with replaced(torch_checkpoint, "_checkpoint_without_reentrant_generator", generator):
        yield


_OTHERWISE = {WRITTEN_AFTER_READ: _regions_saving_values, "don't yet support saved tensor hooks": _regions_marked}
"""What is done about regions that torch refuses, by its words."""


@contextmanager
def _marked_as(region: int) -> Iterator[None]:
    """Mark all calls into torch as one region that the backward computes again."""
    meta = traceback.current_meta
    before = {name: meta[name] for name in _MARKS if name in meta}
    policy = torch_checkpoint.CheckpointPolicy.PREFER_RECOMPUTE
    meta.update(zip(_MARKS, (policy, region), strict=True))
    try:
        yield
    finally:
        for name in _MARKS:
            meta.pop(name, None)
        meta.update(before)
