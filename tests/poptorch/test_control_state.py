"""What bodies of `for_loop` and `cond` write into buffers and weights: carried along, and kept as in eager code."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.poptorch.models import options
from torchipu import poptorch


class Stateful(nn.Module):
    """Holds a layer with running statistics, a counter and a tensor that views are taken of.

    Args:
        body: What `forward` does with the module and its input.
    """

    def __init__(self, body: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.linear = nn.BatchNorm1d(4), nn.Linear(4, 4)
        self.seen: torch.Tensor
        self.counts: torch.Tensor
        self.table: torch.Tensor
        self.register_buffer("seen", torch.zeros(4))
        self.register_buffer("counts", torch.zeros(2, dtype=torch.int32))
        self.register_buffer("table", torch.randn(3, 4))
        self.body = body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(self, x)


def normalising(m: Stateful, x: torch.Tensor) -> torch.Tensor:
    """Run the layer with its statistics."""
    return poptorch.for_loop(3, lambda a: m.norm(m.linear(a)) * 0.9 + m.norm.running_mean, [x])[0]


def assigning(m: Stateful, x: torch.Tensor) -> torch.Tensor:
    """Write by augmented assignment, by item, by copy and through data; read what the trip before has written."""
    def body(a: torch.Tensor) -> torch.Tensor:
        m.seen += a.mean(0)
        m.counts[1] += 2
        m.table[0] = a[0] + m.table[2]
        m.table.data.mul_(0.5)
        return a * 0.5 + m.seen + m.table[0]

    return poptorch.for_loop(4, body, [x])[0] + m.seen


def through_views(m: Stateful, x: torch.Tensor) -> torch.Tensor:
    """Write into a view that was taken before the loop; read the buffer, another view, and each after the loop."""
    row, column = m.table[1], m.table[:, 2]

    def body(a: torch.Tensor) -> torch.Tensor:
        row.add_(a.sum(0))
        return a * 0.1 + m.table.sum(0) + column[1]

    return poptorch.for_loop(3, body, [x])[0] + row + column.sum()


def nested(m: Stateful, x: torch.Tensor) -> torch.Tensor:
    """Write within a loop, and within a choice, of a loop."""
    def inner(a: torch.Tensor) -> torch.Tensor:
        m.seen.add_(a.mean(0) + 1)
        return a * 0.5 + m.seen

    def grown(a: torch.Tensor) -> torch.Tensor:
        m.counts.add_(1)
        return a * 0.5

    def outer(a: torch.Tensor) -> torch.Tensor:
        m.table[1].sub_(1)
        a = poptorch.for_loop(2, inner, [a])[0]
        a = poptorch.cond(a.sum() > 20, grown, [a], lambda b: b + 1, [a])[0]
        m.seen.mul_(0.5)
        return a + m.table[1]

    return poptorch.for_loop(3, outer, [x])[0] + m.seen


def with_weights(m: Stateful, x: torch.Tensor) -> torch.Tensor:
    """Write into a weight."""
    def body(a: torch.Tensor) -> torch.Tensor:
        m.linear.weight.mul_(0.5)
        return m.linear(a)

    return poptorch.for_loop(3, body, [x])[0]


def choosing(m: Stateful, x: torch.Tensor) -> torch.Tensor:
    """Write into one buffer in one branch, and into another and the first in the other."""
    def then(a: torch.Tensor) -> torch.Tensor:
        m.seen.add_(a.mean(0))
        return m.norm(a) + m.seen

    def otherwise(a: torch.Tensor) -> torch.Tensor:
        m.counts += 3
        m.seen -= 1
        return a * 2

    return poptorch.cond(x.sum() > 0, then, [x], otherwise, [x])[0] + m.seen


def by_hand(monkeypatch: pytest.MonkeyPatch, model: Stateful, pieces: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Run bodies as plain Python in float64, one micro-batch after the other."""
    def for_loop(count: int, body: Any, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        for _ in range(count):
            inputs = [body(*inputs)]
        return inputs

    def cond(condition: torch.Tensor, then: Any, inputs: Any, otherwise: Any, others: Any) -> list[torch.Tensor]:
        return [then(*inputs) if bool(condition) else otherwise(*others)]

    with monkeypatch.context() as patched, torch.no_grad():
        patched.setattr(poptorch, "for_loop", for_loop)
        patched.setattr(poptorch, "cond", cond)
        return torch.cat([model(piece.double()) for piece in pieces])


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("body", [
    normalising, assigning, through_views, nested, with_weights, choosing,
])
def test_what_bodies_write_into_the_model_is_kept_as_in_eager_code(
    body: Callable[[Any, torch.Tensor], torch.Tensor], sign: int, monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = Stateful(body)
    twin = copy.deepcopy(model).double()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    x = sign * (torch.rand(12, 4) + 0.1)
    step = poptorch.inferenceModel(model, options(2))
    results = [step(x), step(x)]
    expected = [by_hand(monkeypatch, twin, x.chunk(2)) for _ in range(2)]
    torch.testing.assert_close([result.double() for result in results], expected, rtol=1e-5, atol=1e-5)
    step.copyWeightsToHost()
    changed = 0
    for name, value in twin.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name].double(), value.double(), rtol=1e-5, atol=1e-5, msg=name)
        changed += not value.double().equal(before[name].double())
    assert changed


def test_replicas_keep_what_their_bodies_write(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Stateful(assigning), torch.randn(8, 4)
    settings = options(2)
    settings.replicationFactor(2)
    with pytest.raises(poptorch.Error, match="PopTorch does not support broadcasting buffers"):
        poptorch.inferenceModel(model, settings.clone())(x)
    step = poptorch.inferenceModel(model, settings.broadcastBuffers(False))
    twins = [copy.deepcopy(model).double() for _ in range(2)]
    result = step(x)
    step.copyWeightsToHost()
    pieces = x.chunk(4)
    for replica, twin in enumerate(twins):
        own = pieces[replica], pieces[2 + replica]
        expected = by_hand(monkeypatch, twin, own)
        got = torch.cat([result.chunk(4)[replica], result.chunk(4)[2 + replica]])
        torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-5)
        for name in ("seen", "counts", "table"):
            kept, wanted = getattr(model, name)[replica], getattr(twin, name)
            torch.testing.assert_close(kept.double(), wanted.double(), rtol=1e-5, atol=1e-5)


def test_bodies_on_two_ipus_keep_what_they_write(monkeypatch: pytest.MonkeyPatch) -> None:
    def split(m: Stateful, x: torch.Tensor) -> torch.Tensor:
        with poptorch.Block("a", ipu_id=0):
            x = normalising(m, x)
        with poptorch.Block("b", ipu_id=1):
            return assigning(m, x)

    model, x = Stateful(split), torch.randn(24, 4)
    for strategy in (poptorch.PipelinedExecution, poptorch.ShardedExecution):
        settings = options(3)
        settings.setExecutionStrategy(strategy("a", "b"))
        twin = copy.deepcopy(model).double()
        step = poptorch.inferenceModel(model, settings)
        torch.testing.assert_close(
            step(x).double(), by_hand(monkeypatch, twin, x.chunk(3)), rtol=1e-5, atol=1e-5,
        )
        step.copyWeightsToHost()
        for name, value in twin.state_dict().items():
            torch.testing.assert_close(model.state_dict()[name].double(), value.double(), rtol=1e-5, atol=1e-5)


def test_a_body_that_binds_another_tensor_to_a_buffer_is_refused() -> None:
    def body(m: Stateful, x: torch.Tensor) -> torch.Tensor:
        def reassign(a: torch.Tensor) -> torch.Tensor:
            m.seen = m.seen + a.mean(0)
            return a

        return poptorch.for_loop(2, reassign, [x])[0]

    model = Stateful(body)
    held = model.seen
    with pytest.raises(poptorch.Error, match=r"Buffer seen is reassigned within the model .* self.seen.copy_\(src\)"):
        poptorch.inferenceModel(model)(torch.randn(2, 4))
    assert model.seen is held
    assert not held.any()


class Plain(nn.Module):
    """Holds a tensor that is no buffer, in a list in a member.

    Args:
        body: What `forward` does with the tensor and its input.
    """

    def __init__(self, body: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.member = nn.Module()
        self.member.totals = [torch.zeros(4)]  # type: ignore[assignment]
        self.body = body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        totals: Any = self.member.totals
        return self.body(totals[0], x)


def in_loop(t: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Write a value of the trip into a tensor."""
    return poptorch.for_loop(2, lambda a: a + t.add_(a[0]), [x])[0]


@pytest.mark.parametrize("body", [
    in_loop, lambda t, x: t.add_(x[0]) + x, lambda t, x: t[1].add_(x[0, 0]) + x,
    lambda t, x: torch.add(x[0], 1, out=t) + x, lambda t, x: t.__setitem__(0, x[0, 0]),
])
def test_what_would_be_written_into_a_constant_is_refused(body: Any) -> None:
    model = Plain(body)
    with pytest.raises(poptorch.Error, match=r"(?s)Attribute member.totals is written .* would be lost \(.*test_control"
                                             r'_state.py:\d+ .*Make it a buffer with self.register_buffer\("totals"'):
        poptorch.inferenceModel(model)(torch.ones(2, 4))
    totals: Any = model.member.totals
    assert not totals[0].any()


@pytest.mark.parametrize("body", [
    lambda t, x: t + x - 0, lambda t, x: t.clone().add_(2) + x - 2,
    lambda t, x: (t * 2)[1:].add_(x[0, 1:]).sum() + x - 3,
    lambda t, x: t[1].clone().add_(x[0, 0]) + x - 1,
    lambda t, x: poptorch.for_loop(2, lambda a: (t + 1).mul_(a[0]) + a * 0, [x])[0],
])
def test_what_is_computed_from_constants_may_be_written_into(body: Any) -> None:
    model = Plain(body)
    assert poptorch.inferenceModel(model)(torch.ones(2, 4)).equal(torch.ones(2, 4))
    totals: Any = model.member.totals
    assert not totals[0].any()


def test_what_a_loop_writes_into_a_layer_outside_of_the_model_is_refused() -> None:
    norm = nn.BatchNorm1d(4)
    step = poptorch.inferenceModel(lambda x: poptorch.for_loop(2, norm, [x])[0])
    with pytest.raises(poptorch.Error, match=r"A tensor of the host, of shape \[\], is written .* would be lost"):
        step(torch.ones(2, 4))
    assert norm.num_batches_tracked == 0
