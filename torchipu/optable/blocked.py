"""Ops that the host can compute with channels in blocks, ``[N, blocks, H, W, lanes]``, and what that is worth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torchipu.ir.graph import Op, Tensor
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import HostPlanner

Sizes = tuple[int, int, int, int]
"""Images, channels, rows and columns."""


class Rows(dict[Tensor, Sizes]):
    """Values that hold images with channels last, as ``[N, H, W, C]`` or ``[N * H * W, C]``, and sizes of the images.

    Attributes:
        flat: Likewise of those with channels second, whose planes have one dimension: ``[N, C, H * W]``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flat: dict[Tensor, Sizes] = {}



class BlockedPlanner(HostPlanner, Protocol):
    """What the emitter of a blocked form may ask of the planner beside what others may.

    Attributes:
        terms: What decides beside sizes.
    """

    terms: Terms

    def blocked(self, tensor: Tensor) -> HostTensor:
        """Return where a value of ``[N, C, H, W]`` lies in the blocked layout, brought there if need be."""
        ...

    def is_blocked(self, tensor: Tensor) -> bool:
        """Whether a value lies in the blocked layout already."""
        ...

    def has_channels_last(self, tensor: Tensor) -> bool:
        """Whether a value has its channels last, where it lies row-major."""
        ...

    def expected_output(self, tensor: Tensor) -> HostTensor:
        """Return storage for a result, in the order in which the caller expects it; row-major where nobody does."""
        ...

    def blocked_output(self, tensor: Tensor) -> HostTensor:
        """Return storage in the blocked layout for a result."""
        ...

    def blocked_view(self, tensor: Tensor, source: Tensor) -> None:
        """Say that a result lies in the blocked layout as another value does."""
        ...

    def image_sizes(self, tensor: Tensor) -> Sizes:
        """Return the sizes of the images that a value holds, whether channels come second or last."""
        ...


@dataclass(frozen=True, slots=True)
class Terms:
    """What decides, beside sizes, whether to compute in the blocked layout pays.

    Attributes:
        is_strict: Whether convolutions are the sums that define them, and no transforms are made.
        packs_ahead: Whether weights are packed once for many calls.
        joins_freely: Whether which ops are computed together may change how values are rounded: the program is in one
            process, on one stage, and changes no weights.
    """

    is_strict: bool = False
    packs_ahead: bool = True
    joins_freely: bool = True


def first_result(ops: Sequence[Op]) -> Tensor | None:
    """Return the first result of the last op."""
    return ops[-1].outputs[0]


def always_as_it_lies(_: Sequence[Op]) -> bool:
    """Whether the plain form of any ops takes values with their channels last as they lie."""
    return True


def nothing(ops: Sequence[Op]) -> Sequence[Tensor]:
    """Return no value."""
    return ()


@dataclass(frozen=True, slots=True)
class BlockedForm:
    """How ops are computed in the blocked layout.

    Attributes:
        serves: Whether the form takes an op, given which values have their channels last.
        follows: Whether what is computed so far goes on with an op, which alone reads its first result; likewise.
        sources: The values that ops read in the blocked layout, the one that decides first.
        gain_ns: Nanoseconds that the form saves over the plain one on one thread, what bringing values into the
            layout and back costs aside.
        emit: Host steps that give all results that are wanted.
        result: The value that then lies in the blocked layout, or would if it were an image; None for none.
        makes_others: Whether the form makes the other results of the first op as well, row-major.
        is_exact: Whether values are those of the row-major form, to the last bit.
        either: The values that ops read in the blocked layout as well as row-major.
        reads_rows: Whether the plain form of ops takes values with their channels last as they lie; one that does not
            has them turned first.
    """

    serves: Callable[[Op, Rows], bool]
    follows: Callable[[Sequence[Op], Op, Rows], bool]
    sources: Callable[[Sequence[Op]], Sequence[Tensor]]
    gain_ns: Callable[[Sequence[Op], Terms], float]
    emit: Callable[[Sequence[Op], BlockedPlanner], None]
    result: Callable[[Sequence[Op]], Tensor | None] = first_result
    makes_others: bool = False
    is_exact: bool = False
    reads_rows: Callable[[Sequence[Op]], bool] = always_as_it_lies
    either: Callable[[Sequence[Op]], Sequence[Tensor]] = nothing


BLOCKED_FORMS: dict[str, BlockedForm] = {}
RowsRule = Callable[[Op, Rows], "Sizes | None"]
ROWS_RULES: dict[str, RowsRule] = {}
FLAT_RULES: dict[str, RowsRule] = {}


def register_blocked(target: str, form: BlockedForm) -> None:
    """Enter the form of ops that begin with one of a target."""
    BLOCKED_FORMS[target] = form


def register_rows(target: str, rule: RowsRule) -> None:
    """Enter how an op tells of which images its first result holds rows of channels; None where of none."""
    ROWS_RULES[target] = rule


def register_flat(target: str, rule: RowsRule) -> None:
    """Enter how an op tells of which images its first result holds planes of one dimension; None where of none."""
    FLAT_RULES[target] = rule


def rows_of(op: Op, rows: Rows) -> Sizes | None:
    """Return of which images an op's first result holds rows of channels, where the operands hold such; or None."""
    rule = ROWS_RULES.get(op.target)
    return None if rule is None else rule(op, rows)


def flat_of(op: Op, rows: Rows) -> Sizes | None:
    """Return of which images an op's first result holds planes of one dimension, likewise."""
    rule = FLAT_RULES.get(op.target)
    return None if rule is None else rule(op, rows)


def find_rows(ops: Sequence[Op]) -> Rows:
    """Return the values of a graph that hold images with their channels last, or planes of one dimension.

    Of the latter those alone which stand between images and rows, so that whatever reads them reads one of these.
    """
    rows = Rows()
    passed: dict[Tensor, bool] = {}
    for op in ops:
        if (sizes := rows_of(op, rows)) is not None:
            rows[op.outputs[0]] = sizes
        elif (sizes := flat_of(op, rows)) is not None:
            rows.flat[op.outputs[0]] = sizes
        for x in op.inputs:
            if x in rows.flat:
                goes_on = any(result in rows or result.shape == rows.flat[x] for result in op.outputs)
                passed[x] = passed.get(x, True) and goes_on
    rows.flat = {tensor: sizes for tensor, sizes in rows.flat.items() if passed.get(tensor, False)}
    return rows


def follows_nothing(ops: Sequence[Op], after: Op, rows: Rows) -> bool:
    """Whether an op joins those before it: none does."""
    return False


def saves_nothing(ops: Sequence[Op], terms: Terms) -> float:
    """Return what is saved by ops that are as quick in either layout."""
    return 0.0
