"""Models with complex numbers and Fourier transforms compute what eager does, through all doors."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import torchipu
import torchipu.poptorch as poptorch
from tests.opinfo.doors import directly
from torchipu.capture import fourier
from torchipu.capture.fourier import DIRECT, DIRECT_REAL, LEAST_REAL, half_of_real, real_of_half, transform
from torchipu.errors import UnsupportedOpError
from torchipu.report.recorder import recording


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize("length", [1, 2, 7, 64, DIRECT + 1, DIRECT + 3, 360, 1024])
@pytest.mark.parametrize("sign", [-1, 1])
def test_a_transform_is_that_of_torch(length: int, sign: int) -> None:
    value = torch.randn(3, length, 2, dtype=torch.complex128)
    real, imaginary = transform((value.real, value.imag), [1], sign)
    expected = torch.fft.fft(value, dim=1) if sign < 0 else torch.fft.ifft(value, dim=1, norm="forward")
    torch.testing.assert_close(torch.complex(real, imaginary), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("length", [1, 2, 7, 64, DIRECT + 1, DIRECT + 2, 360])
def test_a_half_of_a_spectrum_gives_real_values(length: int) -> None:
    half = torch.randn(3, length // 2 + 1, dtype=torch.complex128)
    expected = torch.fft.irfft(half, n=length, norm="forward")
    torch.testing.assert_close(real_of_half((half.real, half.imag), 1, length), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("length", [1, 2, 7, 64, 360, DIRECT_REAL + 1, DIRECT_REAL + 2])
def test_what_is_known_of_zeros_and_of_what_is_read_changes_no_value(length: int) -> None:
    value, given, kept = torch.randn(3, length, dtype=torch.complex128), (length + 3) // 4, (length + 2) // 4
    value[:, given:] = 0
    found = torch.complex(*half_of_real(value.real[:, :given], 1, length, kept))
    torch.testing.assert_close(found, torch.fft.rfft(value.real)[:, :kept], rtol=1e-9, atol=1e-9)
    few = value[:, :given]
    parts = few.real, few.imag
    found = real_of_half(parts, 1, length)
    torch.testing.assert_close(found, torch.fft.irfft(few, n=length, norm="forward"), rtol=1e-9, atol=1e-9)
    for to_real in (False, True):
        real, imaginary = transform(parts, [1], 1, {1: length}, to_real=to_real)
        expected = torch.fft.ifft(value, norm="forward")
        torch.testing.assert_close(real, expected.real, rtol=1e-9, atol=1e-9)
        assert to_real or torch.allclose(imaginary, expected.imag, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("length", [1, 7])
@pytest.mark.parametrize("call", [torch.fft.fft, torch.fft.rfft, torch.fft.hfft, torch.fft.fftn])
def test_a_vector_is_transformed_as_rows_are(call: Callable[[torch.Tensor], torch.Tensor], length: int) -> None:
    x = torch.randn(length, requires_grad=True)
    if call is torch.fft.hfft:
        x = torch.randn(length + 1, requires_grad=True)
    (found,) = directly(call, [x])(x)
    torch.testing.assert_close(found, call(x), rtol=1e-4, atol=1e-4)
    (gradient,) = torch.autograd.grad(found.abs().square().sum(), x)
    (expected,) = torch.autograd.grad(call(x).abs().square().sum(), x)
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-4)


def written(x: torch.Tensor) -> torch.Tensor:
    result = torch.zeros_like(x)
    result[:, :2] = x[:, 1:3]
    return result


TRANSFORMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "fft": lambda x: torch.fft.fft(x),
    "padded fft": lambda x: torch.fft.fft(x, n=20, norm="ortho"),
    "ifft2": lambda x: torch.fft.ifft2(x),
    "rfft": lambda x: torch.fft.rfft(x.real),
    "rfft2": lambda x: torch.fft.rfft2(x.real, norm="forward"),
    "irfft": lambda x: torch.fft.irfft(x, n=9),
    "irfftn": lambda x: torch.fft.irfftn(x, dim=(0, 2)),
    "hfft": lambda x: torch.fft.hfft(x),
    "fftshift": lambda x: torch.fft.fftshift(torch.fft.fftn(x)),
    "polar": lambda x: torch.polar(x.abs(), x.angle()) * 2j,
    "view_as_real": lambda x: torch.view_as_real(x * x.conj()) + x.real.unsqueeze(-1),
    "conj product": lambda x: x @ x.mH,
    "exp and log": lambda x: torch.log(x.exp() + 2) / (x + 3),
    "parts": lambda x: torch.cat([x.real, x.imag], -1).sin(),
    "sums": lambda x: x.sum(1) + x.mean() + x.cumsum(-1)[..., 0, :],
    "scattered": lambda x: torch.zeros(5, 12, dtype=x.dtype).index_put((torch.tensor([1, 3]),), x[0, :2]),
    "written": lambda x: written(x),
    "stft": lambda x: torch.stft(x.real.flatten(1), 8, 4, window=torch.hann_window(8), return_complex=True),
    "real result": lambda x: x.abs() + (x == x).float(),
    "products": lambda x: x[0, :2, :3].cumprod(-1),
    "real times number": lambda x: x.abs() * 2j + x.real * (1 - 1j),
    "number": lambda x: x[0, 0, 0] * 3,
    "complex factors": lambda x: torch.add(x, x.cos(), alpha=2 - 1j) - torch.sub(x, x.sin(), alpha=3j),
    "made": lambda x: x * torch.ones_like(x) + torch.full_like(x, 2) + torch.zeros_like(x) + x.new_ones(12),
    "filled": lambda x: x.masked_fill(x.real > 0, 3) + F.pad(x[..., 2:], (1, 1), value=2.0),
    "copied": lambda x: torch.expand_copy(x, (3, *x.shape)) * 2,
    "diagonals": lambda x: torch.diag_embed(x) + torch.diagonal_copy(x[0])[..., :1, None],
    "inverse": lambda x: torch.linalg.inv(x[..., :4] + 3 * torch.eye(4)),
    "solution": lambda x: torch.linalg.solve(x[..., :4] + 3 * torch.eye(4), x[..., 4:6]),
    "cholesky": lambda x: torch.linalg.cholesky(x @ x.mH + torch.eye(4)),
    "eigenvalues": lambda x: torch.linalg.eigvalsh(x @ x.mH + torch.eye(4)),
    "inverse sines": lambda x: x.asin() + (3 * x).asinh(),
    "sines near their limits": lambda x: (1 + 1e-3 * x).asin() + (1j + 1e-3 * x).asinh() + (1e-3 * x).asinh(),
    "logarithms": lambda x: x.log2() * x.log10() + torch.log1p(1e-3 * x),
    "inverse hyperbolic cosines": lambda x: (3 * x).acosh() + (-3 * x).acosh() + (1 + 1e-2 * x).acosh(),
    "logistic functions": lambda x: (3 * x).sigmoid() * x.sigmoid(),
    "deviations": lambda x: torch.std(x, 1) + x.std(),
    "sums of exponentials so far": lambda x: torch.logcumsumexp(x, 2) + torch.logcumsumexp(x, 0),
    "sum of exponentials": lambda x: torch.logaddexp(20 * x, x.flip(-1)),
    "all multiplied": lambda x: x[0, :2, :3].prod() + x.prod(-1)[:, :1] + x.prod(1, keepdim=True)[:, 0],
    "multiplied with zeros": lambda x: (x * (torch.arange(12) > 0)).prod(-1) + (x * (torch.arange(12) > 1)).prod(-1),
    "powers of two": lambda x: torch.ldexp(x, torch.arange(12) - 6),
    "cardinal sines": lambda x: torch.sinc(x) + torch.sinc(0 * x.detach()) * x,
    "exponentials": lambda x: torch.exp2(x) + F.silu(x.detach()),
    "mixtures": lambda x: torch.lerp(x, x.flip(-1), 0.3) + torch.lerp(x, x.conj(), x.roll(1)),
    "doubles": lambda x: torch.float_power(x, 3.14) + torch.tensor([2 - 1j], dtype=torch.complex128) * x,
    "moments": lambda x: sum(torch.var_mean(x, 1)) + sum(torch.std_mean(x, (0, 1), keepdim=True))[0],
    "reflected": lambda x: F.pad(x, (3, 2), mode="reflect") + F.pad(x, (2, 3), mode="replicate"),
    "strided copy": lambda x: torch.as_strided_copy(x, (3, 4), (12, 2)) * 2,
    "norm": lambda x: torch.linalg.norm(x[0]) + torch.var(x),
    "convolved": lambda x: torch.fft.irfft(torch.fft.rfft(x.real, n=24) * torch.fft.rfft(x.imag, n=24), n=24)[..., :12],
    "convolved over many places": lambda x: torch.fft.irfft(
        torch.fft.rfft(x.real, n=300) * torch.fft.rfft(x.imag, n=300), n=300,
    )[..., :24],
    "real parts of real values": lambda x: torch.fft.fft2(x.real).real + torch.fft.ifft(x.imag, n=12).imag,
    "real rows with zeros": lambda x: torch.fft.fft(x.real, n=7, dim=1) + torch.fft.fft(x.imag.double(), n=7, dim=1),
    "many rows": lambda x: torch.fft.fft(x, n=130, dim=1, norm="ortho") + torch.fft.ifft(x, n=130, dim=1),
    "many values, oddly": lambda x: torch.fft.irfft(torch.fft.rfft(x.real, n=273) * x[..., :1], n=273)[..., :30],
    "more than an op takes": lambda x: torch.fft.fft(x[0], n=32768, norm="ortho")[..., :50],
    "first frequencies": lambda x: torch.fft.rfft(x.real)[..., :3] + torch.fft.rfft(x.imag, 17, norm="ortho")[..., :3],
    "later frequencies": lambda x: torch.fft.rfft(x.real)[:, :3, 2:6:2] + torch.fft.rfft(x.real, dim=1)[..., :2],
    "few frequencies": lambda x: torch.fft.irfft(x[..., :3], n=13) + torch.fft.irfft(F.pad(x[..., :2], (0, 9)), n=13),
    "frequencies and their sum": lambda x: torch.fft.rfft(x.real)[..., :3] + torch.fft.rfft(x.real).sum(),
    "padded in front": lambda x: torch.fft.rfft(F.pad(x.real, (3, 0))) + torch.fft.rfft(F.pad(x.real, (1, 2))),
    "padded with ones": lambda x: torch.fft.rfft(F.pad(x.real, (0, 3), value=1.0)),
    "padded in two dimensions": lambda x: torch.fft.rfft2(x.real, s=(6, 16)) + torch.fft.fft2(x.real, s=(6, 9)),
    "padded rows": lambda x: torch.fft.rfft(F.pad(x.real, (0, 0, 0, 3)), dim=1)[:, :4] + torch.fft.fft(x, n=4, dim=1),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_functions_and_their_gradients_are_those_of_eager(name: str) -> None:
    function = TRANSFORMS[name]
    ours = torch.randn(2, 4, 12, dtype=torch.complex64, requires_grad=True)
    theirs = ours.detach().to(torch.complex128).requires_grad_()
    result, expected = torch.compile(function, backend="ipu", fullgraph=True)(ours), function(theirs)
    torch.testing.assert_close(result, expected.to(result.dtype), rtol=1e-4, atol=1e-4)
    weights = torch.randn(expected.shape, dtype=torch.float64)
    (result.abs() * weights.float()).sum().backward()
    (expected.abs() * weights).sum().backward()
    assert ours.grad is not None
    assert theirs.grad is not None
    torch.testing.assert_close(ours.grad, theirs.grad.to(ours.dtype), rtol=1e-3, atol=1e-3)


class Mixing(torch.nn.Module):
    """FNet's: a transform over both dimensions in the place of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(torch.fft.fft2(x).real).square().mean()


class Rotary(torch.nn.Module):
    """Rotates pairs of features by products with a complex buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("turns", torch.polar(torch.ones(5, 4), torch.randn(5, 4)))
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(self.linear(x).unflatten(-1, (4, 2)))
        return F.relu(torch.view_as_real(pairs * self.turns).flatten(-2)).square().mean()


class Operator(torch.nn.Module):
    """FNO's: complex weights for the lower frequencies."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(5, 5, 3, dtype=torch.cfloat))
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        spectrum = torch.fft.rfft(self.linear(x))
        low = torch.zeros(x.shape[0], 5, spectrum.shape[-1], dtype=torch.cfloat)
        low[:, :, :3] = torch.einsum("bix,iox->box", spectrum[:, :, :3], self.weight)
        return torch.fft.irfft(low, n=x.shape[-1]).square().mean()


MODELS = [Mixing, Rotary, Operator]


@pytest.mark.parametrize("optimiser", [
    lambda given: torch.optim.SGD(given, 0.1, momentum=0.9), lambda given: torch.optim.AdamW(given, 0.01),
    lambda given: torch.optim.RMSprop(given, 0.01),
], ids=["SGD", "AdamW", "RMSprop"])
@pytest.mark.parametrize("model", MODELS)
def test_a_step_trains_as_eager_does(model: type[torch.nn.Module], optimiser: Callable[[Any], Any]) -> None:
    ours = model()
    theirs, x = copy.deepcopy(ours), torch.randn(2, 5, 8)
    step = torchipu.TrainStep(ours, optimiser(ours.parameters()))
    eager = optimiser(theirs.parameters())
    for _ in range(3):
        eager.zero_grad()
        loss = theirs(x)
        loss.backward()
        eager.step()
        torch.testing.assert_close(step(x), loss, rtol=1e-4, atol=1e-5)
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("model", MODELS)
def test_poptorch_infers_as_eager_does(model: type[torch.nn.Module]) -> None:
    given, x = model().eval(), torch.randn(2, 5, 8)
    torch.testing.assert_close(poptorch.inferenceModel(given)(x).reshape(1), given(x).reshape(1), rtol=1e-4, atol=1e-5)


def test_complex_results_of_micro_batches_are_joined() -> None:
    class Spectrum(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.fft.rfft(x), torch.fft.rfft(x).sum()

    x = torch.randn(6, 8)
    spectra, sums = torchipu.InferenceStep(Spectrum(), torchipu.Options(device_iterations=3))(x)
    torch.testing.assert_close(spectra, torch.fft.rfft(x))
    torch.testing.assert_close(sums, torch.fft.rfft(x).reshape(3, -1).sum(1), rtol=1e-4, atol=1e-4)


def test_what_is_computed_of_a_transposed_spectrum_is_viewed_as_eager_views_it() -> None:
    def called(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        spectrum = torch.stft(x, 16, 4, window=torch.hann_window(16), return_complex=True)
        mask = (spectrum.abs().mT @ weight).mT  # a product of rows, which torch views as one matrix
        return torch.istft(spectrum * mask, 16, 4, window=torch.hann_window(16), length=x.shape[-1])

    x, weight = torch.randn(2, 64), torch.randn(9, 9, requires_grad=True)
    found, expected = torch.compile(called, backend="ipu", fullgraph=True)(x, weight), called(x, weight)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    (ours,), (theirs,) = (torch.autograd.grad(result.square().sum(), weight) for result in (found, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-3)


def test_complex_inputs_of_any_size_run_in_one_graph() -> None:
    run = torch.compile(lambda x: torch.fft.fft(x.conj()) * 1j, backend="ipu", dynamic=True, fullgraph=True)
    for size in (4, 6, 9):
        x = torch.randn(3, size, dtype=torch.complex64)
        torch.testing.assert_close(run(x), torch.fft.fft(x.conj()) * 1j, rtol=1e-4, atol=1e-4)


def test_a_transform_is_products_on_the_device() -> None:
    with recording() as programs:
        torch.compile(lambda x: torch.fft.fft(x).abs(), backend="ipu")(torch.randn(4, 12))
    kinds = {op.kind for op in programs[0].graph.ops}
    assert kinds & {"matmul", "mm", "linear"}, kinds
    assert "generic" not in kinds


def test_an_operator_that_pairs_do_not_have_is_refused_by_name() -> None:
    def inverse(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.pinv(x)

    words = r"linalg_pinv\.atol_rtol_tensor: there is no such operator on complex numbers"
    with pytest.raises(Exception, match=words) as caught:
        torch.compile(inverse, backend="ipu", fullgraph=True)(torch.randn(3, 3, dtype=torch.cfloat))
    error = caught.value.inner_exception  # type: ignore[attr-defined]
    assert isinstance(error, UnsupportedOpError)
    assert "torch.linalg.pinv(x)" in str(error)


@pytest.mark.parametrize("shape", [(3, 264), (2, 5, 260), (2, 260, 6)])
@pytest.mark.parametrize("sign", [-1, 1])
def test_real_values_over_several_dimensions_mirror_half_of_the_spectrum(shape, sign):
    values = torch.randn(shape, generator=torch.Generator().manual_seed(5))
    dims = list(range(1, len(shape)))
    run = torch.fft.ifftn if sign > 0 else torch.fft.fftn
    wanted = run(values.double(), dim=dims, norm="forward" if sign > 0 else "backward")
    scale = wanted.abs().max()
    real, imaginary = transform((values, None), dims, sign)
    torch.testing.assert_close(real / scale, (wanted.real / scale).float(), rtol=0, atol=1e-6)
    torch.testing.assert_close(imaginary / scale, (wanted.imag / scale).float(), rtol=0, atol=1e-6)
    alone, _ = transform((values, None), dims, sign, to_real=True)
    torch.testing.assert_close(alone, real)


LENGTHS = [LEAST_REAL + more for more in (-2, -1, 0, 1, 2, 5, LEAST_REAL + 1)]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("shape", [(5,), (3, 2), (3, 5, 1)], ids=str)
def test_real_transforms_around_the_shortest_op_are_those_of_float64(length: int, shape: tuple[int, ...]) -> None:
    """Whether products, an op or factors compute them."""
    draws = torch.Generator().manual_seed(length)
    x = torch.randn(*shape[:1], length, *shape[1:], generator=draws)
    wanted = torch.fft.rfft(x.double(), dim=1)
    real, imaginary = torch.compile(lambda x: torch.view_as_real(torch.fft.rfft(x, dim=1)).unbind(-1), backend="ipu")(x)
    scale = wanted.abs().max()
    for found, exact in ((real, wanted.real), (imaginary, wanted.imag)):
        torch.testing.assert_close(found / scale, (exact / scale).float(), rtol=0, atol=1e-6)
    half = torch.randn(*wanted.shape, dtype=torch.cfloat, generator=draws)
    back = torch.compile(lambda x: torch.fft.irfft(x, n=length, dim=1), backend="ipu")(half)
    exact = torch.fft.irfft(half.to(torch.cdouble), n=length, dim=1)
    scale = exact.abs().max()
    torch.testing.assert_close(back / scale, (exact / scale).float(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("length", [9, LEAST_REAL, LEAST_REAL + 1, 300])
def test_real_frequencies_become_real_values(length: int) -> None:
    """Whose imaginary parts there are none of, over one dimension and several, with their gradients."""
    calls = [
        lambda x: torch.fft.irfft(x, n=length), lambda x: torch.fft.irfft(x, n=length, dim=1, norm="ortho"),
        lambda x: torch.fft.irfft2(x, s=(4, length)), lambda x: torch.fft.hfft(x, n=length),
    ]
    x = torch.randn(3, 4, length // 2 + 1, generator=torch.Generator().manual_seed(length))
    for call in calls:
        torch._dynamo.reset()
        ours, exact = x.clone().requires_grad_(), x.double().requires_grad_()
        found, wanted = torch.compile(call, backend="ipu")(ours), call(exact)
        torch.testing.assert_close(found, wanted.float(), rtol=1e-4, atol=1e-4)
        found.square().sum().backward()
        wanted.square().sum().backward()
        scale = exact.grad.abs().max()
        torch.testing.assert_close(ours.grad / scale, (exact.grad / scale).float(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("rows", [64, 2048])
@pytest.mark.parametrize("length", [LEAST_REAL, 128, DIRECT_REAL])
def test_the_shortest_op_is_a_choice_for_the_host(length: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device takes about as long for products of these lengths: where a host turns to the op is its own affair."""
    for call, given in ((torch.fft.rfft, (rows, length)), (torch.fft.irfft, (rows, length // 2 + 1))):
        cycles = []
        for least in (LEAST_REAL, DIRECT_REAL + 1):
            monkeypatch.setattr(fourier, "LEAST_REAL", least)
            torch._dynamo.reset()
            with recording() as programs:
                torch.compile(lambda x, call=call: call(x).abs(), backend="ipu")(torch.randn(given))
            cycles.append(programs[0].program.cost.cycles)
        assert cycles[0] == pytest.approx(cycles[1], rel=0.1)


def test_the_logistic_function_of_large_numbers_is_finite() -> None:
    x = torch.tensor([200 + 3j, -200 + 3j, -80 - 1j, 0 + 0j], dtype=torch.complex64)
    wanted = torch.tensor([1, 0, (-80 - 1j), 0.5], dtype=torch.complex128)
    wanted[2] = wanted[2].exp()
    made = torch.compile(torch.sigmoid, backend="ipu", fullgraph=True)(x)
    torch.testing.assert_close(made.to(wanted.dtype), wanted, rtol=1e-5, atol=0)


@pytest.mark.parametrize("imaginary", [0.0, -0.0])
def test_inverse_hyperbolic_cosines_beside_the_cut_are_those_of_eager(imaginary: float) -> None:
    real = torch.tensor([-3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0])
    x = torch.complex(real, torch.full_like(real, imaginary))
    made = torch.compile(torch.acosh, backend="ipu", fullgraph=True)(x)
    torch.testing.assert_close(made, torch.acosh(x), rtol=1e-5, atol=5e-4)
