"""The Target record that all machine models fill in."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torchipu.errors import OptionsError, nearest
from torchipu.target.files import SUFFIX, read_machine
from torchipu.target.rules import RULES, SEPARATOR, Rule, check_together, checked, joined, refusal, split, written


@dataclass(frozen=True, slots=True)
class Target:
    """Numbers of one machine; their sources stand beside each value in the machine's file.

    Attributes:
        name: As in ``TARGETS``; of a machine with replaced fields, that of the known one and the fields, which say all.
        title: Name for people.
        num_ipus: IPUs that one process may use.
        num_tiles: Tiles of an IPU.
        num_workers: Worker threads of a tile.
        clock_hz: Tile clock.
        tile_memory_bytes: Memory of a tile.
        code_region_bytes: Part of it that can hold code; the rest is interleaved memory.
        amp_macs_half_half: AMP multiply-accumulates a cycle and tile, half in, half partials.
        amp_macs_half_float: The same with half in, float partials.
        amp_macs_float: The same with float in and float partials.
        amp_macs_fp8: AMP multiply-accumulates a cycle and tile, floats of 8 bits in, half partials; 0 where the matrix
            unit does not take them.
        exchange_bytes_per_cycle: Bytes a tile sends, and receives, a cycle.
        sync_cycles: One internal sync.
        ipu_sync_cycles: One sync between IPUs.
        link_bytes_per_cycle: Bytes a cycle between two IPUs, one direction.
        linked_ipus: IPUs that links join; others are reached through gateways.
        ipus_per_machine: IPUs of one machine of those.
        machine_link_bytes_per_s: What links carry from one machine to the next, one direction.
        gateway_bytes_per_s: What each of the ``linked_ipus`` sends to, and receives from, IPUs beyond them.
        host_bytes_per_s: Host streams of one IPU, from or to their buffers in the host's memory.
        host_fill_bytes_per_s: What the host copies into the buffers of one IPU's streams.
        streaming_bytes_per_s: Streaming Memory of one IPU.
        machine_streaming_bytes: Streaming Memory of a machine, which its ``ipus_per_machine`` share.
        stack_bytes: Stacks of a tile's workers and supervisor.
        control_bytes_per_compute_set: Control code of the least of distinct compute sets, a tile.
        state_bytes_per_compute_set: State of the vertices of such a one, a tile.
        is_system: Whether the ``num_ipus`` are all there are, for all processes together; of a chip, each process has
            as many.
    """

    name: str
    title: str
    num_ipus: int
    num_tiles: int
    num_workers: int
    clock_hz: float
    tile_memory_bytes: int
    code_region_bytes: int
    amp_macs_half_half: int
    amp_macs_half_float: int
    amp_macs_float: int
    amp_macs_fp8: int
    exchange_bytes_per_cycle: int
    sync_cycles: int
    ipu_sync_cycles: int
    link_bytes_per_cycle: float
    linked_ipus: int
    ipus_per_machine: int
    machine_link_bytes_per_s: float
    gateway_bytes_per_s: float
    host_bytes_per_s: float
    host_fill_bytes_per_s: float
    streaming_bytes_per_s: float
    machine_streaming_bytes: int
    stack_bytes: int
    control_bytes_per_compute_set: int
    state_bytes_per_compute_set: int
    is_system: bool = False

    def vector_width(self, device_bytes: int) -> int:
        """Return how many elements of a size fit the 64-bit data path: 4 halves or 2 floats."""
        return max(1, 8 // max(2, device_bytes))

    @property
    def is_hypothetical(self) -> bool:
        """Whether no such machine was ever built: some of its numbers are not those of the known one it is made of."""
        return bool(self.replaced_fields())

    @property
    def text(self) -> str:
        """The whole machine in one line, which `lookup_target` reads: a name, and what is not as in ``TARGETS``.

        Raises:
            OptionsError: It is made of no machine in ``TARGETS``, or its numbers make no sense.
        """
        return self.replaced().name

    def replaced_fields(self) -> dict[str, int | float]:
        """Return the numbers that are not those of the known machine that this one is made of, by name.

        Raises:
            OptionsError: It is made of no machine in ``TARGETS``.
        """
        base = _base_of(self)
        found = {name: getattr(self, name) for name in RULES if getattr(self, name) != getattr(base, name)}
        if found.get("link_bytes_per_cycle") == _link_bytes_per_cycle(base, self.clock_hz):
            del found["link_bytes_per_cycle"]  # which follows from the clock
        return found

    def replaced(self, **fields: float) -> Target:
        """Return a machine with some numbers replaced, which never was, and whose name and title say so.

        Links keep their bytes a second when the clock is replaced, and they are not.

        Args:
            fields: New values; `Target.replaceable` lists which there are.

        Raises:
            OptionsError: A field is unknown, of the wrong type, out of range or at odds with others.
        """
        return self._replaced(f"target {self.name!r}", fields)

    def _replaced(self, where: str, fields: Mapping[str, object]) -> Target:
        """Return a machine with numbers replaced; an error begins with where these were said."""
        base = _base_of(self)
        values: dict[str, Any] = checked(where, {**self.replaced_fields(), **checked(where, fields)})
        if "clock_hz" in values:
            values = {"link_bytes_per_cycle": _link_bytes_per_cycle(base, values["clock_hz"]), **values}
        made = replace(base, **values)
        check_together(where, {name: getattr(made, name) for name in RULES})
        own = made.replaced_fields()
        if not own:
            return base
        with_fields = ", ".join(f"{name}={written(value)}" for name, value in own.items())
        return replace(
            made, name=joined(base.name, own.items()), title=f"hypothetical: {base.name} with {with_fields}",
        )

    @staticmethod
    def replaceable() -> dict[str, Rule]:
        """Return the fields that may be replaced, with what each takes, which prints as words."""
        return dict(RULES)


TARGETS: dict[str, Target] = {}


def lookup_target(given: str | os.PathLike[str] | Target) -> Target:
    """Return a machine.

    Args:
        given: Its name; a name and fields to replace, as in ``mk2,num_tiles=736``; the path of a TOML file that ends in
            ``.toml``; or the machine itself, whose numbers are checked.

    Raises:
        OptionsError: No machine has this name, or a field makes no sense.
    """
    if isinstance(given, Target):
        return given.replaced()
    if not isinstance(given, (str, os.PathLike)):
        raise refusal(
            f"a target is a name, the path of a .toml file or a Target, got {given!r} ({type(given).__name__})", given,
            ", ".join(TARGETS),
        )
    text = os.fspath(given)
    if text in TARGETS:
        return TARGETS[text]
    if text.endswith(SUFFIX):
        base, fields = read_machine(text)
    else:
        base, fields = split(text)
    if base not in TARGETS:
        raise OptionsError(
            f"unknown target {base!r}{nearest(base, TARGETS)}", option="target", value=text,
            allowed=", ".join([*TARGETS, "one of these with fields after a comma (mk2,num_tiles=736)", "a .toml file"]),
        )
    return TARGETS[base]._replaced(f"target {text!r}", fields)


def _base_of(target: Target) -> Target:
    """Return the known machine that one is made of."""
    name = target.name.partition(SEPARATOR)[0]
    if name not in TARGETS:
        raise refusal(
            f"machine {target.name!r} is made of none in torchipu.target.TARGETS{nearest(name, TARGETS)}", target.name,
            ", ".join(TARGETS), "make it with Target.replaced of a known machine",
        )
    return TARGETS[name]


def _link_bytes_per_cycle(base: Target, clock_hz: float) -> float:
    """Return what links carry a cycle at another clock: their speed is their own."""
    if clock_hz == base.clock_hz:
        return base.link_bytes_per_cycle
    return base.link_bytes_per_cycle * base.clock_hz / clock_hz
