"""Which IPU gets which layer, and which modules of a model are its layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from torchipu.errors import OptionsError

WILDCARD = -1
"""In numbers of layers by IPU: an even share of what the other IPUs leave."""
SMALLEST_STACK = 0.1
"""A list of modules is a stack of layers if it holds this share of the parameters of the largest such list."""


def share_out(layers_per_ipu: Sequence[int], num_layers: int) -> tuple[int, ...]:
    """Return the IPU of each layer.

    Args:
        layers_per_ipu: Numbers of layers by IPU, `WILDCARD` for an even share of the rest. Where that leaves a
            remainder, the last of these IPUs get one more: the first holds the embeddings as well.
        num_layers: Of the model.

    Raises:
        OptionsError: The numbers are not those of the model.
    """
    wild = [ipu for ipu, number in enumerate(layers_per_ipu) if number == WILDCARD]
    rest = num_layers - sum(number for number in layers_per_ipu if number != WILDCARD)
    if rest < 0 or (rest > 0 and not wild):
        raise OptionsError(
            f"layers_per_ipu={list(layers_per_ipu)} places {num_layers - rest} layers, and the model has {num_layers}",
            option="layers_per_ipu", value=list(layers_per_ipu),
            allowed=f"numbers with the sum {num_layers}, or -1 where an even share of the rest is to go",
        )
    numbers = list(layers_per_ipu)
    for place, ipu in enumerate(wild):
        share, remainder = divmod(rest, len(wild))
        numbers[ipu] = share + (place >= len(wild) - remainder)
    return tuple(ipu for ipu, number in enumerate(numbers) for _ in range(number))


def stacks_of(model: torch.nn.Module) -> dict[str, torch.nn.ModuleList]:
    """Return the stacks of layers of a model by path: of an encoder, a decoder, or both.

    They are found by what they are: lists of modules of one class, outside of any other such list, with a good part
    of the model's parameters.

    Args:
        model: Any module.
    """
    found = dict(_outermost(model, ""))
    sizes = {path: sum(one.numel() for one in stack.parameters()) for path, stack in found.items()}
    smallest = SMALLEST_STACK * max(sizes.values(), default=0)
    return {path: stack for path, stack in found.items() if sizes[path] >= smallest}


def _outermost(module: torch.nn.Module, path: str) -> Iterator[tuple[str, torch.nn.ModuleList]]:
    for name, child in module.named_children():
        inner = f"{path}.{name}" if path else name
        if _is_stack(child):
            assert isinstance(child, torch.nn.ModuleList)
            yield inner, child
        else:
            yield from _outermost(child, inner)


def _is_stack(module: torch.nn.Module) -> bool:
    # Of this very type: lists of parametrisations are lists of modules too.
    if type(module) is not torch.nn.ModuleList or len(module) == 0:
        return False
    kinds = {type(member) for member in module}
    # A layer consists of modules: heads for several tasks, for instance, may be a list of linear ones.
    return len(kinds) == 1 and all(any(member.children()) for member in module)


def parts_of(model: torch.nn.Module, stacks: Sequence[torch.nn.Module]) -> dict[str, torch.nn.Module]:
    """Return what a model has beside its stacks: the largest modules with parameters that hold none of them, by path.

    Args:
        model: The model.
        stacks: Its stacks.
    """
    inside = {id(member) for stack in stacks for member in stack.modules()}
    return {path: module for path, module in _parts(model, "", inside) if any(True for _ in module.parameters())}


def _parts(module: torch.nn.Module, path: str, inside: set[int]) -> Iterator[tuple[str, torch.nn.Module]]:
    if id(module) in inside:
        return
    if not any(id(member) in inside for member in module.modules()):
        yield path, module
        return
    for name, child in module.named_children():
        yield from _parts(child, f"{path}.{name}" if path else name, inside)
