"""Stashes of activations that cross links: on chip while they are sent or arrive, then off chip."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torchipu.device.locations.transfers import HOST_SYNC, transfer
from torchipu.device.locations.uses import leg_of, used_by, written_by
from torchipu.ir.program import (
    Executable,
    Program,
    Sequence,
    Variable,
)
from torchipu.ir.types import Leg, Role
from torchipu.options import TensorLocation


@dataclass(frozen=True, slots=True)
class LinkStash:
    """An activation that crosses links and waits off chip for later functions of its IPU.

    Attributes:
        buffer: What is sent, or arrives, on chip.
        stash: What later functions read.
        storer: The function that stores the one as the other: that which makes it, or reads it first.
    """

    buffer: Variable
    stash: Variable
    storer: str

    def seen_by(self, function: str) -> Variable:
        """Return the variable that a function works on."""
        return self.buffer if function == self.storer or function.endswith(".send") else self.stash


def link_stashes(
    executable: Executable, locations: Mapping[Role, TensorLocation], sent: set[Variable], *, within_leg: bool,
) -> dict[Variable, LinkStash]:
    """Return these of a program; ``within_leg`` as for other stashes."""
    place = locations.get(Role.ACTIVATION)
    if place is None or place.on_chip:
        return {}
    functions = executable.functions
    users: dict[Variable, dict[str, None]] = {}
    for name, program in functions.items():
        if not name.endswith(".send"):
            for variable in sent.intersection(used_by(program)):
                users.setdefault(variable, {})[name] = None
    found: dict[Variable, LinkStash] = {}
    for variable in (v for v in executable.variables if v in users and v.role is Role.ACTIVATION):
        storers = [name for name in users[variable] if variable in set(written_by(functions[name]))]
        storers = storers or [name for name in users[variable] if name.endswith(Leg.FORWARD.value)]
        legs = [leg_of(name) for name in users[variable] if name not in storers]
        others = [leg for leg in legs if within_leg or leg != leg_of(storers[0])] if storers else []
        if variable.num_elements >= place.min_elements_off_chip and len(storers) == 1 and others:
            stash = replace(variable, name=f"{variable.name}.stash", depth=1, off_chip=True)
            found[variable] = LinkStash(replace(variable, depth=1), stash, storers[0])
    return found


def with_store(program: Program, link: LinkStash, locations: Mapping[Role, TensorLocation]) -> Program:
    """Return a function that stores its buffer after the last use."""
    body = program.body if isinstance(program, Sequence) else (program,)
    last = max(position for position, step in enumerate(body) if link.buffer in set(used_by(step)))
    out = replace(transfer(link.stash, locations, to_device=False), variable=link.buffer)
    return Sequence((*body[: last + 1], HOST_SYNC, out, *body[last + 1 :]))
