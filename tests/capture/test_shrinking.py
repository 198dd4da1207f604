"""Shrinking functions are one op each way, as their records have it, where torch would compose several."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from torchipu.host.planner import Planner


@pytest.mark.parametrize("name", ["softshrink", "hardshrink"])
def test_a_shrinking_function_is_one_op_each_way(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds: list[str] = []
    collect = Planner._collect_outputs

    def collected(planner: Planner) -> object:
        kinds.extend(op.kind for op in planner.graph.ops)
        return collect(planner)

    monkeypatch.setattr(Planner, "_collect_outputs", collected)
    function = getattr(F, name)
    x = torch.linspace(-2, 2, 101)
    ours, exact = x.clone().requires_grad_(), x.double().requires_grad_()
    torch._dynamo.reset()
    found = torch.compile(lambda value: function(value, 0.4), backend="ipu")(ours)
    wanted = function(exact, 0.4)
    weights = torch.linspace(1, 3, 101)
    found.backward(weights)
    wanted.backward(weights.double())
    assert kinds == [name, f"{name}_backward"]
    torch.testing.assert_close(found.double(), wanted, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(ours.grad.double(), exact.grad, rtol=1e-6, atol=1e-7)
