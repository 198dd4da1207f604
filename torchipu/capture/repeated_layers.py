"""Layers of a model that repeat: four of them are captured, and the others are written after those.

A run of layers alike in a ``ModuleList`` or a ``Sequential`` is shortened while the model is captured, to its first two
and its last two. `torchipu.capture.stamped_layers` writes the others into the graph, where these show how. Where
they do not, or the model does not run with fewer layers, all of it is captured.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import nn

from torchipu.capture.block import BlockForward
from torchipu.capture.captured import Captured
from torchipu.capture.stamped_layers import FIRST, LAST, Run, stamped
from torchipu.errors import IpuError
from torchipu.ir.graph import Tensor

LEAST = FIRST + LAST + 2
"""Fewer units than that are captured all."""
LONGEST_UNIT = 6
"""Layers of a unit, at most: models alternate between a few kinds."""
SIMPLE = (bool, int, float, str, bytes, type(None), torch.dtype, torch.Size, torch.device)


def captured_once(model: nn.Module, capture: Callable[[], Captured]) -> Captured:
    """Return the capture of a model, of whose repeated layers only a few are looked at.

    Args:
        model: The model; while it is captured it has fewer layers.
        capture: Captures it.
    """
    found = runs_of(model)
    if not found:
        return capture()
    try:
        with contextlib.ExitStack() as stack:
            for container, run in found:
                stack.enter_context(_shortened(container, run))
            captured: Captured | None = capture()
    except IpuError:
        return capture()  # the model counts its layers: this, or its own error, is what it gives with all of them
    for _, run in found:
        captured = None if captured is None else stamped(captured, run)
    if captured is None:
        return capture()
    return _in_order(captured, model)


def _in_order(captured: Captured, model: nn.Module) -> Captured:
    """Return a capture with tensors of the model in the order in which it has them, as a capture of all of it has."""
    names = [name for name, _ in (*model.named_parameters(), *model.named_buffers())]
    position = {name: number for number, name in enumerate(names)}
    graph = captured.graph
    held = [tensor for tensor in graph.inputs if tensor.name in position]
    ordered = iter(sorted(held, key=lambda tensor: position[tensor.name]))
    updates = sorted(graph.updates, key=lambda pair: position.get(pair[0].name, -1))

    def by_name(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(sorted(tensors.items(), key=lambda pair: position.get(pair[0], -1)))

    return dataclasses.replace(
        captured, parameters=by_name(captured.parameters), buffers=by_name(captured.buffers),
        gradients=by_name(captured.gradients),
        graph=dataclasses.replace(
            graph, updates=tuple(updates),
            inputs=tuple(next(ordered) if tensor.name in position else tensor for tensor in graph.inputs),
        ),
    )


@contextlib.contextmanager
def _shortened(container: nn.Module, run: Run) -> Iterator[None]:
    """Let a container hold the kept layers alone."""
    held = container._modules
    container._modules = {short: held[name] for short, name in run.names.items()}
    try:
        yield
    finally:
        container._modules = held


def runs_of(model: nn.Module) -> list[tuple[nn.Module, Run]]:
    """Return the containers of a model that hold layers alike, none within another's layers."""
    owners = Counter(id(tensor) for member in model.modules() for tensor in _tensors(member))
    found: list[tuple[nn.Module, Run]] = []
    for path, member in model.named_modules():
        if any(path.startswith(f"{run.path}." if run.path else "") for _, run in found):
            continue
        if type(member) in (nn.ModuleList, nn.Sequential):
            run = _run_of(path, member, owners)
            if run is not None:
                found.append((member, run))
    return found


def _run_of(path: str, container: nn.Module, owners: Counter[int]) -> Run | None:
    """Return the longest run of a container, if it is worth it."""
    layers = list(container._modules.values())
    if len(layers) < LEAST or any(layer is None for layer in layers):
        return None
    for period in range(1, LONGEST_UNIT + 1):
        begin, end = _longest(layers, period)  # type: ignore[arg-type]
        count = (end - begin) // period
        if count < LEAST:
            continue
        chosen = layers[begin : begin + count * period]
        if any(owners[id(t)] != 1 for layer in chosen for member in layer.modules() for t in _tensors(member)):  # type: ignore[union-attr]
            return None
        names = list(container._modules)
        return _made(path, names, chosen, begin, period, count)  # type: ignore[arg-type]
    return None


def _made(path: str, names: list[str], chosen: Sequence[nn.Module], begin: int, period: int, count: int) -> Run:
    kept = [*names[: begin + FIRST * period], *names[begin + (count - LAST) * period :]]
    is_numbered = names == [str(number) for number in range(len(names))]
    short = [str(number) for number in range(len(kept))] if is_numbered else kept
    blocks = []
    for layer in chosen:
        forward = layer.__dict__.get("forward")
        blocks.append(forward.spec if isinstance(forward, BlockForward) else None)
    return Run(path, tuple(names[begin : begin + count * period]), period, dict(zip(short, kept, strict=True)),
               tuple(blocks))


def _longest(layers: Sequence[nn.Module], period: int) -> tuple[int, int]:
    """Return where the longest row of layers begins and ends of which each is like the one a period before it."""
    best, begin = (0, 0), 0
    for number in range(period, len(layers) + 1):
        is_like = number < len(layers) and _alike(layers[number - period], number - period, layers[number], number)
        if not is_like:
            if number - begin > best[1] - best[0]:
                best = begin, number
            begin = number - period + 1
    return best


def _alike(one: nn.Module, number: int, other: nn.Module, other_number: int) -> bool:
    """Whether two layers compute the same but for the values of their tensors, and their numbers."""
    mine, others = list(one.named_modules()), list(other.named_modules())
    return len(mine) == len(others) and all(
        path == other_path and _same(a, number, b, other_number, is_root=not path)
        for (path, a), (other_path, b) in zip(mine, others, strict=True)
    )


def _same(one: nn.Module, number: int, other: nn.Module, other_number: int, *, is_root: bool) -> bool:
    if type(one) is not type(other) or one.training != other.training:
        return False
    if not is_root and ("forward" in one.__dict__ or "forward" in other.__dict__):
        return False  # a block begins within the layer
    for held, others in ((one._parameters, other._parameters), (one._buffers, other._buffers)):
        if list(held) != list(others) or any(not _like(held[name], others[name]) for name in held):
            return False
    if any(len(getattr(one, hooks)) != len(getattr(other, hooks)) for hooks in HOOKS):
        return False
    mine, theirs = _simple(one), _simple(other)
    return mine.keys() == theirs.keys() and all(
        _equal(mine[name], theirs[name]) or (mine[name], theirs[name]) == (number, other_number) or
        (mine[name], theirs[name]) == (number + 1, other_number + 1) for name in mine
    )


HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _simple(member: nn.Module) -> dict[str, object]:
    return {
        name: value for name, value in member.__dict__.items()
        if isinstance(value, SIMPLE) or (isinstance(value, (tuple, list)) and all(isinstance(v, SIMPLE) for v in value))
    }


def _equal(value: object, other: object) -> bool:
    """Whether two attributes let a layer compute the same; of rates only whether they are 0."""
    if isinstance(value, float) and isinstance(other, float):
        return (value == 0) == (other == 0)
    return type(value) is type(other) and value == other


def _like(tensor: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if tensor is None or other is None:
        return tensor is other
    return (tensor.shape, tensor.dtype, tensor.requires_grad) == (other.shape, other.dtype, other.requires_grad)


def _tensors(member: nn.Module) -> Iterator[torch.Tensor]:
    """Yield the tensors that a module holds itself."""
    for held in (member._parameters, member._buffers):
        yield from (tensor for tensor in held.values() if tensor is not None)
