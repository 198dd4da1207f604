"""Plain op records for tests of passes, so that these depend on no family's file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from torchipu.ir.types import DType
from torchipu.optable.spec import ANY, TABLE, OpSpec

KINDS = {
    "aten.mm.default": "matmul", "aten.add.Tensor": "add", "aten.mul.Tensor": "mul", "aten.mul.Scalar": "mul",
    "aten.relu.default": "relu", "aten.tanh.default": "tanh", "aten.neg.default": "neg", "aten.t.default": "transpose",
    "aten.tanh_backward.default": "tanh_backward", "aten.view.default": "view", "aten.transpose.int": "transpose",
    "aten.alias.default": "alias", "aten.detach.default": "alias", "aten.clone.default": "clone",
}


@contextmanager
def plain_records(**dtypes: tuple[DType, ...]) -> Iterator[None]:
    """Enter a record for each kind above, and one that draws random bits for dropout, while the context lasts.

    Args:
        dtypes: Types that the records of a kind serve; all types by default.
    """
    with pytest.MonkeyPatch.context() as patch:
        for target, kind in KINDS.items():
            patch.setitem(TABLE, target, OpSpec(target, kind, lambda op, machine: (), dtypes=dtypes.get(kind, ANY)))
        random = OpSpec("aten.bernoulli.p", "dropout", lambda op, machine: (), is_random=True)
        patch.setitem(TABLE, random.target, random)
        yield
