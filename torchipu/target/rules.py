"""What the numbers of a machine may be, and how fields that replace those of a known one are written and checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real

from torchipu.errors import OptionsError, nearest

SEPARATOR = ","


@dataclass(frozen=True, slots=True)
class Rule:
    """What a field takes.

    Attributes:
        kind: ``int`` or ``float``.
        least: Smallest value.
        most: Largest value: beyond it lies what nobody means, such as bytes that were meant to be kilobytes.
        is_power: Whether it has to be a power of two, as a grid of units that take two or four inputs is; 0 is none.
    """

    kind: type
    least: float
    most: float
    is_power: bool = False

    def __str__(self) -> str:
        if self.is_power:
            nothing = "0, or " if self.least == 0 else ""
            return f"{nothing}a power of two from {max(self.least, 1):,} to {self.most:,}"
        if self.kind is int:
            return f"an int from {self.least:,} to {self.most:,}"
        return f"a number from {self.least:g} to {self.most:g}"


RULES: Mapping[str, Rule] = {
    "num_ipus": Rule(int, 1, 65_536),
    "num_tiles": Rule(int, 1, 65_536),
    "num_workers": Rule(int, 1, 64),
    "clock_hz": Rule(float, 1e6, 1e11),
    "tile_memory_bytes": Rule(int, 1024, 2**30),
    "code_region_bytes": Rule(int, 1024, 2**30),
    "amp_macs_half_half": Rule(int, 4, 1024, is_power=True),
    "amp_macs_half_float": Rule(int, 4, 1024, is_power=True),
    "amp_macs_float": Rule(int, 2, 1024, is_power=True),
    "amp_macs_fp8": Rule(int, 0, 4096, is_power=True),
    "exchange_bytes_per_cycle": Rule(int, 1, 1024),
    "sync_cycles": Rule(int, 0, 1_000_000),
    "ipu_sync_cycles": Rule(int, 0, 100_000_000),
    "link_bytes_per_cycle": Rule(float, 1e-3, 1e6),
    "linked_ipus": Rule(int, 1, 65_536),
    "ipus_per_machine": Rule(int, 1, 65_536),
    "machine_link_bytes_per_s": Rule(float, 1e6, 1e15),
    "gateway_bytes_per_s": Rule(float, 1e6, 1e15),
    "host_bytes_per_s": Rule(float, 1e6, 1e15),
    "host_fill_bytes_per_s": Rule(float, 1e6, 1e15),
    "streaming_bytes_per_s": Rule(float, 1e6, 1e15),
    "machine_streaming_bytes": Rule(int, 0, 2**60),
    "stack_bytes": Rule(int, 0, 2**20),
    "control_bytes_per_compute_set": Rule(int, 0, 2**20),
    "state_bytes_per_compute_set": Rule(int, 0, 2**20),
}
"""The fields of a machine that may be replaced."""


def checked(where: str, fields: Mapping[str, object]) -> dict[str, int | float]:
    """Return fields in their types and in the order of a machine's, or refuse the first that makes no sense.

    Args:
        where: Whose they are, with which an error begins.
        fields: New values by name.

    Raises:
        OptionsError: A field is unknown, of the wrong type or out of range.
    """
    for name in fields:
        if name not in RULES:
            raise refusal(
                f"{where}: a machine has no field {name!r} that may be replaced{nearest(str(name), RULES)}",
                fields[name], ", ".join(RULES),
            )
    return {name: _number(where, name, fields[name]) for name in RULES if name in fields}


def _number(where: str, name: str, value: object) -> int | float:
    rule = RULES[name]
    number: int | float | None = None
    if isinstance(value, bool):
        number = None
    elif rule.kind is int and isinstance(value, Integral):
        number = int(value)
    elif rule.kind is float and isinstance(value, Real):
        number = float(value)
    # Written so that a NaN is refused too.
    if number is None or not rule.least <= number <= rule.most or (rule.is_power and int(number) & (int(number) - 1)):
        raise refusal(f"{where}: {name} expects {rule}, got {value!r} ({type(value).__name__})", value, str(rule))
    return number


def check_together(where: str, numbers: Mapping[str, float]) -> None:
    """Refuse numbers that are possible each, but not together.

    Args:
        where: Whose they are.
        numbers: All of a machine.

    Raises:
        OptionsError: Code or stacks do not fit into a tile.
    """
    memory, code, stacks = (int(numbers[n]) for n in ("tile_memory_bytes", "code_region_bytes", "stack_bytes"))
    if code > memory:
        raise refusal(
            f"{where}: code_region_bytes={code:,} is a part of tile_memory_bytes={memory:,}, and larger", code,
            f"code_region_bytes from 1,024 to {memory:,}", "replace code_region_bytes too",
        )
    if stacks >= memory:
        raise refusal(
            f"{where}: stack_bytes={stacks:,} leave nothing of tile_memory_bytes={memory:,}", stacks,
            f"stack_bytes below {memory:,}", "replace stack_bytes too",
        )


def split(text: str) -> tuple[str, dict[str, object]]:
    """Return the base and the fields of a text such as ``mk2,num_tiles=736,clock_hz=1.5e9``, unchecked.

    Raises:
        OptionsError: A part is no ``field=value``, or a field is there twice.
    """
    base, *parts = [part.strip() for part in text.split(SEPARATOR)]
    fields: dict[str, object] = {}
    for part in parts:
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not (name and equals and value):
            raise refusal(
                f"target {text!r}: {part!r} is no field=value", text, "a machine, then field=value after each comma",
                "write it as in mk2,num_tiles=736,exchange_bytes_per_cycle=8",
            )
        if name in fields:
            raise refusal(f"target {text!r}: {name} is there twice", text, "each field once")
        fields[name] = _literal(value)
    return base, fields


def _literal(text: str) -> object:
    """Return what a value says: an int, a float, or the text itself, which no field takes."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def joined(base: str, fields: Iterable[tuple[str, int | float]]) -> str:
    """Return the text that `split` reads: every number to its last digit."""
    return SEPARATOR.join([base, *(f"{name}={written(value)}" for name, value in fields)])


def written(value: int | float) -> str:
    """Return a number that reads back as it is, short where it is round."""
    short = f"{value:g}"
    return short if isinstance(value, float) and float(short) == value else repr(value)


def refusal(message: str, value: object, allowed: str, remedy: str = "") -> OptionsError:
    """Return the error of a machine that makes no sense."""
    return OptionsError(message, option="target", value=value, allowed=allowed, remedy=remedy)
