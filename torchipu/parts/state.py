"""States of a step in parts: which process has which, their gathering, and their names in a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from torchipu.errors import ConstraintError
from torchipu.ir.graph import Tensor
from torchipu.parts.peers import Peers
from torchipu.parts.program import ipus_text


def check_materialised(
    states: Iterable[Tensor], host: Mapping[Tensor, torch.Tensor | None], *, rank: int, ipus: int,
) -> None:
    """Refuse a state of this process that has no memory.

    Raises:
        ConstraintError: One of them is on the meta device.
    """
    bare = [tensor.name for tensor in states if (value := host.get(tensor)) is not None and value.is_meta]
    if bare:
        more = f" and {len(bare) - 1} more are" if len(bare) > 1 else " is"
        raise ConstraintError(
            f"{bare[0]}{more} on the meta device, but process {rank} has {ipus_text(rank * ipus, ipus)}, which use "
            f"{'them' if len(bare) > 1 else 'it'}",
            remedy="give the modules of this process's blocks memory and values before the first call: "
            "module.to_empty(device='cpu'), then their initialisation or load_state_dict",
        )


def gather(
    peers: Peers, owners: Mapping[Tensor, int], host: Mapping[Tensor, torch.Tensor | None], onto: int | None,
) -> dict[Tensor, torch.Tensor]:
    """Bring every state of the user's to all processes, or to one.

    Args:
        peers: The processes.
        owners: The process that has each state.
        host: The user's tensor of each state; where this process has none in memory, a new one is returned.
        onto: Which process; None for all.

    Returns:
        The value of each state, on processes that are given them. Tensors of the user's that are in memory are written.
    """
    found: dict[Tensor, torch.Tensor] = {}
    is_wanted = onto is None or onto == peers.rank
    for tensor, owner in owners.items():
        held = host.get(tensor)
        if held is None:
            continue
        if owner == peers.rank:
            value = held.detach().contiguous()
        elif is_wanted:
            value = torch.empty(held.shape, dtype=held.dtype)
        else:
            continue
        _give(peers, value, owner, onto)
        if not is_wanted:
            continue
        if not held.is_meta and owner != peers.rank:
            with torch.no_grad():
                held.detach().copy_(value)
        found[tensor] = value if held.is_meta else held.detach()
    return found


def _give(peers: Peers, value: torch.Tensor, owner: int, onto: int | None) -> None:
    """Hand a value over, or take it from its owner."""
    if owner != peers.rank:
        peers.wait(peers.receive(value, owner, _TAG), owner, "for its states")
        return
    works = [(rank, peers.send(value, rank, _TAG)) for rank in peers.others if onto in (None, rank)]
    for rank, work in works:
        peers.wait(work, rank, "to hand over its states")


_TAG = 0x7151


def names_of(
    host: Mapping[Tensor, torch.Tensor | None], model: torch.nn.Module, optimizer: torch.optim.Optimizer | None,
) -> dict[Tensor, str]:
    """Return the name of each state in a checkpoint: ``model.NAME``, ``optimizer.NAME.KEY`` or ``step.NAME``."""
    names: dict[int, str] = {}
    for name, value in [*model.named_parameters(), *model.named_buffers()]:
        names[id(value)] = f"model.{name}"
    for parameter, state in (optimizer.state if optimizer is not None else {}).items():
        for key, value in state.items():
            names[id(value)] = f"optimizer.{names.get(id(parameter), 'model.?').removeprefix('model.')}.{key}"
    return {t: names.get(id(value), f"step.{t.name}") for t, value in host.items() if value is not None}


def flat_bytes(values: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the bytes of tensors one after another."""
    pieces = [value.detach().contiguous().reshape(-1).view(torch.uint8) for value in values if value.numel()]
    return torch.cat(pieces) if pieces else torch.empty(0, dtype=torch.uint8)


def fill_from_bytes(values: Sequence[torch.Tensor], taken: torch.Tensor) -> None:
    """Write bytes into tensors one after another; see `flat_bytes`."""
    place = 0
    for value in values:
        size = value.numel() * value.element_size()
        if size:
            piece = taken[place : place + size].clone().view(value.dtype)
            value.copy_(piece.view(value.shape))
        place += size
