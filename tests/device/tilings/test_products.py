"""Vertices of products on the matrix unit, against the products themselves."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

import torchipu
import torchipu.capture.recurrence  # its ops
from tests.device.tilings.judged import Judged, judge
from tests.device.tilings.simulated import simulate
from torchipu.device.tiles.layout import BITS
from torchipu.emulation.eager import evaluate
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.mapping import linear
from torchipu.ir.program import VertexGroup
from torchipu.ir.types import DType
from torchipu.optable.spec import spec_of
from torchipu.target import lookup_target

SGD = partial(torch.optim.SGD, lr=0.1)


def _assert_tiled(machine: Judged, *targets: str) -> None:
    assert set(targets) <= set(machine.tiled)
    assert not set(targets) & (set(machine.whole) | set(machine.without_kernel)), machine.without_kernel


def _groups(op: Op, tiles: int) -> list[tuple[VertexGroup, int]]:
    """Return the vertices of an op on so many tiles, and how often each set runs."""
    spec = spec_of(op)
    assert spec is not None
    sets = spec.lower(op, replace(lookup_target("mk2"), num_tiles=tiles))
    return [
        (VertexGroup("", {}, linear(one.elements, min(tiles, one.max_tiles or tiles), one.grain), op,
                     tiling=one.tiling), one.repeats)
        for one in sets
    ]


class Chain(torch.nn.Module):
    """Plain and batched products, with an addend of every shape."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(37, 19)
        self.second = torch.nn.Parameter(torch.randn(3, 19, 5) / 4)
        self.added = torch.nn.Parameter(torch.randn(3, 1, 5))
        self.last = torch.nn.Parameter(torch.randn(5, 1) / 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x.reshape(-1, 37)).reshape(3, -1, 19).tanh()
        y = torch.baddbmm(self.added, y, self.second, beta=0.5, alpha=-2.0)
        z = torch.addmm(y[0, :, :1], y[1], self.last, alpha=0.3)
        return (z + torch.bmm(y, y.transpose(1, 2)).sum(0) @ z).sum()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_matrices(dtype: torch.dtype) -> None:
    machine = judge(Chain().to(dtype), torch.randn(3, 11, 37, dtype=dtype), optimizer=SGD)
    _assert_tiled(machine, "aten.addmm.default", "aten.mm.default", "aten.bmm.default", "aten.baddbmm.default")


class Product(torch.nn.Module):
    """One product with a weight."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(*shape) / shape[-2] ** 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("shapes", [
    ((4, 5003), (5003, 7)), ((1, 80), (80, 1)), ((1500, 2, 3), (1500, 3, 2)), ((3100, 1, 2), (3100, 2, 1)),
])
def test_splits(shapes: tuple[tuple[int, ...], tuple[int, ...]], dtype: torch.dtype) -> None:
    """Several tiles share the inputs; some tiles take several groups, or none."""
    machine = judge(Product(*shapes[1]).to(dtype), torch.randn(*shapes[0], dtype=dtype))
    _assert_tiled(machine, "aten.mm.default" if len(shapes[0]) == 2 else "aten.bmm.default")


@pytest.mark.parametrize("dtype", [DType.FLOAT, DType.HALF])
@pytest.mark.parametrize("tiles", [1, 3, 6, 24])
@pytest.mark.parametrize("memory", [0.0008, 0.003, 0.01])
def test_parts(memory: float, tiles: int, dtype: DType) -> None:
    """What does not fit is computed in parts: of positions, of outputs, and of inputs, whose sums are kept."""
    left, right, out = (Tensor(name, shape, dtype) for name, shape in (
        ("left", (2, 21, 101)), ("right", (2, 101, 37)), ("out", (2, 21, 37))))
    added = Tensor("added", (1, 37), dtype)
    op = Op(
        "baddbmm", (added, left, right), (out,), {"available_memory": memory, "alpha": 2.0, "beta": 0.5},
        "aten.baddbmm.default", ("self", "batch1", "batch2"),
    )
    groups = _groups(op, tiles)
    assert any(repeats > 1 for _, repeats in groups) or memory > 0.002
    generator = np.random.default_rng(0)
    values = [generator.standard_normal(one.shape) for one in op.inputs]
    given, = simulate(groups, values, kernels=False)
    np.testing.assert_allclose(given, 0.5 * values[0] + 2 * values[1] @ values[2], 1e-9, 1e-9)
    typed = [value.astype(BITS[dtype]) for value in values]
    wanted = 0.5 * typed[0].astype(float) + 2 * typed[1].astype(float) @ typed[2].astype(float)
    given, = simulate(groups, typed, kernels=True)
    np.testing.assert_allclose(given.astype(float), wanted, 2e-3, 2e-2 if dtype is DType.HALF else 1e-4)


class Windows(torch.nn.Module):
    """Convolutions one after another."""

    def __init__(self, *layers: torch.nn.Module) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        return x.sum()


CONVOLUTIONS = {
    "plain": ((2, 3, 11, 9), torch.nn.Conv2d(3, 5, 3, padding=1), torch.nn.Conv2d(5, 4, 1, bias=False)),
    "strided": ((2, 3, 13, 12), torch.nn.Conv2d(3, 4, 3, stride=2, padding=1), torch.nn.Conv2d(4, 4, 2, stride=(3, 2))),
    "grouped": ((1, 4, 9, 9), torch.nn.Conv2d(4, 6, 3, groups=2, dilation=2), torch.nn.Conv2d(6, 6, 3, 2, 1, groups=6)),
    "sparse": ((1, 2, 15, 15), torch.nn.Conv2d(2, 3, 1), torch.nn.Conv2d(3, 2, 3, stride=2, dilation=2, bias=False)),
    "lines": ((2, 3, 31), torch.nn.Conv1d(3, 4, 5, 2, 2), torch.nn.ConvTranspose1d(4, 3, 3, 2)),
    "volumes": ((1, 2, 5, 6, 4), torch.nn.Conv3d(2, 3, (3, 2, 1), (1, 2, 1), 1), torch.nn.Conv3d(3, 2, 2)),
    "turned": ((2, 4, 5, 6), torch.nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2), torch.nn.ConvTranspose2d(6, 2, 2)),
    "deep": ((1, 40, 6, 6), torch.nn.Conv2d(40, 24, 3, padding=1), torch.nn.Conv2d(24, 33, 3, bias=False)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str, dtype: torch.dtype) -> None:
    shape, *layers = CONVOLUTIONS[name]
    machine = judge(Windows(*layers).to(dtype), torch.randn(*shape, dtype=dtype), optimizer=SGD)
    _assert_tiled(machine, "aten.convolution.default", "aten.convolution_backward.default")


@pytest.mark.parametrize(("groups", "channels", "side", "stride"), [
    (8, 1, 14, 1), (4, 1, 44, 2), (4, 2, 14, 1), (3, 4, 14, 1),
])
def test_windows_of_few_channels(groups: int, channels: int, side: int, stride: int) -> None:
    """Image and gradient by the vertices for few channels: of single ones, of pairs and of four."""
    layer = torch.nn.Conv2d(groups * channels, groups * channels, 3, stride, 1, groups=groups)
    options = torchipu.Options(allow_out_of_memory=True, target="mk2,num_tiles=16")
    x = torch.randn(1, groups * channels, side, side).half()
    machine = judge(Windows(layer).half(), x, optimizer=SGD, options=options)
    assert "poplin::ConvPartial1x4SLIC" in _codelets(machine)
    _assert_tiled(machine, "aten.convolution.default", "aten.convolution_backward.default")


def _codelets(machine: Judged) -> set[str]:
    return {group.codelet for groups in machine._groups.values() for group, _ in groups}


@pytest.mark.parametrize(("groups", "side", "stride"), [(8, 28, 1), (12, 28, 1), (16, 14, 1)])
def test_updates_without_the_matrix_unit(groups: int, side: int, stride: int) -> None:
    """The output's gradient slides over the image, and tiles share its rows and columns."""
    layer = torch.nn.Conv2d(groups, groups, 3, stride, 1, groups=groups)
    options = torchipu.Options(allow_out_of_memory=True, target="mk2,num_tiles=16")
    machine = judge(Windows(layer).half(), torch.randn(2, groups, side, side).half(), optimizer=SGD, options=options)
    assert "poplin::ConvPartialVerticalMac" in _codelets(machine)
    _assert_tiled(machine, "aten.convolution.default", "aten.convolution_backward.default")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_tiles_share_the_rows_of_a_window(dtype: torch.dtype) -> None:
    layer = torch.nn.Conv2d(16, 16, 5, padding=2)
    options = torchipu.Options(allow_out_of_memory=True, target="mk2,num_tiles=16")
    machine = judge(Windows(layer).to(dtype), torch.randn(1, 16, 10, 10, dtype=dtype), optimizer=SGD, options=options)
    assert "poplin::ConvPartialnx1" in _codelets(machine)
    _assert_tiled(machine, "aten.convolution.default", "aten.convolution_backward.default")


class Attention(torch.nn.Module):
    """Queries, keys and values of one tensor."""

    def __init__(self, heads: int, key_heads: int, width: int, *, is_causal: bool, masked: bool) -> None:
        super().__init__()
        self.heads, self.key_heads, self.width, self.is_causal = heads, key_heads, width, is_causal
        self.weight = torch.nn.Parameter(torch.randn(6, (heads + 2 * key_heads) * width))
        self.mask = torch.nn.Buffer(torch.randn(1, heads, 1, 17)) if masked else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sizes = [count * self.width for count in (self.heads, self.key_heads, self.key_heads)]
        parts = (x @ self.weight).split(sizes, dim=-1)
        q, k, v = (part.unflatten(-1, (-1, self.width)).transpose(1, 2) for part in parts)
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, self.mask, is_causal=self.is_causal, enable_gqa=self.heads != self.key_heads,
        ).square().sum()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("is_causal", "masked"), [(False, False), (True, False), (False, True)])
def test_attention(dtype: torch.dtype, *, is_causal: bool, masked: bool) -> None:
    module = Attention(3, 3, 8, is_causal=is_causal, masked=masked).to(dtype)
    machine = judge(module, torch.randn(2, 17, 6, dtype=dtype), optimizer=SGD)
    name = "aten._scaled_dot_product_flash_attention_for_cpu"
    _assert_tiled(machine, f"{name}.default", f"{name}_backward.default")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_vectors(dtype: torch.dtype) -> None:
    class Vectors(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(19, 31))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.addmv(torch.mv(self.weight, x), self.weight, x, alpha=0.5, beta=2.0).sum()

    machine = judge(Vectors().to(dtype), torch.randn(31, dtype=dtype), optimizer=SGD)
    _assert_tiled(machine, "aten.mv.default", "aten.addmv.default")


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_integers(dtype: torch.dtype) -> None:
    class Integers(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            z = torch.addmm(x[:1, :5], x, y, alpha=-2, beta=3)
            return torch.addmv(z[:, 0], x, y[:, 0], beta=2) + torch.bmm(z[None], z.T[None])[0, 0] + x.mv(y[:, 1])

    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randint(-9, 9, shape, generator=generator, dtype=dtype) for shape in ((11, 7), (7, 5)))
    _assert_tiled(
        judge(Integers(), x, y), "aten.addmm.default", "aten.addmv.default", "aten.bmm.default", "aten.mv.default",
    )


def test_queries_whose_keys_are_all_masked() -> None:
    module = Attention(2, 2, 8, is_causal=False, masked=True)
    mask = torch.randn(1, 2, 17, 17)
    mask[..., 3, :] = -torch.inf
    module.mask = torch.nn.Buffer(mask)
    name = "aten._scaled_dot_product_flash_attention_for_cpu"
    machine = judge(module, torch.randn(2, 17, 6), optimizer=SGD)
    _assert_tiled(machine, f"{name}.default", f"{name}_backward.default")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("is_causal", [False, True])
def test_keys_that_heads_share(dtype: torch.dtype, *, is_causal: bool) -> None:
    module = Attention(6, 2, 8, is_causal=is_causal, masked=False).to(dtype)
    name = "aten._scaled_dot_product_flash_attention_for_cpu"
    machine = judge(module, torch.randn(2, 17, 6, dtype=dtype), optimizer=SGD)
    _assert_tiled(machine, f"{name}.default", f"{name}_backward.default")


def test_half_partials() -> None:
    shape, *layers = CONVOLUTIONS["deep"]
    options = torchipu.Options(allow_out_of_memory=True, partials_type="half")
    module = Windows(*layers, torch.nn.Flatten(), torch.nn.Linear(528, 20)).half()
    machine = judge(module, torch.randn(*shape).half(), optimizer=SGD, options=options)
    _assert_tiled(machine, "aten.convolution.default", "aten.convolution_backward.default", "aten.addmm.default")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("projected", [0, 3])
def test_lstm(dtype: torch.dtype, projected: int) -> None:
    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.LSTM(5, 7, bidirectional=True, proj_size=projected)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x)[0].square().sum()

    machine = judge(Layer().to(dtype), torch.randn(3, 2, 5, dtype=dtype), optimizer=SGD)
    _assert_tiled(machine, "ipu.recurrence.default", "ipu.recurrence_backward.default")


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("cell", "gates", "kept"), [("gru", 3, 4), ("tanh", 1, 0), ("relu", 1, 0), ("lstm", 4, 5)])
def test_recurrences(cell: str, gates: int, kept: int, *, reverse: bool) -> None:
    """The cells that keep nothing, and the one that adds a bias to the product, forward and backward."""
    time, batch, hidden = 3, 2, 7
    sizes = {
        "projected": (time, batch, gates * hidden), "h0": (batch, hidden), "c0": (batch, hidden),
        "weight": (gates * hidden, hidden), "bias": (gates * hidden,), "outputs": (time, batch, hidden),
        "last": (batch, hidden if cell == "lstm" else 0), "kept": (time, batch, kept * hidden),
        "inner": (time, batch, gates * hidden if cell == "gru" else 0),
    }
    attrs = {"cell": cell, "reverse": reverse}
    state = ("c0",) if cell == "lstm" else ()
    forward = {name: name for name in ("projected", "h0", *state, "weight", *(("bias",) if cell == "gru" else ()))}
    backward = {
        "grad_outputs": "outputs", "grad_cell": "last", "kept": "kept", "outputs": "outputs", "h0": "h0",
        **{name: name for name in state}, "weight": "weight",
    }
    generator = np.random.default_rng(0)
    for kind, given, made in (
        ("recurrence", forward, ("outputs", "last", "kept")),
        ("recurrence_backward", backward, ("projected", "inner", "h0", "last")),
    ):
        inputs, outputs = (
            tuple(Tensor(f"{side}.{name}", sizes[name], DType.FLOAT) for name in names)
            for side, names in (("given", given.values()), ("made", made))
        )
        op = Op(kind, inputs, outputs, attrs, f"ipu.{kind}.default", tuple(given))
        values = [generator.standard_normal(tensor.shape) for tensor in inputs]
        for kernels, bound in ((False, 1e-9), (True, 1e-5)):
            taken = [value.astype(np.float32) for value in values] if kernels else values
            found = simulate(_groups(op, 4), taken, kernels=kernels)
            for one, wanted in zip(found, evaluate(op, [value.astype(float) for value in taken]), strict=True):
                np.testing.assert_allclose(one, wanted, bound, bound)
