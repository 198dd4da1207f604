"""Which part of its arguments a host step needs for some of its items: how a chunk of samples goes through several."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import lcm

from torchipu.optable.host_tensor import HostTensor, collapse


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
        following: For each argument one whose dimensions are gone through in order, though it lies apart or is
            repeated: it may be divided into larger samples.
        picked: For each argument the bytes of it that a sample reads, where it is not divided and few of it are read;
            0 for one of which all may be.
    """

    count: int
    strides: tuple[int, ...]
    each: int = 1
    following: tuple[HostTensor | None, ...] = ()
    picked: tuple[int, ...] = ()

    @staticmethod
    def of(count: int, *arguments: HostTensor | None, each: int = 1) -> Samples:
        """Return the samples of a step that goes through the divided arguments in the order of their dimensions.

        Args:
            count: Samples.
            *arguments: Outputs, then inputs; None for one that is not divided.
            each: Samples of a group.
        """
        return Samples(
            count, tuple(0 if held is None else _whole_step(held, max(1, count)) for held in arguments), each,
            tuple(held if held is not None and _lies_apart(held, max(1, count)) else None for held in arguments),
        )

    def picking(self, argument: int, num_bytes: int) -> Samples:
        """Return the same where a sample reads at most so many bytes of an argument that is not divided."""
        return replace(self, picked=tuple(num_bytes if each == argument else 0 for each in range(len(self.strides))))

    @property
    def groups(self) -> int:
        """Groups of samples."""
        return -(-self.count // self.each)

    def counted(self, count: int) -> Samples | None:
        """Return the same in so many samples, each of several of these; None where it would be of part of one.

        Groups that would be cut up are taken together: see `groups_together`.
        """
        if self.count % count:
            return None
        factor = self.count // count
        strides = tuple(stride * factor for stride in self.strides)
        if self.following:
            strides = tuple(
                stride or (0 if held is None else _step(held, count))
                for stride, held in zip(strides, self.following, strict=True)
            )
        picked = tuple(each * factor for each in self.picked)
        return Samples(count, strides, lcm(factor, self.each) // factor, self.following, picked)

    def groups_together(self, count: int) -> int:
        """Return how many groups make one of those in which so many larger samples are counted."""
        return lcm(self.count // count, self.each) // self.each

    def coarser(self) -> Iterator[int]:
        """Yield numbers of larger samples into which arguments can be divided that lie apart, most first."""
        for held in self.following:
            found = held.num_elements if held is not None else 0
            for size in reversed(held.shape if held is not None else ()):
                found //= size
                if 1 < found < self.count:
                    yield found


def _lies_apart(held: HostTensor, count: int) -> bool:
    """Whether a value has elements, or repeats them, for each sample, but not row-major."""
    return not held.is_contiguous and held.num_elements > 0 and held.num_elements % count == 0


def _whole_step(held: HostTensor, count: int) -> int:
    """Return the bytes from a sample to the next of a value that lies row-major, 0 of another."""
    if not held.is_contiguous or held.num_elements % count:
        return _step(held, count)
    return held.num_elements // count * held.dtype.host_bytes


def _step(held: HostTensor, count: int) -> int:
    """Return the bytes from a sample to the next where leading dimensions are the samples in equal steps; else 0.

    What a sample has ends before the next one begins: columns, and windows that overlap, lie in each other.
    """
    dims, found = 0, 1
    while dims < len(held.shape) and found < count:
        found *= held.shape[dims]
        dims += 1
    if found != count:
        return 0
    sizes, (steps,) = collapse(held.shape[:dims], held.strides[:dims])
    if len(sizes) != 1 or sizes[0] == 1:
        return 0
    extent = 1
    for size, stride in zip(held.shape[dims:], held.strides[dims:], strict=True):
        if stride < 0:
            return 0
        extent += (size - 1) * stride
    return steps[0] * held.dtype.host_bytes if extent <= steps[0] else 0
