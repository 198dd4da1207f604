"""What processes tell one another before each exchange.

gloo asks for nothing: where processes give other shapes, types or sums it mixes up their memory or ends the process. A
number that stands for what a process asks for goes round first, and what differs is an error in all of them. A small
exchange is mostly waiting: its values go round with the number, in packets of one size whatever is asked for, and are
used where all ask for the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist

from torchipu.horovod.failures import HorovodInternalError, named_failures
from torchipu.horovod.processes import Members
from torchipu.horovod.reductions import Reduction


@dataclass(frozen=True, slots=True)
class Request:
    """What a process is about to exchange; the same in all processes.

    Attributes:
        what: Name of the exchange.
        tensors: Type and shape of each tensor, without sizes that may differ.
        how: How they are combined.
        arguments: What else has to agree, such as ``root_rank=0``.
    """

    what: str
    tensors: tuple[tuple[str, tuple[int, ...]], ...] = ()
    how: Reduction | None = None
    arguments: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return it as a call, such as ``allreduce(float32[3], op=Sum)``."""
        shown = [f"{dtype}{list(shape)}" for dtype, shape in self.tensors]
        shown += [] if self.how is None else [str(self.how)]
        return f"{self.what}({', '.join([*shown, *self.arguments])})"

    @property
    def is_made_up_for(self) -> bool:
        """Whether processes in `join` give zeros, or no rows, which change nothing for the others."""
        return self.what == KINDS or (self.what in _MADE_UP_FOR and (self.how is None or self.how.is_sum))


JOIN = Request("join")
"""What a process asks for that has come to its end and waits for the others."""
KINDS = "kinds of gradients"
"""Which gradients processes have: what an optimiser asks before it combines them."""
_MADE_UP_FOR = frozenset(["allreduce", "allgather"])
DIGEST, MOST_ALONG = 8, 1024
"""Bytes of the number of a request, and of values that go round with it at most."""
_MOST_SHOWN = 8
"""Tensors of a request that an error shows."""


def described(tensors: Iterable[torch.Tensor], first: int = 0) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return types and shapes for a `Request`.

    Args:
        tensors: What is exchanged.
        first: The first dimension that has to agree.
    """
    return tuple((str(one.dtype).removeprefix("torch."), tuple(one.shape[first:])) for one in tensors)


def are_few(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether all elements of tensors go round with a request; the same in members that ask for the same."""
    return sum(tensor.nbytes for tensor in tensors) <= MOST_ALONG


def agree(request: Request, where: Members) -> Request:
    """Tell the other members what this process is about to exchange, and wait until they have.

    Args:
        request: What this one asks for.
        where: The members.

    Returns:
        What is exchanged: in a process in `join`, which then takes part in it, what the others ask for.

    Raises:
        HorovodInternalError: They ask for different things, or a process in `join` cannot make up for it.
    """
    return _agreed(request, where, None)[0]


def agree_along(request: Request, own: torch.Tensor, where: Members) -> torch.Tensor | None:
    """Agree on an exchange, and tell values with it where these are few.

    Args:
        request: What this process asks for, which says how many values of which type there are.
        own: Values.
        where: The members.

    Returns:
        The values of each member, ``[members, elements]``. None where there are more than go along, where a member is
        in `join` and has none, and where this process is the only one: the exchange has still to be made.

    Raises:
        HorovodInternalError: As in `agree`.
    """
    return _agreed(request, where, own if are_few([own]) else None)[1]


@named_failures
def _agreed(request: Request, where: Members, own: torch.Tensor | None) -> tuple[Request, torch.Tensor | None]:
    """Return what is exchanged, and what each member has told with it, if all ask for the same."""
    if where.group is None:
        return request, None
    digest = hashlib.blake2b(str(request).encode(), digest_size=DIGEST).digest()
    packet = torch.frombuffer(bytearray(digest + bytes(MOST_ALONG)), dtype=torch.uint8)
    values = torch.empty(0, dtype=torch.uint8) if own is None else own.detach().reshape(-1).view(torch.uint8)
    packet[DIGEST : DIGEST + len(values)] = values
    packets = torch.empty((where.size, len(packet)), dtype=torch.uint8)
    dist.all_gather(list(packets.unbind()), packet, group=where.group)
    if bool((packets[:, :DIGEST] == packet[:DIGEST]).all()):
        if own is None:
            return request, None
        return request, packets[:, DIGEST : DIGEST + len(values)].contiguous().view(own.dtype)
    asked: list[Request] = [request] * where.size
    dist.all_gather_object(asked, request, group=where.group)
    return _made_up_for(asked, where), None


def _made_up_for(asked: list[Request], where: Members) -> Request:
    """Return what the processes that are not in `join` ask for.

    Raises:
        HorovodInternalError: That is not one thing, or nothing that others could give zeros to.
    """
    others = list(dict.fromkeys(request for request in asked if request != JOIN))
    if len(others) == 1 and others[0].is_made_up_for:
        return others[0]
    told = _told(asked, where)
    if len(others) == 1:
        raise HorovodInternalError(
            f"some processes wait in hvd.join, which gives zeros to sums and means and no rows to allgather, and to "
            f"nothing else: {told}"
        )
    raise HorovodInternalError(
        f"the processes ask for different exchanges, and none was made: {told}. All have to call the same exchanges in "
        "the same order, with the same arguments and tensors of the same shapes and types"
    )


def _told(asked: list[Request], where: Members) -> str:
    """Say which members ask for what."""
    distinct, found = list(dict.fromkeys(asked)), list[str]()
    for request in distinct:
        ranks = [str(rank) for rank, one in zip(where.ranks, asked, strict=True) if one == request]
        found.append(f"process{'es' if len(ranks) > 1 else ''} {', '.join(ranks)} {_shortened(request, distinct)}")
    return "; ".join(found)


def _shortened(request: Request, others: list[Request]) -> Request:
    """Return a request with the first of its many tensors that others do not have alike."""
    count = len(request.tensors)
    if count <= _MOST_SHOWN:
        return request
    first = next((
        place for place, tensor in enumerate(request.tensors)
        if any(other.tensors[place : place + 1] != (tensor,) for other in others)
    ), 0)
    said = f"the tensor at {first} of {count}", *request.arguments
    return replace(request, tensors=request.tensors[first : first + 1], arguments=said)
