"""Halves are rounded in the step that computes them, with the bits of their elements: products, norms, pools."""

import numpy as np
import pytest
import torch
from gfloat import RoundMode, round_ndarray
from gfloat.formats import format_info_binary16
from torch.nn import functional

from tests.numerics.test_rounding import random_bits
from torchipu.host import planner as host_plan
from torchipu.host.rounding import end_steps


def halves(*shape, scale=1.0, seed=0):
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale).half()


LABELS = torch.arange(33) % 50
CASES = {
    "product": (torch.mm, [(70, 90), (90, 130)]),
    "product in blocks of columns": (torch.mm, [(200, 300), (300, 301)]),
    "transposed product": (lambda a, b: a @ b.t(), [(40, 300), (900, 300)]),
    "few rows": (lambda a, b: a @ b.t(), [(5, 600), (93, 600)]),
    "batches": (torch.bmm, [(3, 50, 20), (3, 20, 45)]),
    "attention": (functional.scaled_dot_product_attention, [(2, 3, 77, 16)] * 3),
    "grouped attention": (
        lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        [(2, 4, 50, 16), (2, 2, 50, 16), (2, 2, 50, 16)],
    ),
    "few channels": (lambda x, w: torch.conv2d(x, w, padding=1), [(2, 3, 17, 19), (8, 3, 3, 3)]),
    "many channels": (lambda x, w: torch.conv2d(x, w, padding=1), [(3, 33, 14, 14), (40, 33, 3, 3)]),
    "strided": (lambda x, w: torch.conv2d(x, w, stride=2), [(3, 33, 14, 15), (40, 33, 3, 3)]),
    "transposed": (lambda x, w: torch.conv_transpose2d(x, w, stride=2), [(2, 36, 9, 9), (36, 34, 4, 4)]),
    "volume": (lambda x, w: torch.conv3d(x, w), [(2, 4, 6, 7, 8), (6, 4, 3, 3, 3)]),
    "layer norm": (lambda x, w, b: functional.layer_norm(x, (50,), w, b), [(37, 50), (50,), (50,)]),
    "group norm": (lambda x, w, b: functional.group_norm(x, 4, w, b), [(3, 12, 7, 5), (12,), (12,)]),
    "batch norm": (
        lambda x, w, b: functional.batch_norm(x, None, None, w, b, training=True), [(5, 7, 6, 6), (7,), (7,)],
    ),
    "batch norm and ReLU": (
        lambda x, w, b: functional.batch_norm(x, None, None, w, b, training=True).relu(), [(5, 7, 6, 6), (7,), (7,)],
    ),
    "convolution and ReLU": (lambda x, w: torch.conv2d(x, w, padding=1).relu(), [(3, 33, 14, 14), (40, 33, 3, 3)]),
    "softmax of rows": (lambda x: x.softmax(-1), [(9, 45, 67)]),
    "softmax of columns": (lambda x: x.softmax(1), [(9, 45, 67)]),
    "sum of columns": (lambda x: x.sum(0), [(13, 45, 67)]),
    "sum of rows": (lambda x: x.mean(2), [(13, 45, 67)]),
    "norm": (lambda x: x.norm(), [(300, 40)]),
    "average pool": (lambda x: functional.avg_pool2d(x, 3, 2, 1), [(3, 5, 17, 19)]),
    "loss": (lambda x, y: functional.mse_loss(x, y, reduction="none"), [(97, 50), (97, 50)]),
    "labels": (lambda x: functional.nll_loss(x, LABELS, reduction="none"), [(33, 50)]),
    "resampling": (lambda x: functional.interpolate(x, scale_factor=2, mode="bilinear"), [(2, 3, 7, 9)]),
    "running sum": (lambda x: x.cumsum(1), [(5, 60, 33)]),
}


def compiled(function, inputs, **options):
    torch._dynamo.reset()
    return torch.compile(function, backend="ipu", dynamic=False, options={"seed": 11, **options})(*inputs)


def operands(name):
    return [halves(*shape, seed=number) for number, shape in enumerate(CASES[name][1])]


@pytest.fixture
def apart(monkeypatch):
    """Names of the steps of results that took a step of their own to round."""
    found = []

    def looked_at(steps, result):
        ended = end_steps(steps, result)
        if not ended and result.floats.num_elements:
            found.append([step.kernel.name for step in steps if step.kernel is not None])
        return ended

    monkeypatch.setattr(host_plan, "end_steps", looked_at)
    return found


@pytest.mark.parametrize("name", CASES)
def test_a_result_has_the_bits_of_its_elements_whatever_the_order_in_which_they_are_computed(name, apart):
    function, inputs = CASES[name][0], operands(name)
    found = compiled(function, inputs, stochastic_rounding=True)
    exact = compiled(function, [value.float() for value in inputs])
    # Ops before the last round with streams of their own; the last result of the last op has the last stream of one.
    wanted = [
        round_ndarray(
            format_info_binary16, exact.double().flatten().numpy(), RoundMode.StochasticFastest,
            srbits=random_bits(exact.numel(), stream=stream), srnumbits=16,
        )
        for stream in range(2)
    ]
    assert any(np.array_equal(found.double().flatten().numpy(), one) for one in wanted)
    assert apart == []


@pytest.mark.parametrize("columns", [128, 300, 301])
def test_rows_of_a_product_are_rounded_alike_whatever_other_rows_hold(columns):
    """Rows of a block are rounded one after another: normal values, subnormal ones, zeros, and all of these."""
    x, w = halves(230, 64), halves(64, columns, seed=1)
    x[40:80] *= 2.0**-17
    x[80:90] = 0
    x[90:140:3] *= 2.0**-17
    exact = compiled(torch.mm, [x.float(), w.float()])
    wanted = round_ndarray(
        format_info_binary16, exact.double().flatten().numpy(), RoundMode.StochasticFastest,
        srbits=random_bits(exact.numel(), stream=0), srnumbits=16,
    )
    for function in (torch.mm, lambda x, w: (x @ w).float() * 2):
        found = compiled(function, [x, w], stochastic_rounding=True).double().flatten().numpy()
        assert np.array_equal(found, wanted if function is torch.mm else wanted * 2)


def test_a_pool_takes_the_largest_of_results_that_are_rounded_each_with_bits_of_its_own(apart):
    x, w = halves(9, 1, 28, 28, seed=0), halves(10, 1, 5, 5, seed=1)
    found = compiled(lambda x, w: functional.max_pool2d(torch.conv2d(x, w), 2), (x, w), stochastic_rounding=True)
    exact = compiled(torch.conv2d, [x.float(), w.float()])
    rounded = round_ndarray(
        format_info_binary16, exact.double().flatten().numpy(), RoundMode.StochasticFastest,
        srbits=random_bits(exact.numel(), stream=0), srnumbits=16,
    )
    assert found.double().equal(functional.max_pool2d(torch.from_numpy(rounded).reshape(exact.shape), 2))
    assert apart == []


@pytest.mark.parametrize("name", CASES)
def test_rounding_to_nearest_is_the_same_in_the_step(name, apart):
    function, inputs = CASES[name][0], operands(name)
    exact = compiled(function, [value.float() for value in inputs])
    assert torch.equal(compiled(function, inputs), exact.half())


    assert apart == []


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_rounded_in_their_steps_and_do_not_depend_on_threads(name, apart):
    results = []
    for threads in (1, 4):
        inputs = [value.requires_grad_() for value in operands(name)]
        out = compiled(CASES[name][0], inputs, stochastic_rounding=True, host_threads=threads)
        out.backward((torch.arange(out.numel()) % 7 - 3).view(out.shape).half())
        results.append([out, *(value.grad for value in inputs)])
    assert all(torch.equal(one, four) for one, four in zip(*results, strict=True))
    assert apart == []


def test_a_loop_draws_anew_for_each_trip_in_the_step_itself(apart):
    def loop(x, w):
        return torch._higher_order_ops.while_loop(
            lambda i, _: i < 3, lambda i, x: (i + 1, (x @ w).softmax(-1)), (torch.tensor(0), x),
        )[1]

    x, w = halves(40, 50), halves(50, 50, seed=1, scale=0.1)
    once = compiled(loop, [x, w], stochastic_rounding=True)
    again = compiled(loop, [x, w], stochastic_rounding=True, host_threads=1)
    assert torch.equal(once, again)
    exact = loop(x.double(), w.double())
    torch.testing.assert_close(once.double(), exact, rtol=2**-8, atol=1e-4)
    assert apart == []
