"""Arguments that eager PyTorch refuses and the graphs of torch let through: refused, never computed or read beyond."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.ops.cases.drawing import Call, call
from tests.ops.one_op import imported, overload_of
from tests.releases import WORDS_ON_DIAGONALS
from tests.strategies import GraphBuilder
from torchipu.backend import ipu_backend
from torchipu.errors import ConstraintError, VerifyError
from torchipu.host.emit.copy import emit_copy
from torchipu.host.planner import Planner
from torchipu.ir.types import DType
from torchipu.optable.host_tensor import HostTensor, broadcast

X, ROW, NUMBERS = torch.zeros(4, 5), torch.tensor([0, 1]), torch.ones(5)
IMAGE, WEIGHT = torch.zeros(1, 2, 6, 6), torch.zeros(2, 2, 3, 3)


def convolved(stride: int = 1, padding: int = 0, dilation: int = 1) -> Call:
    settings = [stride] * 2, [padding] * 2, [dilation] * 2
    return call("convolution.default", IMAGE, WEIGHT, None, *settings, False, [0, 0], 1)


WRONG = {
    "mask of bytes": call("masked_scatter.default", X, X.byte(), NUMBERS),
    "rows of another width": call("index_add.default", X, 0, ROW, torch.ones(2)),
    "rows of another width reduced": call("index_reduce.default", X, 0, ROW, torch.ones(2, 1), "amax"),
    "rows of another type": call("index_copy.default", X, 0, ROW, torch.ones(2, 5).half()),
    "fewer values than places": call("put.default", X, ROW, torch.ones(3)),
    "values that do not broadcast": call("index_put.default", X, [ROW], torch.ones(2, 3)),
    "values of another type": call("index_put.default", X, [ROW], torch.ones(2, 5).half()),
    "indices in two dimensions": call("index_select.default", X, 0, ROW[None]),
    "boundaries in two dimensions": call("bucketize.Tensor", NUMBERS, X),
    "weights that are whole": call("multinomial.default", X.long() + 1, 1),
    "no draw": call("multinomial.default", NUMBERS, 0),
    "more draws than weights": call("multinomial.default", NUMBERS, 6),
    "a range that falls": call("uniform.default", X, 3.0, -1.0),
    "a probability above one": call("bernoulli.p", X, 2.0),
    "softmax of a third dimension": call("_softmax.default", X, 2, False),
    "sort of a third dimension": call("sort.default", X, 2),
    "extremes of a number's second dimension": call("cummax.default", torch.tensor(1.0), 1),
    "slice of another shape": call("slice_scatter.default", X, torch.ones(4, 5), 0, 0, 2),
    "slice of a third dimension": call("slice_scatter.default", X, X, 2),
    "row of another length": call("select_scatter.default", X, torch.ones(1), 0, 0),
    "diagonal of another length": call("diagonal_scatter.default", X, torch.ones(7)),
    "product of two types": call("mm.default", X, torch.zeros(5, 2).half()),
    "bias of another type": call("addmm.default", torch.zeros(2).half(), X, torch.zeros(5, 2)),
    "vector of another type": call("mv.default", X, NUMBERS.half()),
    "windows without dilation": convolved(dilation=0),
    "windows beyond the image's inside": call("im2col.default", IMAGE, [2, 2], [1, 1], [-1, -1], [1, 1]),
}


@pytest.mark.parametrize("what", [
    pytest.param(what, marks=WORDS_ON_DIAGONALS) if what == "diagonal of another length" else what for what in WRONG
])
def test_wrong_arguments_are_refused_with_what_is_wrong_and_what_to_do(what: str) -> None:
    with pytest.raises((RuntimeError, IndexError)):
        overload_of(WRONG[what].target)(*WRONG[what].args)
    with pytest.raises(ConstraintError) as caught:
        imported(WRONG[what])
    assert str(caught.value).startswith(f"{WRONG[what].target}: ")
    assert caught.value.remedy
    assert WRONG[what].target in str(caught.value.op)


@pytest.mark.parametrize(("what", "got"), [
    ("softmax of a third dimension", "'dim' is out of the range of dimensions of its operand, got 2 of 2"),
    ("product of two types", "operands must be of one element type, got float and half"),
    ("a probability above one", "'p' must lie between 0 and 1, got 2"),
    pytest.param(
        "diagonal of another length", "'src' must have the shape of what it replaces, got [7] for [4]",
        marks=WORDS_ON_DIAGONALS,
    ),
])
def test_refusals_say_what_was_expected_and_what_was_got(what: str, got: str) -> None:
    with pytest.raises(ConstraintError) as caught:
        imported(WRONG[what])
    assert caught.value.message == f"{WRONG[what].target}: {got}"


RIGHT = {
    "number with a number": call("index_add.default", torch.tensor(1.0), 0, torch.tensor([0]), torch.tensor(2.0)),
    "values that are one row": call("index_put.default", X, [ROW], torch.ones(1, 5)),
    "values behind a slice": call("index_put.default", X, [None, ROW], torch.ones(4, 2)),
    "values of places apart": call("index_put.default", torch.zeros(2, 3, 4), [ROW, None, ROW], torch.ones(2, 3)),
    "as many draws as weights": call("multinomial.default", NUMBERS, 5),
    "more draws that are put back": call("multinomial.default", NUMBERS, 9, True),
    "the last dimension from behind": call("_softmax.default", X, -2, False),
    "a number's only dimension": call("cummax.default", torch.tensor(1.0), -1),
    "a range of one value": call("uniform.default", X, 2.0, 2.0),
    "every second row": call("slice_scatter.default", X, torch.ones(2, 5), 0, 0, 4, 2),
    "product that an integer is added to": call("addmm.default", torch.tensor(2), X.long(), torch.ones(5, 2).long()),
}


@pytest.mark.parametrize("what", RIGHT)
def test_what_eager_takes_is_taken(what: str) -> None:
    overload_of(RIGHT[what].target)(*RIGHT[what].args)
    assert imported(RIGHT[what]).graph.ops


def test_views_that_do_not_fit_end_the_plan_before_a_kernel_reads_beyond_them() -> None:
    build = GraphBuilder()
    plan = Planner(build.graph(build.input("x")))
    small, large = plan.scratch((1, 3)), plan.scratch((2, 3))
    with pytest.raises(VerifyError, match=r"a copy of \(1, 3\) to \(2, 3\)"):
        emit_copy(plan, large, small)
    with pytest.raises(VerifyError, match=r"\(2, 3\) does not broadcast to \(4, 3\)"):
        broadcast(large, (4, 3))
    beyond = HostTensor(small.buffer, 0, (2, 3), (3, 1), DType.FLOAT)
    before = HostTensor(large.buffer, 0, (2, 3), (-3, 1), DType.FLOAT)
    for wrong in (beyond, before):
        with pytest.raises(VerifyError, match="reaches beyond its allocation"):
            emit_copy(plan, plan.scratch((2, 3)), wrong)
    emit_copy(plan, large, broadcast(small, (2, 3)))
    assert broadcast(plan.scratch((1, 1)), (36,)).strides == (0,)  # a tile names elements by one number


class _Pooled(torch.nn.Module):
    """A pool to some size, whose sizes are not looked at before."""

    def __init__(self, pool: Callable[..., torch.Tensor], size: tuple[int, ...]) -> None:
        super().__init__()
        self.pool, self.size = pool, size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pool(x, self.size)


@pytest.mark.parametrize("size", [(), (1,), (1, 1, 1, 1)])
@pytest.mark.parametrize("rank", [2, 3])
def test_adaptive_pools_take_as_many_sizes_as_they_have_dimensions(rank: int, size: tuple[int, ...]) -> None:
    pool = getattr(torch.ops.aten, f"adaptive_avg_pool{rank}d")
    x = torch.ones(2, 3, *(4, 5, 6)[:rank])
    with pytest.raises(RuntimeError, match=f"output_size must be {rank}"):
        pool(x, size)
    with pytest.raises(RuntimeError, match=f"output_size must be {rank}"):
        ipu_backend(_Pooled(pool, size), [x])(x)
