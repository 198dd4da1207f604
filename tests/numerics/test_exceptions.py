"""Floating-point exceptions inside the program: what traps, what does not, and what is left as it was."""

from __future__ import annotations

import copy

import poptorch
import pytest
import torch

import torchipu
from torchipu.errors import ExecutionError

INF, NAN = float("inf"), float("nan")


def run(function, *inputs):
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="ipu", dynamic=False, options={"floating_point_exceptions": True})
    return compiled(*inputs)


def vector(*values, dtype=torch.float32):
    return torch.tensor(values, dtype=dtype)


TRAPS = {
    "x / 0": (lambda x: 1 / x, vector(1, 0), "division by zero"),
    "log 0": (torch.log, vector(1, 0), "division by zero"),
    "0 * inf": (lambda x: x * 0.0, vector(1, INF), "not a number"),
    "inf - inf": (lambda x: x - x, vector(1, INF), "not a number"),
    "root of -1": (torch.sqrt, vector(4, -1), "not a number"),
    "log of -1": (torch.log, vector(4, -1), "not a number"),
    "exp overflows": (torch.exp, vector(1, 3800), "overflow"),
    "half overflows": (lambda x: x * x, vector(1, 300, dtype=torch.half), "overflow"),
    "cast overflows": (lambda x: x.half(), vector(1, 1e5), "overflow"),
    "sum overflows": (lambda x: x.sum(), vector(3e38, 3e38), "overflow"),
    "product overflows": (lambda x: x.outer(x) @ x, vector(1e20, 1e20), "overflow"),
    "NaN compared": (lambda x: x > 0, vector(1, NAN), "not a number"),
    "an infinity elsewhere": (lambda x: x * x, vector(INF, 1e30), "overflow"),
    "a generic op": (lambda x: torch.linalg.inv(x.diag() * 1e-40), vector(1.0), "overflow"),
}


@pytest.mark.parametrize("name", TRAPS)
def test_what_ieee_calls_an_exception_stops_the_program(name):
    function, x, words = TRAPS[name]
    with pytest.raises(ExecutionError, match=words):
        run(function, x)


PASSES = {
    "NaN goes through": (lambda x: x * 2 + 1, vector(1, NAN)),
    "infinity goes through": (lambda x: (x * 2).relu(), vector(1, INF)),
    "a mask of -inf": (lambda x: x.masked_fill(x > 1, -INF).softmax(0), vector(1, 2)),
    "isnan": (torch.isnan, vector(1, NAN)),
    "a constant infinity": (lambda x: torch.full_like(x, INF), vector(1)),
    "1 / inf": (lambda x: 1 / x, vector(INF)),
    "underflow": (lambda x: x.half(), vector(1e-20)),
}


@pytest.mark.parametrize("name", PASSES)
def test_quiet_values_go_through(name):
    function, x = PASSES[name]
    torch.testing.assert_close(run(function, x), function(x), equal_nan=True)


class Root(torch.nn.Module):
    def __init__(self, *, batch_norm=False):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.norm = torch.nn.BatchNorm1d(4) if batch_norm else torch.nn.Identity()

    def forward(self, x):
        with torchipu.Block("body", 0):
            hidden = self.norm(self.linear(x))
        with torchipu.Block("head", 0):
            return torch.sqrt(hidden.square().sum() - 1e4 * (x.max() > 5))


def test_the_error_names_op_line_block_and_micro_batch_and_nothing_is_changed():
    model = Root(batch_norm=True)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.1)
    options = torchipu.Options(gradient_accumulation=3, device_iterations=2, floating_point_exceptions=True)
    step = torchipu.TrainStep(model, optimiser, options)
    good, bad = torch.randn(12, 4), torch.randn(12, 4).clamp(-4, 4)
    bad[8] = 10.0  # in the second micro-batch of the second device iteration
    step(good)
    before = copy.deepcopy((model.state_dict(), optimiser.state_dict()["state"]))
    with pytest.raises(ExecutionError) as caught:
        step(bad)
    text = str(caught.value)
    assert "aten.sqrt.default: floating-point exception in micro-batch 1 of device iteration 1" in text
    assert "an operation is invalid: its result is not a number" in text
    assert "test_exceptions.py" in text
    assert "torch.sqrt(hidden.square()" in text
    assert "head (ipu 0, stage 0, forward)" in text
    assert "weights and optimiser are as before the call" in text
    after = (model.state_dict(), optimiser.state_dict()["state"])
    for mine, theirs in zip(torch.utils._pytree.tree_leaves(after), torch.utils._pytree.tree_leaves(before),
                            strict=True):
        assert torch.equal(mine, theirs)
    step(good)  # goes on
    assert not torch.equal(model.linear.weight, before[0]["linear.weight"])


def test_an_overflow_of_a_gradient_is_found_in_the_backward_leg():
    model = torch.nn.Linear(4, 4).half()

    class Mean(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, x):
            return self.inner(x).float().square().sum()

    step = torchipu.TrainStep(
        Mean(), torch.optim.SGD(model.parameters(), lr=0.1),
        torchipu.Options(floating_point_exceptions=True, loss_scaling=2.0**20),
    )
    with pytest.raises(ExecutionError, match=r"(?s)overflow.*backward.*a lower loss_scaling"):
        step(torch.ones(2, 4).half())


@pytest.mark.parametrize("is_on", [True, False])
def test_values_are_the_same_with_traps(is_on):
    torch.manual_seed(5)
    model = Root(batch_norm=True)
    exact = copy.deepcopy(model)
    step = torchipu.TrainStep(
        model, torch.optim.SGD(model.parameters(), lr=0.01),
        torchipu.Options(floating_point_exceptions=is_on, statistics=is_on),
    )
    x = torch.randn(6, 4)
    step(x)
    exact(x).backward()
    for mine, theirs in zip(model.parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs - 0.01 * theirs.grad, rtol=1e-4, atol=1e-6)


def test_poptorch_raises_and_keeps_the_device_as_it_was():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.tensor([1.0, 2.0]))

        def forward(self, x):
            return poptorch.identity_loss(torch.log(x * self.weight), reduction="sum")

    options = poptorch.Options()
    options.Precision.enableFloatingPointExceptions(True)
    model = Model()
    training = poptorch.trainingModel(model, options, optimizer=torch.optim.SGD(model.parameters(), lr=0.5))
    training(torch.tensor([1.0, 1.0]))
    before = model.weight.detach().clone()
    with pytest.raises(poptorch.Error, match=r"aten.log.default: floating-point exception[\s\S]*division by zero"):
        training(torch.tensor([1.0, 0.0]))
    assert torch.equal(model.weight.detach(), before)
    training(torch.tensor([1.0, 1.0]))
    assert not torch.equal(model.weight.detach(), before)


class Log(torch.nn.Module):
    def forward(self, x):
        return torch.log(x)


class TwoBlocks(torch.nn.Module):
    """A layer on each of two IPUs, the second in a block that BeginBlock names."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.second = poptorch.BeginBlock(Log(), "logarithms", ipu_id=1)

    def forward(self, x):
        with poptorch.Block("products", ipu_id=0):
            hidden = self.first(x) * 0 + x
        return poptorch.identity_loss(self.second(hidden), reduction="sum")


@pytest.mark.parametrize(("iteration", "micro_batch", "replica"), [(0, 0, 1), (1, 2, 0), (1, 3, 1)])
@pytest.mark.parametrize("pipelined", [True, False])
def test_poptorch_names_block_stage_line_micro_batch_and_replica(iteration, micro_batch, replica, pipelined):
    options = poptorch.Options().deviceIterations(2).replicationFactor(2)
    options.Training.gradientAccumulation(4)
    options.Precision.enableFloatingPointExceptions(True)
    if not pipelined:
        options.setExecutionStrategy(poptorch.ShardedExecution())
    model = TwoBlocks()
    optimiser = poptorch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9, loss_scaling=4.0)
    training = poptorch.trainingModel(model, options, optimizer=optimiser)
    x = torch.ones(2, 4, 2, 3, 4)  # iterations, micro-batches, replicas, samples
    training(x.flatten(0, 3))
    training.copyWeightsToHost()
    before = copy.deepcopy((model.state_dict(), optimiser.state_dict()))
    x[iteration, micro_batch, replica, 1, 2] = -1.0
    with pytest.raises(poptorch.Error) as caught:
        training(x.flatten(0, 3))
    lines = str(caught.value).splitlines()
    assert lines[0] == (
        "'poplar_application_runtime_error': aten.log.default: floating-point exception in micro-batch "
        f"{micro_batch} of device iteration {iteration}, replica {replica}: an operation is invalid: its result is not "
        "a number"
    )
    assert lines[1].split()[:4] == ["op", lines[1].split()[1], "float[3,4]", "="]
    assert lines[2].startswith("  source  ")
    assert lines[2].endswith("return torch.log(x)")
    assert "test_exceptions.py" in lines[2]
    assert lines[3] == "  block   logarithms (ipu 1, stage 1, forward)"
    assert "weights and optimiser are as before the call" in lines[4]
    training.copyWeightsToHost()
    after = (model.state_dict(), optimiser.state_dict())
    for mine, theirs in zip(torch.utils._pytree.tree_leaves(after), torch.utils._pytree.tree_leaves(before),
                            strict=True):
        assert torch.equal(mine, theirs) if isinstance(mine, torch.Tensor) else mine == theirs


def test_poptorch_names_the_update_in_which_a_half_overflows():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1, dtype=torch.half))

        def forward(self, x):
            with poptorch.Block("only", ipu_id=0):
                return poptorch.identity_loss(self.weight * x, reduction="sum")

    options = poptorch.Options().deviceIterations(3)
    options.Precision.enableFloatingPointExceptions(True)
    model = Model()
    training = poptorch.trainingModel(
        model, options, optimizer=poptorch.optim.SGD(model.parameters(), lr=900.0)
    )
    words = r"ipu.sgd.default: floating-point exception in the weight update of device iteration 1: .*overflow"
    with pytest.raises(poptorch.Error, match=words):
        training(torch.tensor([-1.0, -72.0, -1.0]).half())


@pytest.mark.parametrize("looks", [{"floating_point_exceptions": True}, {"statistics": True}])
def test_looking_changes_no_bit_of_what_is_rounded_and_drawn_at_random(looks):
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = torch.nn.Conv2d(3, 8, 3), torch.nn.GroupNorm(2, 8)
            self.head = torch.nn.Linear(8 * 36, 5)

        def forward(self, x):
            hidden = torch.nn.functional.gelu(self.norm(self.conv(x)) * 1.1 + 0.3)
            return torch.nn.functional.dropout(self.head(hidden.flatten(1)), 0.3).square().mean()

    results = []
    for options in ({}, looks):
        torch.manual_seed(2)
        model = Net().half()
        step = torchipu.TrainStep(
            model, torch.optim.AdamW(model.parameters(), lr=0.01),
            torchipu.Options(stochastic_rounding=True, seed=4, loss_scaling=64.0, gradient_accumulation=2, **options),
        )
        losses = [step(x) for x in torch.randn(4, 8, 3, 8, 8).half()]
        results.append([*losses, *(weight.detach().clone() for weight in model.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
