"""Floats of 8 bits, judged by gfloat's formats and by torch's own casts."""

from __future__ import annotations

import numpy as np
import poptorch
import pytest
import torch

import torchipu
from tests.numerics.fp8_formats import product, rounded
from tests.numerics.test_rounding import ROUNDING_STREAMS, random_bits
from torchipu import fp8
from torchipu.errors import ConstraintError

LARGEST = {"F143": 240.0, "F152": 57344.0}
TORCH = {"F143": torch.float8_e4m3fnuz, "F152": torch.float8_e5m2fnuz}


def compiled(function, *inputs, **options):
    torch._dynamo.reset()
    return torch.compile(function, backend="ipu", dynamic=False, options={"target": "c600", **options})(*inputs)


@pytest.mark.parametrize("name", fp8.FORMATS)
def test_every_byte_has_the_value_of_torchs_type(name):
    codes = torch.arange(256, dtype=torch.uint8)
    for scale in (0, 3, -5):
        found = compiled(lambda c, s=scale: fp8.dequantise(c, name, s, torch.float32), codes)
        torch.testing.assert_close(found, codes.view(TORCH[name]).float() * 2.0**scale, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", fp8.FORMATS)
def test_bytes_come_back_and_every_tie_goes_to_even(name):
    codes = torch.arange(256, dtype=torch.uint8)
    values = codes.view(TORCH[name]).float()
    assert torch.equal(compiled(lambda v: fp8.quantise(v, name), values), codes)
    finite = values[values.isfinite()].sort().values
    between = torch.cat([(finite[1:] + finite[:-1]) / 2, torch.nextafter(finite, torch.tensor(torch.inf)), -finite])
    wanted = between.to(TORCH[name]).view(torch.uint8)
    assert torch.equal(compiled(lambda v: fp8.quantise(v, name), between), wanted)


@pytest.mark.parametrize("name", fp8.FORMATS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_random_values_are_rounded_to_nearest_under_a_scale(name, dtype):
    values = (torch.randn(5000) * torch.exp2(torch.randint(-14, 9, (5000,)).float())).to(dtype)
    for scale in (0, -4, 6):
        wanted = (values.float() * 2.0**-scale).to(TORCH[name]).view(torch.uint8)
        assert torch.equal(compiled(lambda v, s=scale: fp8.quantise(v, name, s), values), wanted)


@pytest.mark.parametrize("name", fp8.FORMATS)
def test_what_is_beyond_the_range_is_nan_and_there_is_no_negative_zero(name):
    values = torch.tensor([LARGEST[name], LARGEST[name] * 1.5, torch.inf, -torch.inf, torch.nan, -0.0, -1e-30])
    found = compiled(lambda v: fp8.quantise(v, name), values)
    assert found[1:].tolist() == [0x80] * 4 + [0, 0]
    assert found[0] == 0x7F


def spread(name, count, *, seed=0):
    """Return floats of all binades of a format, and some beyond, of both signs."""
    generator = torch.Generator().manual_seed(seed)
    least, most = {"F143": (-13, 9), "F152": (-20, 17)}[name]
    exponents = torch.randint(least, most, (count,), generator=generator).float()
    values = (1 + torch.rand(count, generator=generator)) * torch.exp2(exponents)
    values[:4] = torch.tensor([torch.inf, torch.nan, 0.0, LARGEST[name]])
    return torch.where(torch.rand(count, generator=generator) < 0.5, -values, values)


def decoded(codes, name, scale=0):
    return codes.view(TORCH[name]).double().numpy() * 2.0**scale


@pytest.mark.parametrize("name", fp8.FORMATS)
@pytest.mark.parametrize("overflow", ["nan", "saturate"])
@pytest.mark.parametrize("scale", [0, -7, 5])
def test_both_treatments_of_overflows_equal_gfloat(name, overflow, scale):
    values = spread(name, 5000) * 2.0**scale
    found = compiled(lambda v: fp8.quantise(v, name, scale, overflow=overflow), values)
    wanted = rounded(values.numpy(), name, scale, saturates=overflow == "saturate")
    infinite = values.isinf().numpy()  # gfloat keeps what is no number apart from numbers
    signs = values.sign().numpy()[infinite]
    wanted[infinite] = signs * LARGEST[name] * 2.0**scale if overflow == "saturate" else np.nan
    np.testing.assert_array_equal(decoded(found, name, scale), wanted)
    assert torch.equal(fp8.quantise(values, name, scale, overflow=overflow), found)  # eager does the same


@pytest.mark.parametrize("name", fp8.FORMATS)
@pytest.mark.parametrize("overflow", ["nan", "saturate"])
@pytest.mark.parametrize("count", [1, 31, 4097, 20_000])
def test_stochastic_casts_equal_gfloat_given_the_same_bits(name, overflow, count):
    values = spread(name, max(4, count))[-count:]
    found = compiled(lambda v: fp8.quantise(v, name, overflow=overflow, stochastic=True), values, seed=11)
    bits = random_bits(count, stream=-ROUNDING_STREAMS)  # the first op that draws
    wanted = rounded(values.numpy(), name, saturates=overflow == "saturate", bits=bits)
    infinite = values.isinf().numpy()
    wanted[infinite] = values.sign().numpy()[infinite] * LARGEST[name] if overflow == "saturate" else np.nan
    np.testing.assert_array_equal(decoded(found, name), wanted)


@pytest.mark.parametrize("name", fp8.FORMATS)
@pytest.mark.parametrize("where", ["program", "eager"])
def test_stochastic_casts_are_unbiased_in_every_binade(name, where):
    draws, mantissa, bias = 20_000, *{"F143": (3, 8), "F152": (2, 16)}[name]
    values = spread(name, 300, seed=3)[4:]
    values = values[values.abs() < LARGEST[name] * 0.9]
    cast = lambda v: fp8.quantise(v, name, stochastic=True)  # noqa: E731
    rows = values.unsqueeze(1).expand(-1, draws)
    torch.manual_seed(0)
    codes = compiled(cast, rows, seed=5) if where == "program" else cast(rows)
    mean = codes.view(TORCH[name]).double().mean(1).numpy()
    exact = values.double().numpy()
    spacing = 2.0 ** (np.maximum(np.floor(np.log2(np.abs(exact))), 1 - bias) - mantissa)
    fraction = np.abs(exact) / spacing % 1
    # Four standard deviations, and of 16 random bits the last.
    assert (np.abs(mean - exact) / spacing <= 4.5 * np.sqrt(fraction * (1 - fraction) / draws) + 2.0**-16).all()


def test_stochastic_casts_draw_anew_and_in_each_micro_batch():
    class Cast(torch.nn.Module):
        def forward(self, x):
            return fp8.quantise(x, stochastic=True)

    step = torchipu.InferenceStep(Cast(), torchipu.Options(target="c600", device_iterations=2, seed=1))
    found = step(torch.full((2000,), 1.05))
    assert not torch.equal(found[:1000], found[1000:])
    assert not torch.equal(found, step(torch.full((2000,), 1.05)))


@pytest.mark.parametrize(("left", "right"), [("F143", "F143"), ("F143", "F152"), ("F152", "F152")])
def test_products_sum_32_channels_as_floats_and_write_halves_back(left, right):
    a = fp8.quantise(torch.randn(9, 100), left)
    b = fp8.quantise(torch.randn(100, 21) * 4, right)
    found = compiled(lambda x, y: fp8.matmul(x, y, left, right, 2), a, b)
    assert np.array_equal(found.double().numpy(), product(decoded(a, left), decoded(b, right), 2))


def test_convolutions_sum_32_channels_of_each_element_of_the_window():
    x = fp8.quantise(torch.randn(2, 40, 6, 5))
    weight = fp8.quantise(torch.randn(7, 40, 3, 2))
    found = compiled(lambda a, b: fp8.convolution(a, b, scale=-3, padding=1, stride=(1, 2)), x, weight)
    windows = torch.nn.functional.unfold(torch.from_numpy(decoded(x, "F143")), (3, 2), padding=1, stride=(1, 2))
    left = windows.unflatten(1, (40, 6)).permute(0, 3, 2, 1).flatten(0, 1).flatten(1).numpy()
    right = torch.from_numpy(decoded(weight, "F143")).flatten(2).permute(2, 1, 0).flatten(0, 1).numpy()
    wanted = torch.from_numpy(product(left, right, -3, taps=6)).view(2, -1, 7).transpose(1, 2).view(found.shape)
    assert torch.equal(found.double(), wanted)


CONVOLUTIONS = {
    "plain": ((2, 20, 7, 6), (5, 20, 3, 3), {}),
    "padded and strided": ((2, 4, 9, 8), (6, 4, 3, 3), {"stride": 2, "padding": 1}),
    "dilated": ((1, 3, 11, 11), (4, 3, 3, 2), {"dilation": 2, "padding": (2, 1)}),
    "grouped": ((2, 8, 6, 6), (6, 4, 3, 3), {"groups": 2, "padding": 1}),
    "one dimension": ((3, 18, 12), (4, 18, 4), {"stride": 3, "padding": 2}),
    "three dimensions": ((1, 3, 5, 4, 6), (2, 3, 2, 3, 2), {"padding": 1, "stride": (1, 2, 1)}),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_and_their_gradients_are_right_in_exact_arithmetic(name):
    # Small whole numbers times powers of two: floats of 8 bits hold them, and halves their sums.
    x_shape, w_shape, keywords = CONVOLUTIONS[name]
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randint(-2, 3, shape, generator=generator).double() for shape in (x_shape, w_shape))
    bias = torch.arange(w_shape[0]).double()
    judge = getattr(torch.nn.functional, f"conv{len(x_shape) - 2}d")
    scales = {"input_scale": 6, "weight_scale": -9, "gradient_scale": 3}
    found, wanted = [], []
    for run, results, dtype in (
        (lambda x, w, b: judge(x, w, b, **keywords), wanted, torch.double),
        (lambda x, w, b: fp8.conv(x, w, b, **keywords, **scales), found, torch.half),
    ):
        operands = [(t * s).to(dtype).requires_grad_() for t, s in ((x, 2.0**6), (weight, 2.0**-9), (bias, 2.0**-3))]
        out = run(*operands) if dtype is torch.double else compiled(run, *operands)
        sign = torch.randint(-1, 2, out.shape, generator=torch.Generator().manual_seed(1))
        out.backward((sign * 8).to(dtype))
        results += [out.detach().double(), *(operand.grad.double() for operand in operands)]
    for mine, theirs in zip(found, wanted, strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("shape", [(6, 20), (3, 6, 20), (2, 3, 6, 20)])
@pytest.mark.parametrize("is_compiled", [True, False])
def test_gradients_of_products_are_products_of_bytes(shape, is_compiled):
    torch.manual_seed(0)
    x, weight = torch.randn(shape).half(), (torch.randn(20, 5) * 2.0**-6).half()
    operands = [t.clone().requires_grad_() for t in (x, weight)]

    def run(a, b):
        return fp8.product(a, b, right_scale=-8, gradient_scale=4)

    out = compiled(run, *operands) if is_compiled else run(*operands)
    cotangent = torch.randn(out.shape).half() * 100
    out.backward(cotangent)
    left = rounded(x.reshape(-1, 20), "F143")
    right = rounded(weight, "F143", -8)
    slope = rounded(cotangent.reshape(-1, 5), "F152", 4)
    tolerance = {"rtol": 2e-3, "atol": 1e-3}  # one half, and where eager sums as floats, no more
    np.testing.assert_allclose(out.detach().reshape(-1, 5).double(), left @ right, **tolerance)
    np.testing.assert_allclose(operands[0].grad.reshape(-1, 20).double(), slope @ right.T, **tolerance)
    np.testing.assert_allclose(operands[1].grad.double(), left.T @ slope, rtol=2e-3, atol=0.1)


def test_batches_of_products_have_gradients_too():
    x, y = (torch.randint(-3, 4, shape).float() for shape in ((3, 4, 8), (3, 8, 5)))
    operands = [t.clone().requires_grad_() for t in (x, y)]
    out = compiled(lambda a, b: fp8.product(a, b), *operands)
    out.backward(torch.ones_like(out))
    exact = [t.clone().double().requires_grad_() for t in (x, y)]
    (exact[0] @ exact[1]).sum().backward()
    assert out.dtype is torch.half
    for mine, theirs in zip(operands, exact, strict=True):
        assert mine.grad.dtype is torch.float32
        assert torch.equal(mine.grad.double(), theirs.grad)


class Classifier(torch.nn.Module):
    """A convolution and a layer by way of floats of 8 bits, or of whatever its weights are."""

    def __init__(self, *, in_bytes):
        super().__init__()
        self.conv, self.head = torch.nn.Conv2d(3, 16, 3), torch.nn.Linear(16 * 36, 4)
        self.in_bytes = in_bytes

    def forward(self, x, labels):
        if not self.in_bytes:
            hidden = torch.relu(self.conv(x)).flatten(1)
            return torch.nn.functional.cross_entropy(self.head(hidden).to(x.dtype), labels)
        hidden = torch.relu(fp8.conv(x, self.conv.weight, self.conv.bias, weight_scale=-8, gradient_scale=-10))
        logits = fp8.product(hidden.flatten(1), self.head.weight.t(), right_scale=-8, gradient_scale=-10)
        return torch.nn.functional.cross_entropy((logits + self.head.bias).float(), labels)


def test_a_classifier_trains_in_bytes_about_as_in_float64():
    torch.manual_seed(0)
    mine, theirs = Classifier(in_bytes=True), Classifier(in_bytes=False).double()
    theirs.load_state_dict(mine.state_dict())
    step = torchipu.TrainStep(
        mine, torch.optim.SGD(mine.parameters(), lr=0.05), torchipu.Options(target="c600", loss_scaling=8.0)
    )
    reference, losses = torch.optim.SGD(theirs.parameters(), lr=0.05), []
    for _ in range(30):
        labels = torch.randint(4, (32,))
        x = torch.randn(32, 3, 8, 8) * 0.3
        x[torch.arange(32), labels % 3] += 1.0 + (labels == 3)[:, None, None]
        reference.zero_grad()
        exact = theirs(x.double(), labels)
        exact.backward()
        reference.step()
        losses.append((step(x, labels).item(), exact.item()))
    assert losses[-1][1] < 0.5 * losses[0][1]
    assert all(abs(ours - exact) < 0.05 * losses[0][1] for ours, exact in losses)
    kinds = [op.kind for op in step.compiled.graph.ops]
    assert kinds.count("fp8_matmul") == 3
    assert kinds.count("fp8_convolution_backward") == 1
    made = {result: op for op in step.compiled.graph.ops for result in op.outputs}
    read = [t for op in step.compiled.graph.ops if op.kind == "fp8_matmul" and op.leg.name == "BACKWARD"
            for t in op.inputs]
    assert {t.dtype.text for t in read} == {"uchar"}
    assert any(made[t].leg.name == "FORWARD" or made[t].kind != "fp8_quantise" for t in read)  # kept as bytes


def test_a_batch_of_products_gives_what_each_of_them_gives():
    a, b = fp8.quantise(torch.randn(3, 5, 70)), fp8.quantise(torch.randn(3, 70, 11))
    product = lambda x, y: fp8.matmul(x, y, scale=-1)  # noqa: E731
    together = compiled(product, a, b)
    apart = torch.stack([compiled(product, x, y) for x, y in zip(a, b, strict=True)])
    assert torch.equal(together, apart)
    exact = fp8.dequantise(a, dtype=torch.float32).double() @ fp8.dequantise(b, dtype=torch.float32).double() / 2
    # Three sums below 64 are rounded to halves, each by 2^-6 at most, and the result once.
    torch.testing.assert_close(together.double(), exact, rtol=1e-3, atol=3 * 2.0**-6)


@pytest.mark.parametrize(("left", "right"), [((2, 3), (4, 2)), ((2, 3, 4), (4, 5)), ((2, 3, 4), (3, 4, 5))])
def test_shapes_that_do_not_fit_are_refused(left, right):
    codes = [torch.zeros(shape, dtype=torch.uint8) for shape in (left, right)]
    with pytest.raises(ValueError, match=r"takes \[M, K\] by \[K, N\] or \[B, M, K\] by \[B, K, N\], not"):
        fp8.matmul(*codes)


def test_casts_round_to_nearest_beside_halves_that_are_rounded_stochastically():
    # The bit of the machine is that of halves: floats of 8 bits are rounded to nearest in any case.
    values = torch.randn(500)
    found = compiled(lambda v: fp8.quantise(v), values, stochastic_rounding=True)
    assert torch.equal(found, values.to(torch.float8_e4m3fnuz).view(torch.uint8))


def test_a_machine_without_them_stores_them_but_refuses_products():
    values = torch.randn(16)
    stored = compiled(lambda v: fp8.dequantise(fp8.quantise(v), dtype=torch.float32), values, target="mk2")
    assert torch.equal(stored, values.to(torch.float8_e4m3fnuz).float())
    codes = fp8.quantise(torch.randn(4, 4))
    with pytest.raises(Exception, match=r"(?s)Mk2 GC200 takes no floats of 8 bits.*set target='c600'") as caught:
        compiled(lambda a, b: fp8.matmul(a, b), codes, codes, target="mk2")
    assert isinstance(getattr(caught.value, "inner_exception", caught.value), ConstraintError)


@pytest.mark.parametrize("target", ["mk1", "mk2", "bow"])
@pytest.mark.parametrize("function", [
    lambda x, w: fp8.product(x, w[:, :, 0]), lambda x, w: fp8.conv(x[None], w),
])
def test_products_and_convolutions_name_the_line_and_the_remedy_on_other_machines(target, function):
    x, weight = torch.randn(6, 4).half(), torch.randn(4, 6, 1).half()
    with pytest.raises(Exception, match=r"(?s)takes no floats of 8 bits: there they are storage only.*test_fp8.py.*"
                       r"set target='c600', or call torchipu.fp8.dequantise before the product"):
        compiled(function, x, weight, target=target)


class Doubtful(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(-8.0, 8.0).view(4, 4))

    def forward(self, x):
        with poptorch.Block("product", ipu_id=0):
            return poptorch.identity_loss(fp8.product(x, self.weight).float(), reduction="sum")


def test_poptorch_programs_take_them_on_the_machine_that_has_them(monkeypatch):
    monkeypatch.setenv("POPTORCH_IPU_MODEL", "1")
    monkeypatch.setenv("POPTORCH_IPU_MODEL_VERSION", "ipu21")
    model = Doubtful()
    before = model.weight.detach().clone()
    training = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.5))
    x = torch.tensor([[1.0, -2.0, 0.5, 3.0], [0.0, 1.0, 1.0, -1.0]])
    assert training(x) == (x @ before).sum()
    assert torch.equal(model.weight.detach(), before - 0.5 * x.sum(0)[:, None].expand(4, 4))
    monkeypatch.setenv("POPTORCH_IPU_MODEL_VERSION", "ipu2")
    other = Doubtful()
    kept = other.weight.detach().clone()
    training = poptorch.trainingModel(other, optimizer=torch.optim.SGD(other.parameters(), lr=0.5))
    with pytest.raises(poptorch.Error, match=r"(?s)takes no floats of 8 bits.*fp8.product\(x, self.weight\).*product"):
        training(x)
    assert torch.equal(other.weight, kept)


@pytest.mark.parametrize(("call", "words"), [
    (lambda x: fp8.quantise(x, scale=32), "a power of two from -32 to 31, not 32: it is the exponent, not the factor"),
    (lambda x: fp8.quantise(x, overflow="wrap"), "becomes 'nan' or is made to 'saturate', not 'wrap'"),
    (lambda x: fp8.product(x, x, gradient_format="F161"), "a float of 8 bits is 'F143' or 'F152', not 'F161'"),
    (lambda x: fp8.product(x, x, left_scale=1024), "not 1024: it is the exponent"),
])
def test_what_makes_no_sense_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call(torch.ones(2, 2).half())


def test_products_are_faster_than_those_of_halves_on_the_device():
    class Bytes(torch.nn.Module):
        def forward(self, a, b):
            return fp8.matmul(a, b)

    class Halves(torch.nn.Module):
        def forward(self, a, b):
            return a @ b

    options = torchipu.Options(target="c600", partials_type="half")
    quick, slow = torchipu.InferenceStep(Bytes(), options), torchipu.InferenceStep(Halves(), options)
    codes = fp8.quantise(torch.randn(2048, 2048))
    quick.compile(codes, codes)
    slow.compile(codes.half(), codes.half())
    assert quick.profile.cycles_per_update < slow.profile.cycles_per_update


def test_a_convolution_takes_the_matrix_unit_as_one_of_half_as_many_channels_of_halves_does():
    class Bytes(torch.nn.Module):
        def forward(self, x, w):
            return fp8.convolution(x, w, padding=1)

    class Halves(torch.nn.Module):
        def forward(self, x, w):
            return torch.nn.functional.conv2d(x, w, padding=1)

    options = torchipu.Options(target="c600", partials_type="half")
    quick, slow = torchipu.InferenceStep(Bytes(), options), torchipu.InferenceStep(Halves(), options)
    x, w = torch.randn(2, 128, 28, 28), torch.randn(64, 128, 3, 3)
    quick.compile(fp8.quantise(x), fp8.quantise(w))
    slow.compile(x[:, :64].half(), w[:, :64].half())

    def spent(step):
        return [
            (one.name.rsplit(".", 1)[-1], one.exchange, one.compute)
            for cost in step.compiled.cost.functions.values() for one in cost.supersteps if "conv" in one.op.kind
        ]

    assert spent(quick) == spent(slow)
    assert spent(quick)


def test_other_formats_are_refused():
    with pytest.raises(ValueError, match="a float of 8 bits is 'F143' or 'F152', not 'F134'"):
        fp8.quantise(torch.ones(2), "F134")
