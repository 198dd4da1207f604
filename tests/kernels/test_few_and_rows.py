"""Where few of a row are wanted, rows lie dense, or values are no numbers: results are as in every other way."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.kernels.immediate import run_op
from torchipu.ir.types import DType
from torchipu.ops import loss, scan, sort  # noqa: F401

VALUES = {
    "different": lambda x: x, "ties": torch.round, "zeros of both signs": lambda x: x.round() * 0.0,
    "not numbers": lambda x: x.masked_fill(x > 1, float("nan")).masked_fill(x < -1.5, float("inf")),
}


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(("length", "kept"), [(100, 5), (1024, 10), (513, 64), (37, 1), (40, 39)])
@pytest.mark.parametrize("values", VALUES)
def test_topk_is_the_beginning_of_a_stable_sort(values: str, length: int, kept: int, largest: bool) -> None:
    x = VALUES[values](torch.randn(7, length, generator=torch.Generator().manual_seed(length)))
    ordered, places = torch.sort(x, dim=-1, descending=largest, stable=True)
    attrs = {"k": kept, "dim": -1, "largest": largest, "sorted": True}
    found, where = run_op("aten.topk.default", {"self": x}, attrs, [((7, kept), DType.FLOAT), ((7, kept), DType.LONG)])
    torch.testing.assert_close(found, ordered[:, :kept], rtol=0, atol=0, equal_nan=True)
    assert torch.equal(where, places[:, :kept])


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 17])
@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
def test_scans_of_dense_rows_round_once(name: str, rows: int) -> None:
    x = 1 + torch.randn(rows, 129, generator=torch.Generator().manual_seed(rows)) / 8
    wanted = getattr(torch, name)(x.double(), 1).float()
    for threads in (1, 2):
        (found,) = run_op(f"aten.{name}.default", {"self": x}, {"dim": 1}, [(tuple(x.shape), DType.FLOAT)], threads)
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("function", [F.binary_cross_entropy_with_logits, F.smooth_l1_loss, F.huber_loss])
def test_losses_of_what_is_no_number_are_those_of_eager_pytorch(function: object) -> None:
    x = torch.tensor([float("inf"), -float("inf"), float("nan"), 200.0, -200.0, 0.0, -0.0] * 3)
    target = torch.tensor([1.0, 0.0, 0.5, 0.3, 0.7, 0.0, 1.0] * 3)
    torch._dynamo.reset()
    results = []
    for call in (function, torch.compile(function, backend="ipu")):
        given = x.clone().requires_grad_()
        y = call(given, target, reduction="none")
        y.sum().backward()
        results.append((y.detach(), given.grad))
    for eager, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, eager, equal_nan=True)


def test_probabilities_of_0_and_1_lose_what_eager_pytorch_says() -> None:
    x, target = torch.tensor([0.0, 1.0, 2e-38, 1 - 6e-8, 0.5] * 7), torch.linspace(0, 1, 35)
    attrs = {"weight": None, "reduction": 0}
    (found,) = run_op(
        "aten.binary_cross_entropy.default", {"self": x, "target": target}, attrs, [((35,), DType.FLOAT)],
    )
    torch.testing.assert_close(found, F.binary_cross_entropy(x, target, reduction="none"))
