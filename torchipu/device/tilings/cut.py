"""How the index space of a product is cut up: among vertices, and for each of them into parts, one after another."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from torchipu.ir.arithmetic import ceil_div
from torchipu.ir.region import Numbers

Four = tuple[int, int, int, int]
GROUPS, POSITIONS, OUTPUTS, INPUTS = range(4)


@dataclass(frozen=True, slots=True)
class Cut:
    """Splits of the four dimensions of a product: groups, positions, outputs and inputs.

    Attributes:
        sizes: How many there are.
        splits: How many vertices share them; vertices are numbered with the inputs fastest.
        shares: How many each of these vertices takes in all; the last ones take what is left.
        at_once: How many it takes at a time.
    """

    sizes: Four
    splits: Four
    shares: Four
    at_once: Four

    @property
    def num_vertices(self) -> int:
        """How many vertices there are."""
        return int(np.prod(self.splits))

    @property
    def parts(self) -> Four:
        """In how many steps a vertex takes its share of each dimension, the inputs fastest."""
        groups, positions, outputs, inputs = (
            ceil_div(share, step) for share, step in zip(self.shares, self.at_once, strict=True)
        )
        return groups, positions, outputs, inputs

    def with_inputs(self, inputs: int) -> Cut:
        """Return the same splits of another number of inputs."""
        if inputs == self.sizes[INPUTS]:
            return self
        share = ceil_div(inputs, self.splits[INPUTS])
        return replace(
            self, sizes=(*self.sizes[:3], inputs), shares=(*self.shares[:3], share),
            at_once=(*self.at_once[:3], ceil_div(share, self.parts[INPUTS])),
        )

    def with_groups(self, groups: int) -> Cut:
        """Return the same splits of fewer groups: the vertices of those that are left out have nothing."""
        return replace(self, sizes=(groups, *self.sizes[1:]))

    def step(self, part: int) -> Four | None:
        """Return the step along each dimension that a part is; None where all is done."""
        if part >= np.prod(self.parts):
            return None
        groups, positions, outputs, inputs = (int(digit) for digit in np.unravel_index(part, self.parts))
        return groups, positions, outputs, inputs

    def whole(self) -> tuple[Numbers, Numbers]:
        """Return the share of each vertex: its begin and end along each dimension, ``[vertices, 4]``."""
        digits = np.stack(np.unravel_index(np.arange(self.num_vertices), self.splits), axis=1).astype(np.int64)
        shares, sizes = np.array(self.shares), np.array(self.sizes)
        return np.minimum(digits * shares, sizes), np.minimum((digits + 1) * shares, sizes)

    def block(self, step: Four) -> tuple[Numbers, Numbers]:
        """Return what each vertex takes in a step, as ``whole``; where there is nothing left, begin is end."""
        low, high = self.whole()
        begin = np.minimum(low + np.array(step) * np.array(self.at_once), high)
        return begin, np.minimum(begin + np.array(self.at_once), high)
