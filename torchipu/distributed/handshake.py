"""What processes agree on before they exchange anything whose size depends on it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from itertools import zip_longest

import torch
import torch.distributed as dist

from torchipu.distributed.members import Members
from torchipu.errors import PeerMismatchError


def agree(members: Members, facts: Mapping[str, object]) -> None:
    """Compare facts with all other processes; every process calls this as often, and in the same order.

    The first thing that travels has the same size whatever the facts are: so processes that differ are told of it, and
    not ended by a message of another size than they wait for.

    Args:
        members: The processes.
        facts: What has to be the same, by name; compared and shown as text.

    Raises:
        PeerMismatchError: On all processes, naming what differs and what each rank has.
        PeerError: Another process has gone, or does not answer.
    """
    texts = {name: str(value) for name, value in facts.items()}
    digest = hashlib.sha256(repr(sorted(texts.items())).encode()).digest()
    own = torch.frombuffer(bytearray(digest), dtype=torch.uint8)
    members.is_talking = True
    if torch.equal(members.gathered(own), own.expand(members.size, -1)):
        return
    told: list[Mapping[str, str]] = [{} for _ in range(members.size)]
    dist.all_gather_object(told, texts, group=members.group)
    members.is_talking = False  # all of them leave the call here
    _refuse(told)


def _refuse(told: Sequence[Mapping[str, str]]) -> None:
    names = list(dict.fromkeys(name for texts in told for name in texts))
    differing = [name for name in names if len({texts.get(name) for texts in told}) > 1]
    lines = []
    for name in differing:
        of_ranks = _shown([texts.get(name, "nothing") for texts in told])
        lines += [f"{name}:", *(f"  rank {rank}: {value}" for rank, value in enumerate(of_ranks))]
    values = tuple(_shown([texts.get(differing[0], "nothing") for texts in told]))
    by_rank = ", ".join(f"rank {rank} has {value}" for rank, value in enumerate(values))
    more = f" (and {len(differing) - 1} more)" if len(differing) > 1 else ""
    raise PeerMismatchError(
        f"processes that train together differ in {differing[0]}: {by_rank}{more}", field=differing[0], values=values,
        detail="\n".join(lines), remedy=f"give all processes the same {' and '.join(differing)}",
    )


def _shown(texts: Sequence[str]) -> list[str]:
    """Return what is worth showing of texts: of long ones the first line in which they differ."""
    if all("\n" not in text for text in texts):
        return list(texts)
    for number, lines in enumerate(zip_longest(*(text.splitlines() for text in texts), fillvalue="nothing"), start=1):
        if len(set(lines)) > 1:
            return [f"line {number}: {line.strip()}" for line in lines]
    return list(texts)


def broadcast(members: Members, tensors: Sequence[torch.Tensor]) -> None:
    """Give tensors the values that they have on rank 0.

    Args:
        members: The processes.
        tensors: Equally many of the same sizes and types on each.

    Raises:
        PeerError: Another process has gone, or does not answer.
    """
    with torch.no_grad():
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            chosen = [tensor.detach() for tensor in tensors if tensor.dtype is dtype]
            joined = torch.cat([tensor.reshape(-1) for tensor in chosen])
            members.finished(dist.broadcast(joined, group=members.group, group_src=0, async_op=True))
            if members.rank:
                pieces = joined.split([tensor.numel() for tensor in chosen])
                torch._foreach_copy_(chosen, [p.view(t.shape) for p, t in zip(pieces, chosen, strict=True)])
