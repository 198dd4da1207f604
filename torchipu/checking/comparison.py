"""Results of the host beside those of the machine, and how far they may be apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from torchipu.checking.differences import Difference
from torchipu.checking.distances import bound, distance, norm
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
        host: By the host.
    """

    name: str
    kind: str
    exact: np.ndarray
    typed: tuple[np.ndarray, ...]
    host: np.ndarray


@dataclass(frozen=True, slots=True)
class Result:
    """How far the host is from the machine in one result.

    Attributes:
        name: Of the output, or of the model's tensor.
        kind: ``output``, ``weight``, ``buffer`` ...
        error: Norm of the difference from the machine in float64.
        bound: What it may be.
    """

    name: str
    kind: str
    error: float
    bound: float

    @property
    def is_equal(self) -> bool:
        """Whether rounding explains the difference."""
        return self.error <= self.bound


@dataclass(frozen=True, slots=True)
class Check:
    """What a check has found.

    Attributes:
        results: Of all outputs and changed states.
        supersteps: Compute sets that the machine has run.
        first: The first op whose value on the host differs, where any result does and one op alone shows it.
    """

    results: tuple[Result, ...]
    supersteps: int
    first: Difference | None = None

    @property
    def is_equal(self) -> bool:
        """Whether host and machine agree in everything."""
        return all(result.is_equal for result in self.results)

    def raise_for_difference(self) -> None:
        """Raise where host and machine disagree.

        Raises:
            ExecutionError: It names the first difference.
        """
        if not self.is_equal:
            raise ExecutionError(
                str(self), remedy="please report it with the model: one of the two is wrong, and none of your code is",
            )

    def __str__(self) -> str:
        differing = [result for result in self.results if not result.is_equal]
        if not differing:
            agreed = f"host and machine agree in {len(self.results)} results"
            return f"{agreed}; the machine ran {self.supersteps} compute sets"
        lines = [f"host and machine differ in {len(differing)} of {len(self.results)} results"]
        lines += [f"  {one.kind} {one.name}: off by {one.error:.3g}, at most {one.bound:.3g}" for one in differing[:10]]
        lines.append(str(self.first) if self.first is not None else
                     "  every op alone is right: the host plan is wrong where it joins ops, or in their order")
        return "\n".join(lines)


def compared(values: Sequence[Compared]) -> tuple[Result, ...]:
    """Return how far the host is from the machine, and how far it may be."""
    of_kind: dict[str, float] = {}
    for value in values:
        of_kind[value.kind] = float(np.hypot(of_kind.get(value.kind, 0.0), norm(value.exact)))
    return tuple(
        Result(
            value.name, value.kind, distance(value.host, value.exact),
            bound(value.exact, *value.typed) + SHARE * of_kind[value.kind],
        )
        for value in values
    )
