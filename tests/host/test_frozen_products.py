"""Products of few rows with frozen weights: panels of these are there already, so that no dot products are made."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.host.planned import planned_steps


class TwoLayers(nn.Module):
    """Two linear layers: `[M, 70]` to `[M, 45]`."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(70, 130), nn.Linear(130, 45, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


class Scores(nn.Module):
    """Rows times what is made of an input, and of a frozen weight: `[M, 70]` and `[45, 70]` to `[M, 45]`."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(45, 70))

    def forward(self, x: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        return x @ keys.t() + x @ self.weight.t()


def frozen(model: nn.Module, *, is_frozen: bool = True) -> nn.Module:
    torch._dynamo.reset()  # else the second size has a plan for all sizes
    options = {"host_threads": 2, "frozen_weights": is_frozen}
    return torch.compile(model.requires_grad_(False), backend="ipu", options=options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("rows", [1, 4, 5, 9, 16, 17, 33, 50, 64, 65])
def test_few_rows_meet_packed_weights(rows: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(rows)
    model, x = TwoLayers().to(dtype), torch.randn(rows, 70).to(dtype)
    steps = planned_steps(monkeypatch)
    compiled = frozen(model)
    made = compiled(x)
    wanted = TwoLayers().double()
    wanted.load_state_dict(model.state_dict())
    bound = 2e-5 if dtype is torch.float32 else 4e-3
    torch.testing.assert_close(made.double(), wanted(x.double()), rtol=bound, atol=bound)
    kinds = {step.kernel.name for step in steps if step.kernel is not None}
    assert ("matmul_dots" in kinds) == (rows <= 4)
    assert ("matmul" in kinds) == (rows > 4)
    products = [step for step in steps if step.kernel is not None and step.kernel.name == "matmul"]
    assert all(step.ints.rows == rows for step in products)  # none is computed transposed
    with torch.no_grad():
        model.first.weight.mul_(-2.0)
    wanted.load_state_dict(model.state_dict())
    torch.testing.assert_close(compiled(x).double(), wanted(x.double()), rtol=2 * bound, atol=2 * bound)


@pytest.mark.parametrize("is_frozen", [False, True])
def test_what_changes_from_call_to_call_is_not_packed(is_frozen: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = planned_steps(monkeypatch)
    model, x, keys = Scores(), torch.randn(9, 70), torch.randn(45, 70)
    made = frozen(model, is_frozen=is_frozen)(x, keys)
    wanted = x.double() @ keys.double().t() + x.double() @ model.weight.double().t()
    torch.testing.assert_close(made.double(), wanted, rtol=2e-5, atol=2e-5)
    kinds = [step.kernel.name for step in steps if step.kernel is not None and step.kernel.name.startswith("matmul")]
    assert sorted(kinds) == (["matmul", "matmul_dots", "matmul_pack"] if is_frozen else ["matmul_dots", "matmul_dots"])


def test_threads_give_the_same_bits() -> None:
    model = TwoLayers()
    for rows in (6, 40):
        x, made = torch.randn(rows, 70), []
        for threads in (1, 2, 3):
            torch._dynamo.reset()
            made.append(torch.compile(
                model.requires_grad_(False), backend="ipu", options={"host_threads": threads, "frozen_weights": True},
            )(x))
        assert torch.equal(made[0], made[1])
        assert torch.equal(made[0], made[2])
