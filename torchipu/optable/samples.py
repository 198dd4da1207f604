"""Which part of its arguments a host step needs for some of its items: how a chunk of samples goes through several."""

from __future__ import annotations

from dataclasses import dataclass

from torchipu.optable.host_tensor import HostTensor


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples that the items of a step share out in order, each for itself.

    An item reads and writes nothing of a divided argument but what belongs to its samples, and what it computes does
    not depend on the chunk that it is computed in.

    Attributes:
        count: Samples: images, rows, elements.
        strides: For each argument, outputs first, the bytes from a sample to the next, which lie one behind the other;
            0 for one that is not divided so.
        each: Samples of a group, the last of which may have fewer; all groups have as many items.
    """

    count: int
    strides: tuple[int, ...]
    each: int = 1

    @staticmethod
    def of(count: int, *arguments: HostTensor | None, each: int = 1) -> Samples:
        """Return the samples of a step whose divided arguments are row-major.

        Args:
            count: Samples.
            *arguments: Outputs, then inputs; None for one that is not divided.
            each: Samples of a group.
        """
        return Samples(count, tuple(
            0 if held is None or not held.is_contiguous or held.num_elements % max(1, count) else
            held.num_elements // max(1, count) * held.dtype.host_bytes
            for held in arguments
        ), each)

    @property
    def groups(self) -> int:
        """Groups of samples."""
        return -(-self.count // self.each)
