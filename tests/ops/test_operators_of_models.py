"""The operators that real models are made of: none of them is left to the generic codelet.

``operators_of_models.txt`` lists what AOT autograd gives of about fifty architectures of timm and transformers,
training and inference. ``tests/models/architectures`` runs such models and counts the generic ops that are left.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import torchipu.ops  # noqa: F401
from torchipu.capture.decompositions import decompositions
from torchipu.optable.spec import TABLE
from torchipu.report.recorder import recording

OPERATORS = (Path(__file__).parent / "operators_of_models.txt").read_text(encoding="utf-8").split()


def test_every_operator_of_models_has_a_record_or_is_taken_apart() -> None:
    taken_apart = {str(overload) for overload in decompositions()}
    assert len(OPERATORS) > 150
    assert [name for name in OPERATORS if name not in TABLE and name not in taken_apart] == []


@pytest.mark.parametrize(("shape", "dim"), [((5, 3, 4), 0), ((5, 3, 4), 2), ((6, 2), 1)])
def test_weight_norm_is_taken_apart_into_native_operators(shape: tuple[int, ...], dim: int) -> None:
    torch._dynamo.reset()
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(shape, generator=generator)
    g = torch.rand([size if place == dim else 1 for place, size in enumerate(shape)], generator=generator) + 0.5
    weights = torch.randn(shape, generator=generator)

    def loss(v: torch.Tensor, g: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return (torch._weight_norm(v, g, dim) * weights).sum()

    given = [v.clone().requires_grad_(), g.clone().requires_grad_()]
    exact = [v.double().requires_grad_(), g.double().requires_grad_()]
    with recording() as programs:
        ours = torch.compile(loss, backend="ipu")(*given, weights)
        ours.backward()
    expected = loss(*exact, weights.double())
    expected.backward()
    torch.testing.assert_close(ours.double(), expected, rtol=1e-5, atol=1e-5)
    for mine, theirs in zip(given, exact, strict=True):
        torch.testing.assert_close(mine.grad.double(), theirs.grad, rtol=1e-5, atol=1e-5)
    assert [op.target for program in programs for op in program.graph.ops if op.kind == "generic"] == []
