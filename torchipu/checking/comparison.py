"""Results of the host and of the tiles beside exact ones, and how far they may be apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from torchipu.checking.differences import Difference
from torchipu.checking.distances import bound, distance, norm
from torchipu.device.tiles.machine import TileMachine
from torchipu.errors import ExecutionError

SHARE = 2.0**-24
"""Of the norm of all values of a kind together, one rounding: a gradient may be zero but for rounding."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A result by both sides.

    Attributes:
        name: Of the output, or of the model's tensor.
        kind: ``output``, ``weight``, ``buffer`` ...
        exact: By the machine, in float64.
        typed: By the machine, in the types of the program, more than once.
        tiles: By the tiles.
        host: By the host.
    """

    name: str
    kind: str
    exact: np.ndarray
    typed: tuple[np.ndarray, ...]
    tiles: np.ndarray
    host: np.ndarray


@dataclass(frozen=True, slots=True)
class Result:
    """How far host and tiles are from the exact value of one result.

    Attributes:
        name: Of the output, or of the model's tensor.
        kind: ``output``, ``weight``, ``buffer`` ...
        error: Norm of the host's difference from the machine in float64.
        tiles_error: The same of the tiles.
        bound: What either may be.
        has_same_bits: Whether host and tiles give the same, bit for bit.
    """

    name: str
    kind: str
    error: float
    tiles_error: float
    bound: float
    has_same_bits: bool

    @property
    def is_equal(self) -> bool:
        """Whether rounding explains the differences."""
        return self.is_host_right and self.are_tiles_right

    @property
    def is_host_right(self) -> bool:
        """Whether rounding explains the host's difference."""
        return self.error <= self.bound

    @property
    def are_tiles_right(self) -> bool:
        """Whether rounding explains the tiles' difference."""
        return self.tiles_error <= self.bound


@dataclass(frozen=True, slots=True)
class Check:
    """What a check has found.

    Attributes:
        results: Of all outputs and changed states.
        supersteps: Compute sets that the tiles have run.
        whole: How many of them one vertex computed on gathered operands, by op.
        first: The first op whose value on the host differs, where any result does and one op alone shows it.
        first_on_tiles: The first op whose value on the tiles differs.
        machine: Of tiles, after its run.
    """

    results: tuple[Result, ...]
    supersteps: int
    whole: Mapping[str, int] = field(default_factory=dict)
    first: Difference | None = None
    first_on_tiles: Difference | None = None
    machine: TileMachine | None = field(default=None, repr=False)

    def vertices(self) -> str:
        """Return what the vertices of each op read, write and compute, tile by tile, and what is moved for them."""
        return "" if self.machine is None else self.machine.text()

    @property
    def is_equal(self) -> bool:
        """Whether host and tiles agree in everything."""
        return all(result.is_equal for result in self.results)

    def raise_for_difference(self) -> None:
        """Raise where host and tiles disagree.

        Raises:
            ExecutionError: It names the first difference.
        """
        if not self.is_equal:
            raise ExecutionError(
                str(self), remedy="please report it with the model: one of the two is wrong, and none of your code is",
            )

    def __str__(self) -> str:
        if self.is_equal:
            same = sum(result.has_same_bits for result in self.results)
            lines = [
                f"host and tiles agree in {len(self.results)} results, {same} of them bit for bit; "
                f"the tiles ran {self.supersteps} compute sets"
            ]
            if self.whole:
                counts = sorted(self.whole.items(), key=lambda pair: (-pair[1], pair[0]))
                listed = ", ".join(f"{name} {count}" for name, count in counts)
                lines.append(f"  {sum(self.whole.values())} of them as one vertex on gathered operands: {listed}")
            return "\n".join(lines)
        differing = [result for result in self.results if not result.is_equal]
        lines = [f"host and tiles differ in {len(differing)} of {len(self.results)} results"]
        lines += [
            f"  {one.kind} {one.name}: {who} off by {error:.3g}, at most {one.bound:.3g}"
            for one in differing[:10]
            for who, error, is_right in (
                ("the host is", one.error, one.is_host_right), ("the tiles are", one.tiles_error, one.are_tiles_right),
            ) if not is_right
        ]
        if not all(result.is_host_right for result in self.results):
            lines.append(str(self.first) if self.first is not None else
                         "  every op alone is right: the host plan is wrong where it joins ops, or in their order")
        if self.first_on_tiles is not None:
            lines.append(str(self.first_on_tiles))
        return "\n".join(lines)


def compared(values: Sequence[Compared]) -> tuple[Result, ...]:
    """Return how far host and tiles are from the machine, and how far they may be."""
    of_kind: dict[str, float] = {}
    for value in values:
        of_kind[value.kind] = float(np.hypot(of_kind.get(value.kind, 0.0), norm(value.exact)))
    return tuple(
        Result(
            value.name, value.kind, distance(value.host, value.exact), distance(value.tiles, value.exact),
            bound(value.exact, *value.typed) + SHARE * of_kind[value.kind], distance(value.host, value.tiles) == 0.0,
        )
        for value in values
    )
