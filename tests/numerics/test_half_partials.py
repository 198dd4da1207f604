"""Half partials: sums that are written back as halves every 16 channels, judged by gfloat's rounding of each."""

from __future__ import annotations

import numpy as np
import poptorch
import pytest
import torch
from gfloat import RoundMode, round_ndarray
from gfloat.formats import format_info_binary16

import torchipu
from tests.numerics.test_rounding import random_bits
from torchipu.capture import fx_types
from torchipu.device.matmul_plan import plan_matmul
from torchipu.errors import OptionsError
from torchipu.target import TARGETS

ROWS_ALONE = 23_552  # so many that every tile has rows of its own, and none shares summands


def compiled(function, *inputs, **options):
    torch._dynamo.reset()
    chosen = {"partials_type": "half", "seed": 11, **options}
    run = torch.compile(function, backend="ipu", dynamic=False, options=chosen)
    return run(*inputs)


def halves(*shape, scale=1.0, seed=0):
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale).half()


def tiles_of(rows, inner, columns, groups=1):
    """How many tiles share the summands of a product in the plan of the default machine."""
    return plan_matmul(TARGETS["mk2"], groups, rows, inner, columns, True, 16, partial_bytes=2).input_split


def product(left, right, *, taps=1, stream=None, tiles=None):
    """Multiply [M, K] by [K, N] as the machine does; ``stream`` is that of stochastic rounding."""
    left, right = left.astype(np.float32), right.astype(np.float32)
    rows, columns = left.shape[0], right.shape[1]
    padded = -(-columns // 32) * 32
    bits = None
    channels = left.shape[1] // taps
    total, number = np.zeros((rows, columns), np.float32), 1
    of_tiles = np.zeros_like(total)
    tiles = tiles_of(rows, left.shape[1], columns) if tiles is None else tiles
    steps = [(t * channels + c, min(t * channels + c + 16, (t + 1) * channels))
             for t in range(taps) for c in range(0, channels, 16)]
    if stream is not None:
        bits = random_bits(rows * padded * (len(steps) + 2), stream=stream).reshape(-1, rows, padded)[..., :columns]

    def rounded(exact, number):
        mode = RoundMode.TiesToEven if bits is None else RoundMode.StochasticFastest
        srbits = {} if bits is None else {"srbits": bits[number], "srnumbits": 16}
        return round_ndarray(format_info_binary16, exact.astype(np.float64), mode, **srbits).astype(np.float32)

    share = -(-len(steps) // tiles)  # groups that a tile sums
    for begin, end in steps:
        if number > 1 and (number - 1) % share == 0:
            of_tiles, total = of_tiles + total, np.zeros_like(total)
        for k in range(begin, end):
            total = total + left[:, k : k + 1] * right[k : k + 1]  # in float, one after another
        total, number = rounded(total, number), number + 1
    if share >= len(steps):
        return total
    return rounded(of_tiles + total, number)


@pytest.mark.parametrize(
    ("rows", "inner", "columns"), [(3, 16, 5), (5, 100, 33), (40, 257, 70), (1, 1, 1), (7, 48, 64)],
)
@pytest.mark.parametrize("stream", [None, 0])
def test_a_product_rounds_after_every_16_channels(rows, inner, columns, stream):
    left, right = halves(rows, inner, seed=1), halves(inner, columns, seed=2)
    found = compiled(torch.mm, left, right, stochastic_rounding=stream is not None)
    assert np.array_equal(found.float().numpy(), product(left.numpy(), right.numpy(), stream=stream))


def test_it_differs_from_float_partials_and_is_as_far_from_the_truth_as_halves_are():
    left, right = halves(1472, 3, 1024, seed=3), halves(1472, 1024, 3, seed=4)
    assert tiles_of(3, 1024, 3, groups=1472) == 1  # a product for each tile
    exact = left.double() @ right.double()
    half = (compiled(torch.bmm, left, right).double() - exact).abs().mean()
    single = (compiled(torch.bmm, left, right, partials_type="float").double() - exact).abs().mean()
    assert half > 3 * single


def test_batches_and_addends():
    left, right, bias = halves(3, 9, 40), halves(3, 40, 6, seed=1), halves(6, seed=2)
    found = compiled(torch.bmm, left, right).float().numpy()
    for batch in range(3):
        wanted = product(left[batch].numpy(), right[batch].numpy(), tiles=tiles_of(9, 40, 6, 3))
        assert np.array_equal(found[batch], wanted)
    added = compiled(lambda x, w, b: torch.addmm(b, x, w, beta=2, alpha=0.5), left[0], right[0], bias)
    wanted = torch.from_numpy(product(left[0].numpy(), right[0].numpy())) * 0.5 + 2 * bias.float()
    assert torch.equal(added, wanted.half())


CONVOLUTIONS = {
    "plain": ((2, 20, 7, 6), (5, 20, 3, 3), {}),
    "padded and strided": ((2, 4, 9, 8), (6, 4, 3, 3), {"stride": 2, "padding": 1}),
    "dilated": ((1, 3, 11, 11), (4, 3, 3, 2), {"dilation": 2, "padding": (2, 1)}),
    "grouped": ((2, 8, 6, 6), (6, 4, 3, 3), {"groups": 2, "padding": 1}),
    "pointwise": ((2, 40, 5, 5), (8, 40, 1, 1), {}),
    "wide padding": ((1, 3, 4, 4), (2, 3, 1, 1), {"padding": 2}),
    "one dimension": ((3, 18, 12), (4, 18, 4), {"stride": 3, "padding": 2}),
    "three dimensions": ((1, 3, 5, 4, 6), (2, 3, 2, 3, 2), {"padding": 1, "stride": (1, 2, 1)}),
}


def convolve(name):
    dimensions = len(CONVOLUTIONS[name][0]) - 2
    return getattr(torch.nn.functional, f"conv{dimensions}d")


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_and_their_gradients_are_right_in_exact_arithmetic(name):
    # Small whole numbers: every partial is a half, so float64 and half partials give the same.
    x_shape, w_shape, keywords = CONVOLUTIONS[name]
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randint(-2, 3, shape, generator=generator).half() for shape in (x_shape, w_shape))
    bias = torch.arange(w_shape[0]).half()
    found, wanted = [], []
    for dtype, results in ((torch.half, found), (torch.double, wanted)):
        operands = [t.detach().to(dtype).requires_grad_() for t in (x, weight, bias)]
        function = convolve(name)

        def run(x, w, b, function=function):
            return function(x, w, b, **keywords)

        out = compiled(run, *operands) if dtype is torch.half else run(*operands)
        cotangent = torch.randint(-1, 2, out.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
        out.backward(cotangent)
        results += [out.detach().double(), *(operand.grad.double() for operand in operands)]
    for mine, theirs in zip(found, wanted, strict=True):
        assert torch.equal(mine, theirs)


def test_transposed_convolutions_are_right_in_exact_arithmetic():
    x, weight = (torch.randint(-2, 3, shape).half() for shape in ((2, 6, 5, 4), (6, 3, 3, 3)))
    results = []
    for dtype in (torch.half, torch.double):
        operands = [t.detach().to(dtype).requires_grad_() for t in (x, weight)]

        def run(x, w):
            return torch.nn.functional.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1, groups=1)

        out = compiled(run, *operands) if dtype is torch.half else run(*operands)
        out.backward(torch.ones_like(out))
        results.append([out.detach().double(), *(operand.grad.double() for operand in operands)])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("stream", [None, 0])
def test_a_convolution_sums_the_channels_of_a_tap_before_the_next_tap(stream):
    x, weight = halves(1, 20, 6, 5, seed=5), halves(7, 20, 3, 2, seed=6)
    found = compiled(torch.nn.functional.conv2d, x, weight, stochastic_rounding=stream is not None)[0]
    windows = torch.nn.functional.unfold(x.float(), (3, 2))[0].view(20, 6, -1)  # [channels, taps, positions]
    left = windows.permute(2, 1, 0).reshape(windows.shape[2], -1).numpy()
    right = weight.permute(2, 3, 1, 0).reshape(-1, 7).numpy()
    wanted = product(left, right, taps=6, stream=stream)
    assert np.array_equal(found.flatten(1).t().float().numpy(), wanted)


def test_results_do_not_depend_on_threads():
    left, right = halves(64, 200), halves(200, 90, seed=1)
    results = [compiled(torch.mm, left, right, stochastic_rounding=True, host_threads=n) for n in (1, 3)]
    assert torch.equal(*results)


def test_an_overflow_of_a_partial_is_that_of_a_half():
    left, right = torch.full((ROWS_ALONE, 64), 250.0).half(), torch.full((64, 16), 20.0).half()
    right[32:] = -20.0  # the sum is zero, but after 16 channels it is 80,000
    assert tiles_of(ROWS_ALONE, 64, 16) == 1
    assert (compiled(torch.mm, left, right) == float("inf")).all()
    assert compiled(torch.mm, left, right, half_overflow="nan").isnan().all()
    assert (compiled(torch.mm, left, right, half_overflow="saturate") == -65504).all()  # 65504 - 80000 - 80000
    assert (compiled(torch.mm, left, right, partials_type="float") == 0).all()


def test_an_overflow_of_one_tile_is_not_that_of_another():
    left, right = torch.full((1, 64), 250.0).half(), torch.full((64, 1), 20.0).half()
    right[32:] = -20.0
    assert tiles_of(1, 64, 1) > 1
    assert compiled(torch.mm, left, right).isnan().all()  # infinity less infinity
    assert compiled(torch.mm, left, right, half_overflow="saturate").item() == 0


class Region(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(64, 64, bias=False), torch.nn.Linear(64, 64, bias=False)

    def forward(self, x):
        with torchipu.Partials("half"):
            x = self.first(x)
        return self.second(x).float().square().mean()


def test_a_region_chooses_for_its_ops_and_their_gradients():
    model = Region().half()
    step = torchipu.TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1))
    step(halves(8, 64))
    chosen = [(op.leg.name, op.attrs["partials"]) for op in step.compiled.graph.ops if op.kind == "mm"]
    assert chosen == [("FORWARD", "half"), ("FORWARD", "float"), ("BACKWARD", "float"), ("BACKWARD", "float"),
                      ("BACKWARD", "half")]


def test_float_operands_keep_float_partials():
    x, w = torch.randn(8, 64), torch.randn(64, 8)
    torch.testing.assert_close(compiled(torch.mm, x, w).double(), x.double() @ w.double(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("wrong", ["bfloat16", "int", "Half"])
def test_other_types_are_refused_with_what_to_do(wrong):
    words = rf"(?s)'partials_type' expects 'float' or 'half', got '{wrong}'.*use 'float'"
    with pytest.raises(OptionsError, match=words):
        torchipu.Options(partials_type=wrong)
    with pytest.raises(OptionsError, match=rf"partials are 'float' or 'half', got '{wrong}'"):
        torchipu.Partials(wrong)


@pytest.mark.parametrize("wrong", [torch.bfloat16, torch.int32, torch.float64])
def test_poptorch_takes_half_and_float_only(wrong):
    with pytest.raises(ValueError, match=r"setPartialsType takes torch\.float or torch\.half, not torch"):
        poptorch.Options().Precision.setPartialsType(wrong)


def test_poptorch_options_reach_the_program():
    left, right = halves(4, 200), halves(200, 5, seed=1)
    options = poptorch.Options()
    options.Precision.setPartialsType(torch.half)

    class Model(torch.nn.Module):
        def forward(self, x, w):
            return x @ w

    found = poptorch.inferenceModel(Model(), options)(left, right)
    assert np.array_equal(found.float().numpy(), product(left.numpy(), right.numpy()))


def test_convolutions_of_a_multi_conv_have_types_of_their_own():
    class Model(torch.nn.Module):
        def forward(self, x, first, second):
            with poptorch.MultiConv().partialsTypes([torch.half, torch.float]):
                return torch.conv2d(x, first), torch.conv2d(x, second)

    executor = poptorch.inferenceModel(Model())
    x, weight = halves(1, 40, 3, 3), halves(4, 40, 1, 1, seed=1)
    half, single = executor(x, weight, weight)
    flat = x.flatten(2)[0].t().numpy()
    assert np.array_equal(half[0].flatten(1).t().float().numpy(), product(flat, weight[:, :, 0, 0].t().numpy()))
    assert not torch.equal(half, single)


def test_half_partials_take_fewer_cycles_on_the_device():
    def cycles(partials):
        # With two buffers the host is not what such a small model waits for.
        step = torchipu.InferenceStep(Region().half(), torchipu.Options(partials_type=partials, prefetch_depth=2))
        step(halves(512, 64))
        return step.profile.cycles_per_update

    model_wide = {"half": cycles("half"), "float": cycles("float")}
    assert model_wide["half"] < model_wide["float"]


def test_bfloat16_is_held_as_float32_with_one_warning(monkeypatch):
    monkeypatch.setattr(fx_types, "_WARNED", set())  # a process is warned once
    x, w = torch.randn(8, 64).bfloat16(), torch.randn(64, 8).bfloat16()
    words = r"torch\.bfloat16 does not exist on the IPU; it is computed as float"
    with pytest.warns(UserWarning, match=words) as caught:
        found = compiled(lambda a, b: (a @ b) @ (a @ b), x, w)
    assert len([one for one in caught if "bfloat16" in str(one.message)]) == 1
    assert found.dtype is torch.bfloat16
    inner = x.double() @ w.double()
    off, off_in_eager = ((result.double() - inner @ inner).norm() for result in (found, (x @ w) @ (x @ w)))
    assert off <= 1.01 * off_in_eager
    exact = compiled(lambda a, b: (a @ b) @ (a @ b), x, w, strict_numerics=True)  # floats in between
    torch.testing.assert_close(exact.double(), inner @ inner, rtol=2.0**-8, atol=1e-3)


def attention(**options):
    torch._dynamo.reset()
    chosen = {"partials_type": "half", "seed": 11, **options}
    return torch.compile(
        torch.nn.functional.scaled_dot_product_attention, backend="ipu", dynamic=False, options=chosen,
    )


@pytest.mark.parametrize("heads", [2, 1])
def test_attention_sums_values_and_their_gradients_as_halves(heads):
    # Queries of zeros: every key is as likely as another, with a probability that a half holds.
    query, key = torch.zeros(1, 2, 48, 16).half().requires_grad_(), halves(1, heads, 64, 16).requires_grad_()
    value, upstream = halves(1, heads, 64, 16, seed=1).requires_grad_(), halves(1, 2, 48, 16, seed=2)
    out = attention()(query, key, value, enable_gqa=heads == 1)
    out.backward(upstream)
    likely = np.full((48, 64), 1 / 64, np.float32)
    given = value.detach().expand(1, 2, 64, 16)[0].numpy()
    for head in range(2):
        wanted = product(likely, given[head], tiles=tiles_of(48, 64, 16, 2))
        assert np.array_equal(out[0, head].detach().float().numpy(), wanted)
    gradients = [product(likely.T, upstream[0, head].numpy(), tiles=tiles_of(64, 48, 16, 2)) for head in range(2)]
    wanted = np.stack(gradients) if heads == 2 else (gradients[0] + gradients[1])[None]
    assert np.array_equal(value.grad[0].numpy(), wanted.astype(np.float16))


@pytest.mark.parametrize("keywords", [{}, {"is_causal": True}, {"attn_mask": "alibi"}, {"enable_gqa": True}])
@pytest.mark.parametrize("stochastic", [False, True])
def test_attention_with_half_partials_is_as_far_from_the_truth_as_halves_are(keywords, stochastic):
    heads = 2 if keywords.get("enable_gqa") else 4
    mask = halves(2, 1, 33, 33, seed=5) if "attn_mask" in keywords else None
    results = []
    for dtype in (torch.half, torch.double):
        operands = [halves(2, n, 33, 32, seed=n).to(dtype).requires_grad_() for n in (4, heads, heads)]
        given = {**keywords, **({} if mask is None else {"attn_mask": mask.to(dtype)})}
        run = attention(stochastic_rounding=stochastic) if dtype is torch.half else (
            torch.nn.functional.scaled_dot_product_attention)
        out = run(*operands, **given)
        out.backward(halves(2, 4, 33, 32, seed=9).to(dtype))
        results.append([out.detach().double(), *(operand.grad.double() for operand in operands)])
    for mine, exact in zip(*results, strict=True):
        torch.testing.assert_close(mine, exact, rtol=0.02, atol=0.02)
        assert (mine - exact).abs().mean() < 2**-10 * max(1.0, exact.abs().max().item())


def test_attention_of_float_partials_differs():
    operands = [halves(2, 4, 40, 64, seed=n) for n in range(3)]
    half, single = attention()(*operands), attention(partials_type="float")(*operands)
    assert not torch.equal(half, single)
    one = attention(host_threads=1, stochastic_rounding=True)(*operands)
    assert torch.equal(one, attention(host_threads=3, stochastic_rounding=True)(*operands))
