"""Vertices of products of groups and of floats of 8 bits, which compute the op itself on slices."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

import torchipu
from tests.device.tilings.judged import Judged, judge
from torchipu import fp8

SGD = partial(torch.optim.SGD, lr=0.1)
C600 = torchipu.Options(target="c600", allow_out_of_memory=True)


def assert_tiled(machine: Judged, *targets: str) -> None:
    assert set(targets) <= set(machine.tiled)
    assert not machine.whole
    assert not set(targets) & set(machine.without_kernel)


class Experts(nn.Module):
    """Products of groups of rows, some of them empty, and rows that no group has."""

    def __init__(self, groups: int, inner: int, columns: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(groups, inner, columns))

    def forward(self, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.ops.transformers.grouped_mm_fallback(x, self.weight, ends)
        return y.square().mean()


@pytest.mark.parametrize(("rows", "inner", "columns", "ends"), [
    (20, 16, 24, [5, 5, 12, 20]), (130, 40, 300, [0, 100, 101, 120]), (7, 3, 5, [7]), (1, 1, 1, [0, 1]),
])
def test_groups_of_rows(rows: int, inner: int, columns: int, ends: list[int]) -> None:
    pytest.importorskip("transformers.integrations.moe")
    torch.manual_seed(1)
    machine = judge(
        Experts(len(ends), inner, columns), torch.randn(rows, inner), torch.tensor(ends, dtype=torch.int32),
        optimizer=SGD,
    )
    name = "transformers.grouped_mm_fallback"
    assert_tiled(machine, f"{name}.default", f"{name}_backward.default")


def test_groups_of_torch() -> None:
    class Groups(nn.Module):
        def forward(self, x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor) -> tuple[torch.Tensor, ...]:
            by_rows = torch._grouped_mm(x, w.transpose(1, 2), offs=ends)
            by_summands = torch._grouped_mm(x.t(), by_rows, offs=ends)
            return by_rows, by_summands, torch._grouped_mm(w, by_summands)

    x, w = torch.randn(16, 16).bfloat16(), torch.randn(3, 8, 16).bfloat16()
    machine = judge(Groups(), x, w, torch.tensor([4, 10, 16], dtype=torch.int32))
    assert_tiled(machine, "aten._grouped_mm.default")


class Bytes(nn.Module):
    """A convolution, and a product, of bytes."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.window = nn.Parameter(torch.randn(12, 6 // groups, 3, 2))
        self.weight = nn.Parameter(torch.randn(12, 37))
        self.groups = groups

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = fp8.conv(x, self.window, None, 2, 1, groups=self.groups, input_scale=-1)
        z = fp8.product(y.mean((2, 3)), self.weight, left_scale=-2)
        if not self.training:  # casts by themselves have no gradient
            z = fp8.dequantise(fp8.quantise(z, "F152"), "F152")
        return z.float().square().mean()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("groups", [1, 3])
def test_floats_of_8_bits(groups: int, dtype: torch.dtype) -> None:
    x = torch.randn(5, 6, 9, 7).to(dtype)
    trained = judge(Bytes(groups).to(dtype), x, optimizer=SGD, options=C600)
    found = judge(Bytes(groups).to(dtype), x, options=C600)
    for machine in (trained, found):
        assert_tiled(machine, *(f"torchipu.fp8_{name}.default" for name in ("quantise", "matmul", "convolution")))
    assert_tiled(trained, "torchipu.fp8_convolution_backward.default")
    assert_tiled(found, "torchipu.fp8_dequantise.default")


def test_batches_of_bytes() -> None:
    class Batches(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return fp8.product(x, y)

    assert_tiled(judge(Batches(), torch.randn(3, 7, 40), torch.randn(3, 40, 9), options=C600),
                 "torchipu.fp8_matmul.default")


@pytest.mark.parametrize("shared", [1, 2])
@pytest.mark.parametrize("masked", [False, True])
def test_heads_of_attention_with_half_partials(shared: int, *, masked: bool) -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.weight = nn.Parameter(torch.randn(6, (4 + 2 * 4 // shared) * 8) / 3)
            self.mask = torch.randn(2, 1, 9, 9).half() if masked else None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            parts = (x @ self.weight).split([32, 32 // shared, 32 // shared], -1)
            q, k, v = (part.unflatten(-1, (-1, 8)).transpose(1, 2) for part in parts)
            return nn.functional.scaled_dot_product_attention(
                q, k, v, self.mask, is_causal=not masked, enable_gqa=shared > 1,
            ).float().square().sum()

    options = torchipu.Options(partials_type="half", allow_out_of_memory=True)
    machine = judge(Attention().half(), torch.randn(2, 9, 6).half(), optimizer=SGD, options=options)
    name = "aten._scaled_dot_product_flash_attention_for_cpu"
    assert_tiled(machine, f"{name}.default", f"{name}_backward.default")


def test_samples_of_sequences_of_labels() -> None:
    class Aligned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.weight = nn.Parameter(torch.randn(12, 3, 6))

        def forward(self, x: torch.Tensor, targets: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            scores = (self.weight * x).log_softmax(2)
            return nn.functional.ctc_loss(scores, targets, torch.tensor([12, 11, 12]), lengths)

    targets = torch.tensor([[1, 2, 3], [2, 2, 1], [5, 0, 0]])
    machine = judge(Aligned(), torch.randn(12, 3, 6), targets, torch.tensor([3, 2, 1]), optimizer=SGD)
    assert_tiled(machine, "ipu.ctc_loss.default", "ipu.ctc_loss_backward.default")


def test_samples_of_images_that_a_grid_takes() -> None:
    class Moved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.turn = nn.Parameter(torch.randn(3, 5, 4, 2) / 4)

        def forward(self, x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
            return nn.functional.grid_sample(x * by, self.turn.tanh(), align_corners=False).square().sum()

    machine = judge(Moved(), torch.randn(3, 2, 6, 7), torch.randn(1), optimizer=SGD)
    assert_tiled(machine, "aten.grid_sampler_2d.default", "aten.grid_sampler_2d_backward.default")


@pytest.mark.parametrize("is_left", [False, True])
def test_systems_with_triangular_matrices(is_left: bool) -> None:
    class Solved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.matrices = nn.Parameter(torch.randn(3, 5, 5) / 8 + 2 * torch.eye(5))

        def forward(self, x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
            return torch.linalg.solve_triangular(self.matrices, x * by, upper=True, left=is_left).square().sum()

    machine = judge(Solved(), torch.randn(3, 5, 9) if is_left else torch.randn(3, 9, 5), torch.randn(1), optimizer=SGD)
    assert_tiled(machine, "aten.linalg_solve_triangular.default")


def test_what_has_nothing_to_do_still_gives_its_result() -> None:
    class Nothing(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return x[:0].sum(), x[:, :0].prod(1), x[:0].sum(0)

    assert not judge(Nothing(), torch.randn(4, 3)).whole


class Products(nn.Module):
    """Products of factors, and products so far."""

    def __init__(self) -> None:
        super().__init__()
        self.factors = nn.Parameter(torch.linspace(0.5, 1.5, 60).view(5, 4, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        factors = self.factors * x
        return factors.prod(1).square().mean() + factors.cumprod(0).square().mean() + factors.cumprod(2).mean()


def test_gradients_of_products() -> None:
    assert_tiled(judge(Products(), torch.randn(5, 4, 3), optimizer=SGD), "ipu.product_gradient.default")


class LongConvolution(nn.Module):
    """A convolution as long as its rows, by transforms that are ops: of real rows, and of complex columns."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.linspace(-1, 1, 600).view(3, 200))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        spectrum = torch.fft.rfft(x, n=400) * torch.fft.rfft(self.kernel, n=400)
        columns = torch.fft.fft(spectrum.transpose(1, 2)[:, :150], dim=1)
        return torch.fft.irfft(spectrum, n=400)[..., :200].square().mean() + columns.real.square().mean()


def test_long_fourier_transforms() -> None:
    ran = judge(LongConvolution(), torch.randn(2, 3, 200), optimizer=SGD)
    for name in ("fourier", "fourier_of_real", "fourier_to_real"):
        assert_tiled(ran, f"ipu.{name}.default")
