"""Steps read halves and bfloats as they lie, and make floats of what they need; bfloats are stored at once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from tests.host.planned import planned_kernels
from torchipu.host.planner import Planner
from torchipu.host.steps import Step
from torchipu.ir.types import DType

pytestmark = pytest.mark.filterwarnings("ignore:torchipu. torch.bfloat16 does not exist")
NARROW = [torch.float16, torch.bfloat16]
LABELS = torch.tensor([0, 36, 5, -100, 7])
BAGS = torch.tensor([[3, 0, 3], [254, 7, 1], [2, 2, 200]])


def _norm(x: torch.Tensor, w: torch.Tensor, *, training: bool = False) -> torch.Tensor:
    mean, variance = (torch.linspace(low, 2, x.shape[1]).to(x.dtype) for low in (-1, 0.5))
    w = w[: x.shape[1]]
    return F.batch_norm(x, None if training else mean, None if training else variance, w, w.flip(0), training)


def _last(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous(memory_format=torch.channels_last)


READ: dict[str, tuple[Callable[..., torch.Tensor], tuple[int, ...], tuple[str, ...]]] = {
    "nll": (lambda x, w: F.nll_loss(x, LABELS.clone()), (5, 37), ("nll", "nll_total")),
    "nll of images": (lambda x, w: F.nll_loss(x, LABELS.view(1, 5, 1).clone(), reduction="sum"), (1, 37, 5, 1),
                      ("nll", "nll_total")),
    "bags": (lambda x, w: F.embedding_bag(BAGS.clone(), x), (255, 21), ("bag_rows",)),
    "largest of bags": (lambda x, w: F.embedding_bag(BAGS.clone(), x, mode="max"), (255, 37), ("bag_rows",)),
    "softmax": (lambda x, w: x.softmax(-1), (7, 129), ("softmax_rows",)),
    "log softmax": (lambda x, w: x.log_softmax(-1), (7, 16), ("softmax_rows",)),
    "layer norm": (lambda x, w: F.layer_norm(x, (37,)), (9, 37), ("layer_norm",)),
    "weighted layer norm": (lambda x, w: F.layer_norm(x, (37,), w[:37], w[1:38]), (3, 3, 37), ("layer_norm",)),
    "batch norm": (_norm, (3, 5, 7, 11), ("batch_apply",)),
    "batch norm of long rows": (_norm, (2, 3, 1500), ("batch_apply",)),
    "batch norm of rows": (_norm, (65, 40), ("batch_apply",)),
    "batch norm of channels last": (lambda x, w: _norm(_last(x), w), (3, 40, 7, 5), ("batch_apply",)),
    "batch norm by the batch": (lambda x, w: _norm(x, w, training=True), (4, 33, 7, 11),
                                ("batch_moments", "batch_statistics", "batch_apply")),
    "batch norm of rows by the batch": (lambda x, w: _norm(x, w, training=True), (300, 40),
                                        ("batch_row_moments", "batch_row_statistics", "batch_apply")),
    "batch norm of long rows by the batch": (lambda x, w: _norm(x, w, training=True), (2, 3, 20001),
                                             ("batch_moments", "batch_statistics", "batch_apply")),
}
"""What is computed of x and a weight, the shape of x, and the kernels but those that convert small operands."""


def _made(function: Callable[..., torch.Tensor], x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
    x, w = (each.detach().clone().requires_grad_() for each in (x, w))
    out = function(x, w)
    upstream = torch.linspace(-1, 1, out.numel()).view(out.shape).to(out.dtype)
    grads = torch.autograd.grad(out, [x, w], upstream, allow_unused=True)
    return [out.detach(), *(grad for grad in grads if grad is not None)]


def _given(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return (torch.randn(*shape, generator=generator) * 2).to(dtype), torch.rand(64, generator=generator).to(dtype)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("name", READ)
def test_no_operand_becomes_floats_by_a_step_of_its_own(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch,
) -> None:
    function, shape, kernels = READ[name]
    x, w = _given(shape, dtype)
    torch._dynamo.reset()
    steps: list[Step] = []
    collect = Planner._collect_outputs

    def collected(planner: Planner) -> object:
        found = collect(planner)
        steps.extend(planner.steps)
        return found

    monkeypatch.setattr(Planner, "_collect_outputs", collected)
    with torch.no_grad():
        torch.compile(function, backend="ipu", fullgraph=True)(x, w)
    taken = [step for step in steps if step.kernel is not None and step.kernel.name in kernels]
    assert [step.kernel.name for step in taken if step.kernel is not None] == list(kernels)
    others = [held for step in steps if step not in taken for held in step.outputs]
    assert all(held.dtype is not DType.FLOAT or held.num_elements <= 64 for held in others)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("name", READ)
def test_values_and_gradients_are_near_those_of_float64(name: str, dtype: torch.dtype) -> None:
    function, shape, _ = READ[name]
    x, w = _given(shape, dtype)
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="ipu", fullgraph=True)
    exact, eager = _made(function, x.double(), w.double()), _made(function, x, w)
    for _ in range(2):
        made = _made(compiled, x, w)
        for mine, theirs, torchs in zip(made, exact, eager, strict=True):
            assert mine.dtype is torchs.dtype
            step = 2**-10 if dtype is torch.float16 else 2**-7
            error, bound = (mine.double() - theirs).norm(), (torchs.double() - theirs).norm()
            assert error <= max(2 * bound, step * theirs.norm())


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("name", ["softmax", "layer norm", "batch norm", "batch norm of channels last", "bags"])
def test_what_is_not_finite_is_so_where_it_is_in_eager_pytorch(name: str, dtype: torch.dtype) -> None:
    function, shape, _ = READ[name]
    x, w = _given(shape, dtype)
    x.view(-1)[3::50] = torch.nan
    x.view(-1)[7::90] = torch.inf
    x.view(-1)[8::90] = -0.0
    torch._dynamo.reset()
    with torch.no_grad():
        made, theirs = torch.compile(function, backend="ipu", fullgraph=True)(x, w), function(x, w)
    assert torch.equal(made.isnan(), theirs.isnan())
    assert torch.equal(made.isinf(), theirs.isinf())


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("name", ["softmax", "layer norm", "batch norm", "batch norm of rows by the batch"])
def test_any_number_of_threads_gives_the_same_bits(name: str, dtype: torch.dtype) -> None:
    function, shape, _ = READ[name]
    x, w = _given((16 * shape[0], *shape[1:]), dtype)
    found = []
    for threads in (1, 3):
        torch._dynamo.reset()
        compiled = torch.compile(function, backend="ipu", fullgraph=True, options={"host_threads": threads})
        found.append(_made(compiled, x, w))
    assert all(torch.equal(one.view(torch.int16), three.view(torch.int16)) for one, three in zip(*found, strict=True))


def test_a_result_in_another_order_is_stored_as_bfloats_too(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(2, 8, 9, 7).bfloat16().contiguous(memory_format=torch.channels_last)
    w = torch.rand(8).bfloat16()
    torch._dynamo.reset()
    names = planned_kernels(monkeypatch)
    with torch.no_grad():
        made, theirs = torch.compile(_norm, backend="ipu", fullgraph=True)(x, w), _norm(x.double(), w.double())
    assert made.stride() == x.stride()
    assert names[-1] == "batch_apply"
    torch.testing.assert_close(made.double(), theirs, rtol=2**-7, atol=2**-7)


def test_a_value_that_is_read_as_floats_as_well_is_returned_as_bfloats() -> None:
    def both(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = x.softmax(-1)
        return made, made.sum(0), made.t(), made.float()

    x = torch.randn(33, 50).bfloat16()
    torch._dynamo.reset()
    for mine, theirs in zip(torch.compile(both, backend="ipu")(x), both(x.double()), strict=True):
        torch.testing.assert_close(mine.double(), theirs.double(), rtol=2**-6, atol=2**-6)


def test_each_branch_stores_its_result() -> None:
    def chosen(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.softmax(-1), lambda x: x.log_softmax(-1), (x,))

    torch._dynamo.reset()
    compiled = torch.compile(chosen, backend="ipu")
    x = torch.rand(33, 50).bfloat16()
    for given in (x, -x):
        torch.testing.assert_close(compiled(given).double(), chosen(given.double()), rtol=2**-6, atol=2**-6)
