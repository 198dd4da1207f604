"""Batch normalisation of channels in blocks: the bits of the kernels of rows, and the values of float64 torch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.kernels.elem_planner import MiniPlanner
from tests.kernels.test_conv_blocked import blocked, plain
from torchipu._kernels.table import norm as rows
from torchipu._kernels.table.conv_blocked import Activation
from torchipu._kernels.table.norm import BatchScalars, NormScalars
from torchipu.host.emit import batch_norm_blocked, blocked_layout
from torchipu.host.emit.conv_blocked import Ending
from torchipu.host.emit.pool_blocked import emit_end
from torchipu.ops.norm import Batch
from torchipu.optable.host_tensor import HostTensor

EPSILON, MOMENTUM = 1e-3, 0.2
# Blocks that are full and not, planes of fewer pixels than lanes and of several splits, splits of several samples.
SHAPES = [
    (2, 16, 8, 8), (3, 20, 7, 7), (1, 5, 1, 3), (4, 33, 14, 13), (2, 17, 112, 5), (1, 16, 70, 71), (5, 3, 9, 31),
    (90, 8, 7, 7), (2, 40, 1, 401),
]


class Problem:
    """A batch and what its normalisation takes, in both layouts.

    Args:
        shape: Of the batch, ``[N, C, H, W]``.
        threads: Of the kernels.
        mean: About that of the values.
    """

    def __init__(self, shape: tuple[int, int, int, int], *, threads: int = 2, mean: float = 3.0) -> None:
        torch.manual_seed(1)
        self.shape, self.plan = shape, MiniPlanner(threads)
        self.x, self.dy, self.addend = torch.randn(shape) * 2 + mean, torch.randn(shape), torch.randn(shape)
        self.weight, self.bias, self.running = (torch.rand(shape[1]) + 0.5 for _ in range(3))
        self.held = {name: self.plan.hold(getattr(self, name)) for name in ("x", "dy", "addend")}
        self.in_blocks = {name: blocked(self.plan, getattr(self, name)) for name in self.held}
        self.factors = [self.plan.hold(self.weight), self.plan.hold(self.bias)]
        self.old = [self.plan.hold(self.running), self.plan.hold(self.running)]
        self.batch = Batch(shape)
        self.ints = self.batch.ints._replace(has_weight=True, has_bias=True, has_running=True)
        self.scalars = BatchScalars(EPSILON, MOMENTUM)

    def channels(self, count: int) -> list[HostTensor]:
        """Return room for so many values for each channel."""
        return [self.plan.scratch((self.shape[1],)) for _ in range(count)]

    def statistics(self) -> list[HostTensor]:
        """Return means, reciprocals of deviations and new running statistics, found in blocks."""
        found = self.channels(4)
        batch_norm_blocked.emit_statistics(
            self.plan, self.ints, self.scalars, found, self.in_blocks["x"], self.old,
        )
        return found

    def statistics_of_rows(self) -> list[HostTensor]:
        """Return the same by the kernels of rows."""
        found, (channels, splits) = self.channels(4), (self.shape[1], self.batch.splits)
        partials = self.plan.scratch((channels, splits, 2))
        self.plan.step(rows.BATCH_MOMENTS, [partials], [self.held["x"]], ints=self.ints, items=channels * splits)
        self.plan.step(
            rows.BATCH_STATISTICS, found, [*self.old, partials], ints=self.ints, scalars=self.scalars, items=channels,
        )
        return found

    def normalised(self, activation: Activation = Activation.RELU) -> torch.Tensor:
        """Return what is normalised in blocks, with a sum and an activation."""
        mean, rstd = self.statistics()[:2]
        out = self.plan.scratch(blocked_layout.blocked_shape(self.shape))
        affine = batch_norm_blocked.emit_factors(self.plan, self.ints, [mean, rstd], self.factors)
        ending = Ending(affine=affine, addend=self.in_blocks["addend"], activation=activation)
        emit_end(self.plan, self.shape, out, self.in_blocks["x"], ending)
        return plain(self.plan, out, self.shape)

    def normalised_as_rows(self) -> torch.Tensor:
        """Return the same by the kernel of rows."""
        mean, rstd = self.statistics()[:2]
        out = self.plan.scratch(self.shape)
        self.plan.step(
            rows.BATCH_APPLY, [out], [self.held["x"], mean, rstd, *self.factors, self.held["addend"]],
            ints=self.ints._replace(has_addend=True, has_relu=True), scalars=NormScalars(EPSILON),
            items=self.batch.by_rows,
        )
        return self.plan.fetch(out)

    def gradients(self, *, from_running: bool) -> list[torch.Tensor]:
        """Return gradients of the input, the weight and the bias, found in blocks."""
        dx = self.plan.scratch(blocked_layout.blocked_shape(self.shape))
        others, statistics = self.channels(2), self.old if from_running else self.statistics()[:2]
        batch_norm_blocked.emit_gradient(
            self.plan, self.ints._replace(from_running=from_running), NormScalars(EPSILON), [dx, *others],
            self.in_blocks["dy"], self.in_blocks["x"], statistics, self.factors[0],
        )
        return [plain(self.plan, dx, self.shape), *map(self.plan.fetch, others)]

    def gradients_of_rows(self, *, from_running: bool) -> list[torch.Tensor]:
        """Return the same by the kernels of rows."""
        ints, scalars = self.ints._replace(from_running=from_running), NormScalars(EPSILON)
        channels, splits = self.shape[1], self.batch.splits
        partials, dx, others = self.plan.scratch((channels, splits, 2)), self.plan.scratch(self.shape), self.channels(2)
        mean, spread = self.old if from_running else self.statistics()[:2]
        read = [self.held["dy"], self.held["x"]]
        self.plan.step(rows.BATCH_GRAD_SUMS, [partials], [*read, mean], ints=ints, items=channels * splits)
        self.plan.step(
            rows.BATCH_GRAD_STATISTICS, others, [spread, partials], ints=ints, scalars=scalars, items=channels,
        )
        self.plan.step(
            rows.BATCH_GRAD_APPLY, [dx], [*read, mean, spread, self.factors[0], *others], ints=ints, scalars=scalars,
            items=self.batch.by_rows,
        )
        return [self.plan.fetch(dx), *map(self.plan.fetch, others)]


@pytest.mark.parametrize("shape", SHAPES)
def test_statistics_have_the_bits_of_rows(shape: tuple[int, int, int, int]) -> None:
    problem = Problem(shape)
    for found, other in zip(problem.statistics(), problem.statistics_of_rows(), strict=True):
        assert torch.equal(problem.plan.fetch(found), problem.plan.fetch(other))


@pytest.mark.parametrize("shape", SHAPES)
def test_results_have_the_bits_of_rows(shape: tuple[int, int, int, int]) -> None:
    problem = Problem(shape)
    assert torch.equal(problem.normalised(), problem.normalised_as_rows())


@pytest.mark.parametrize("from_running", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_have_the_bits_of_rows(shape: tuple[int, int, int, int], from_running: bool) -> None:
    problem = Problem(shape)
    pairs = zip(
        problem.gradients(from_running=from_running), problem.gradients_of_rows(from_running=from_running), strict=True,
    )
    for found, other in pairs:
        assert torch.equal(found, other)


@pytest.mark.parametrize("mean", [3.0, 1000.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_values_are_those_of_float64(shape: tuple[int, int, int, int], mean: float) -> None:
    problem = Problem(shape, mean=mean)
    statistics = [problem.plan.fetch(held).double() for held in problem.statistics()]
    x, running = problem.x.double(), [problem.running.double() for _ in range(2)]
    exact = F.batch_norm(
        x, *running, problem.weight.double(), problem.bias.double(), training=True, momentum=MOMENTUM, eps=EPSILON,
    )
    close = {"rtol": 1e-5, "atol": 1e-5 + 2e-7 * mean}
    torch.testing.assert_close(problem.normalised(Activation.NONE).double(), exact + problem.addend.double(), **close)
    torch.testing.assert_close(statistics[0], x.mean((0, 2, 3)), rtol=1e-6, atol=1e-6)
    exact_rstd = (x.var((0, 2, 3), correction=0) + EPSILON).rsqrt()
    torch.testing.assert_close(statistics[1], exact_rstd, rtol=1e-5, atol=0)
    for found, updated in zip(statistics[2:], running, strict=True):
        torch.testing.assert_close(found, updated, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_are_those_of_float64(shape: tuple[int, int, int, int]) -> None:
    problem = Problem(shape)
    leaves = [value.double().requires_grad_() for value in (problem.x, problem.weight, problem.bias)]
    F.batch_norm(leaves[0], None, None, *leaves[1:], training=True, eps=EPSILON).backward(problem.dy.double())
    for found, leaf in zip(problem.gradients(from_running=False), leaves, strict=True):
        assert leaf.grad is not None
        error = (found.double() - leaf.grad).norm()
        assert error <= 2e-6 * leaf.grad.norm() + 1e-6 * problem.dy.norm()


@pytest.mark.parametrize("shape", SHAPES[1:5])
def test_any_number_of_threads_gives_the_same_bits(shape: tuple[int, int, int, int]) -> None:
    one, three = (Problem(shape, threads=threads) for threads in (1, 3))
    assert torch.equal(one.normalised(), three.normalised())
    for found, other in zip(one.gradients(from_running=False), three.gradients(from_running=False), strict=True):
        assert torch.equal(found, other)


def test_nan_stays_in_its_channel() -> None:
    problem = Problem((2, 20, 5, 9))
    problem.x[0, 3, 2, 2] = float("nan")
    problem.in_blocks["x"] = blocked(problem.plan, problem.x)
    found = problem.normalised()
    assert found[:, 3].isnan().all()
    assert not found[:, :3].isnan().any()
    assert not found[:, 4:].isnan().any()
