"""What a step does whose replicas several processes run, beside what every step does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from torchipu import __version__
from torchipu.distributed.handshake import broadcast
from torchipu.distributed.members import Members
from torchipu.distributed.order import Replicas
from torchipu.ir.text import format_graph
from torchipu.options import Options
from torchipu.step.in_common import described, options_in_common, without_sources
from torchipu.step.in_parts import InParts


class ReplicatedStep:
    """A step whose gradients may be added up over processes; see docs/distributed.md.

    Attributes:
        facts: What else all processes have to agree on, by name; compared when the program is compiled.
    """

    model: torch.nn.Module
    options: Options
    facts: dict[str, object]
    _members: Members | None
    _parts: InParts | None

    def _find_members(self) -> Members | None:
        """Return the processes that train together, None where this one is by itself."""
        return None

    def _described(self) -> dict[str, object]:
        """Return what the processes that train together have to have the same in every call, by name."""
        return {}

    @property
    def _replicas(self) -> Replicas:
        """The replicas of this process among all."""
        count, members = self.options.replicas, self._members
        return Replicas(count, 0, count) if members is None else Replicas(
            count, members.rank * count, members.size * count,
        )

    @contextlib.contextmanager
    def _among_members(self) -> Iterator[Members | None]:
        """Do something together with the other processes, if there are any, and tell them of an error here."""
        members = self._members
        if members is None:
            yield None
            return
        members.begin()
        try:
            yield members
        except BaseException as error:
            # What another process of a pipeline has told is no news of those that are told here.
            members.fail(error, tells_of_peers=self._parts is not None)
            raise

    def _facts_of(self, built: Any, leaves: Sequence[Any]) -> dict[str, object]:
        """Return what processes have to agree on before they exchange anything."""
        return {
            "what is done": "compiling", "inputs": described(leaves), "version of torchipu": __version__,
            "version of torch": torch.__version__, "options": options_in_common(self.options), **self.facts,
            **self._described(), "graph": without_sources(format_graph(built.graph)),
        }

    def _take_states_of_first(self, members: Members, built: Any, parts: InParts | None) -> None:
        """Begin with the weights, buffers and states of rank 0; of a pipeline, with those of this process's part."""
        if parts is None:
            every = [*self.model.parameters(), *self.model.buffers(), *built.states.values()]
        else:
            every = [host for tensor, host in built.states.items() if parts.owns(tensor)]
        chosen = {id(tensor): tensor for tensor in every if tensor is not None}
        with torch._C.DisableTorchFunctionSubclass():
            broadcast(members, list(chosen.values()))

    def _key_of(self, members: Members | None) -> int:
        """Return a key of random bits from torch's default generator: that of rank 0 for all processes."""
        key = torch.randint(2**62, (1,)) if self._parts is None else torch.tensor([self._parts.key])
        if members is not None:
            key = members.gathered(key.view(torch.uint8))[0].view(torch.int64)
        return int(key.item())
