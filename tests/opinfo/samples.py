"""The samples of OpInfo: listed the same way at each call, split into tensors and the rest."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

if TYPE_CHECKING:
    from torch.testing._internal.opinfo.core import OpInfo, SampleInput

DTYPES = {
    "float32": torch.float32, "float16": torch.float16, "int32": torch.int32, "int64": torch.int64, "bool": torch.bool,
}

FURTHER_DTYPES = {
    "float64": torch.float64, "bfloat16": torch.bfloat16, "int8": torch.int8, "int16": torch.int16,
    "uint8": torch.uint8, "complex64": torch.complex64,
}
"""Types that a run takes when they are named: narrow integers, floats that the IPU computes as float32, and complex
numbers, which it computes as pairs of floats."""
ALL_DTYPES = {**DTYPES, **FURTHER_DTYPES}


def _unseeded(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return op(*args, **kwargs)


@cache
def _operators() -> dict[str, OpInfo]:
    from torch.testing._internal import common_methods_invocations

    # OpInfo calls random operators with a fixed seed of torch's generator, which has no meaning for another generator,
    # and which Dynamo cannot trace. Without it `judge` can tell by itself which operators are random.
    common_methods_invocations.wrapper_set_seed = _unseeded  # type: ignore[attr-defined]
    return {op.full_name: op for op in common_methods_invocations.op_db}


class _Operators(Mapping[str, "OpInfo"]):
    """Imports OpInfo when it is first asked: that takes as long as torch, and who collects tests needs none of it."""

    def __getitem__(self, name: str) -> OpInfo:
        return _operators()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_operators())

    def __len__(self) -> int:
        return len(_operators())


OPS: Mapping[str, OpInfo] = _Operators()

UNDEFINED = frozenset({"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"})
"""Operators whose values are whatever the memory held; only shape and type can be compared."""

IN_PLACE = "[in place]"
"""Follows the name of an operator where its in-place variant is meant."""


@dataclass(frozen=True, slots=True)
class Case:
    """Which samples to run: those of one operator and element type, out of place or in place."""

    op: str
    dtype: str
    in_place: bool = False

    @property
    def name(self) -> str:
        """Name in reports."""
        return self.op + (IN_PLACE if self.in_place else "")


def cases(pattern: Callable[[str], Any], dtypes: Sequence[str], *, in_place: bool = False) -> list[Case]:
    """List the cases of the operators that a pattern accepts and that eager supports on the CPU."""
    found = []
    for name, op in OPS.items():
        if not pattern(name):
            continue
        for dtype in dtypes:
            if not op.supports_dtype(ALL_DTYPES[dtype], "cpu"):
                continue
            found.append(Case(name, dtype))
            if in_place and op.inplace_variant is not None:
                found.append(Case(name, dtype, in_place=True))
    return found


def seed(number: int) -> None:
    """Seed every generator that samples may draw from."""
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number)


def takes_gradients(case: Case) -> bool:
    """Whether a backward is run."""
    dtype = ALL_DTYPES[case.dtype]
    return OPS[case.op].supports_autograd and (dtype.is_floating_point or dtype.is_complex) and not case.in_place


def samples_of(case: Case) -> list[SampleInput]:
    """Return all samples of a case; the same list at each call."""
    seed(zlib.crc32(f"{case.op} {case.dtype}".encode()))
    found = list(OPS[case.op].sample_inputs("cpu", ALL_DTYPES[case.dtype], requires_grad=takes_gradients(case)))
    return [sample for sample in found if not (case.in_place and sample.broadcasts_input)]


def spread(count: int, most: int | None) -> list[int]:
    """Choose at most ``most`` of ``count`` numbers, evenly spread, the first always among them."""
    if not most or count <= most:
        return list(range(count))
    return sorted({round(position * (count - 1) / max(1, most - 1)) for position in range(most)})


class Call:
    """A sample as a function of its tensors.

    Args:
        case: Where the sample comes from.
        sample: The sample.
    """

    def __init__(self, case: Case, sample: SampleInput) -> None:
        op = OPS[case.op]
        self.function: Callable[..., Any] = op.inplace_variant if case.in_place else op.op
        self.op = case.op
        self.in_place = case.in_place
        self.leaves, self.spec = pytree.tree_flatten((sample.input, tuple(sample.args), dict(sample.kwargs)))
        self.places = [place for place, leaf in enumerate(self.leaves) if isinstance(leaf, torch.Tensor)]
        self.finish = sample.output_process_fn_grad

    def tensors(self, floating: torch.dtype | None = None) -> list[torch.Tensor]:
        """Return the sample's tensors in memory of their own, with their strides.

        Args:
            floating: Element type to convert floating tensors to; None leaves them.
        """
        return [_copy(self.leaves[place], floating) for place in self.places]

    def __call__(self, *tensors: torch.Tensor) -> Any:
        """Call the operator."""
        return self.call(self.leaves, tensors)

    def in_double(self, *tensors: torch.Tensor) -> Any:
        """Call the operator with float64 in the place of the floating element types among its arguments."""
        return self.call([
            _doubled(leaf, torch.float64) if isinstance(leaf, torch.dtype) else leaf for leaf in self.leaves
        ], tensors)

    def arguments(self) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        """Return the sample: what the operator is called on, its further arguments, and those by name."""
        return pytree.tree_unflatten(self.leaves, self.spec)  # type: ignore[no-any-return]

    def call(self, leaves: Sequence[Any], tensors: Sequence[torch.Tensor]) -> Any:
        """Call the operator with tensors in their places."""
        filled = list(leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            filled[place] = tensor
        subject, args, kwargs = pytree.tree_unflatten(filled, self.spec)
        return self.function(subject, *args, **kwargs)

    def describe(self) -> str:
        """Return the sample in one line: shapes for tensors, values for the rest."""
        told = [_tell(leaf) if isinstance(leaf, torch.Tensor) else repr(leaf) for leaf in self.leaves]
        return f"({', '.join(told)})"


def _doubled(dtype: torch.dtype, floating: torch.dtype) -> torch.dtype:
    """Return a floating type in the place of another one, its complex one in that of a complex one."""
    if dtype.is_complex:
        return floating.to_complex()
    return floating if dtype.is_floating_point else dtype


def _tell(tensor: torch.Tensor) -> str:
    text = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
    if tensor.layout is not torch.strided:
        return f"{text} {tensor.layout}"
    return text if tensor.is_contiguous() else f"{text} strides {tensor.stride()}"


def _copy(tensor: torch.Tensor, floating: torch.dtype | None) -> torch.Tensor:
    bare = tensor.detach()
    if floating is not None and (bare.is_floating_point() or bare.is_complex()):
        copy = bare.to(_doubled(bare.dtype, floating))
    elif bare.layout is not torch.strided or bare.is_quantized or bare.is_nested or bare.is_conj() or bare.is_neg():
        copy = bare.clone()
    else:
        storage = bare.untyped_storage().clone()
        copy = torch.empty(0, dtype=bare.dtype).set_(storage, bare.storage_offset(), bare.shape, bare.stride())
    return copy.requires_grad_(tensor.requires_grad)
