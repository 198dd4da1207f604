"""Products and convolutions of bfloat16 in whole programs: as close to float64 as eager PyTorch, whatever they read."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import torchipu
from torchipu.host.emit.vectors import has_bfloat_products
from torchipu.host.planner import Planner

pytestmark = [
    pytest.mark.filterwarnings("ignore:torchipu. torch.bfloat16 does not exist"),
    pytest.mark.skipif(not has_bfloat_products(), reason="this processor does not multiply bfloat16"),
]
B = torch.bfloat16
Function = Callable[..., torch.Tensor]


def compiled(function: Function, **options: object) -> Function:
    torch._dynamo.reset()
    made: Function = torch.compile(function, backend="ipu", dynamic=False, options=options)
    return made


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the kernels of the steps that plans are given, as they are given."""
    found: list[str] = []
    step = Planner.step

    def noted(self: Planner, kernel: Any, *operands: Any, **named: Any) -> None:
        found.append(kernel.name)
        step(self, kernel, *operands, **named)

    monkeypatch.setattr(Planner, "step", noted)
    return found


def off(result: torch.Tensor, exact: torch.Tensor) -> float:
    return float((result.detach().double() - exact.detach()).norm())


def strides_of(tensor: torch.Tensor) -> list[int]:
    """Return the strides that say where elements lie: not those from an only element to the next."""
    return [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]


def held_to_eager(function: Function, *inputs: torch.Tensor, **options: object) -> list[torch.Tensor]:
    """Hold results and gradients to float64, as close as eager's, and to the bits of other numbers of threads."""
    wide = [tensor.detach().double().requires_grad_(tensor.requires_grad) for tensor in inputs]
    exact = function(*wide)
    learned = [tensor for tensor in inputs if tensor.requires_grad]
    torch.manual_seed(3)
    along = torch.randn(exact.shape).to(B)

    def run(of: Function, given: list[torch.Tensor]) -> list[torch.Tensor]:
        result = of(*given)
        asked = [tensor for tensor in given if tensor.requires_grad]
        return [result, *(torch.autograd.grad(result, asked, along.to(result.dtype)) if asked else ())]

    expected, eager = run(function, wide), run(function, list(inputs))
    mine = [run(compiled(function, host_threads=threads, **options), list(inputs)) for threads in (1, 3)]
    for results in zip(*mine, expected, eager, strict=True):
        one, three, wanted, theirs = results
        assert one.dtype is theirs.dtype
        assert strides_of(one) == strides_of(theirs)
        assert torch.equal(one, three)
        assert off(one, wanted) <= 1.02 * off(theirs, wanted) + 1e-9
    assert len(mine[0]) == 1 + len(learned)
    return mine[0]


def drawn(*shape: int, learned: bool = False, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(shape) * scale).to(B).requires_grad_(learned)


@pytest.mark.parametrize("rows", [(1,), (3,), (2, 9), (70,)])
@pytest.mark.parametrize("activation", [None, F.gelu, F.silu, torch.relu])
def test_linear_layers_and_their_gradients(
    rows: tuple[int, ...], activation: Function | None, kernels: list[str],
) -> None:
    torch.manual_seed(0)
    x, weight, bias = drawn(*rows, 37, learned=True), drawn(45, 37, learned=True), drawn(45, learned=True)

    def layer(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        y = F.linear(x, weight, bias)
        return y if activation is None else activation(y)

    held_to_eager(layer, x, weight, bias)
    assert {"bfloat_matmul"} <= set(kernels)
    assert "matmul" not in kernels


def test_products_of_batches_and_products_of_products(kernels: list[str]) -> None:
    torch.manual_seed(0)
    a, b, c = drawn(5, 33, 20, learned=True), drawn(5, 20, 41, learned=True), drawn(41, 7, learned=True)
    held_to_eager(lambda a, b, c: (a @ b).softmax(-1) @ c, a, b, c)
    assert "matmul" not in kernels


def test_products_of_windows(kernels: list[str]) -> None:
    torch.manual_seed(0)
    x, y = drawn(3, 20, 13, learned=True), drawn(3, 20, 13, learned=True)
    held_to_eager(lambda x, y: (x[:, :12, None, :] @ y.unfold(1, 9, 1)).squeeze(2), x, y)
    assert "line_products" not in kernels


def test_a_product_of_floats_is_none_of_bfloats(kernels: list[str]) -> None:
    a, b = torch.randn(9, 20), torch.randn(20, 33)
    compiled(lambda a, b: (a @ b).to(B))(a, b)
    assert "matmul" in kernels
    kernels.clear()
    compiled(lambda a, b: a.float() @ b)(a.to(B), b)
    assert "matmul" in kernels


def test_what_autocast_multiplies_is_of_bfloats(kernels: list[str]) -> None:
    def layer(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", B):
            return F.linear(x, weight).relu()

    x, weight = torch.randn(9, 20), torch.randn(33, 20)
    result = compiled(layer)(x, weight)
    assert "bfloat_matmul" in kernels
    exact = (x.to(B).double() @ weight.to(B).double().t()).relu()
    assert result.dtype is B
    assert off(result, exact) <= 1.02 * off(layer(x, weight), exact)


def test_strict_numerics_multiplies_floats(kernels: list[str]) -> None:
    x, weight = drawn(9, 20), drawn(33, 20)
    result = compiled(F.linear, strict_numerics=True)(x, weight)
    assert not any(name.startswith("bfloat") for name in kernels)
    torch.testing.assert_close(result.double(), F.linear(x.double(), weight.double()), atol=0, rtol=2.0**-8)


@pytest.mark.parametrize("kind", ["frozen", "trained"])
def test_a_perceptron_in_steps(kind: str, kernels: list[str]) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(40, 64), torch.nn.GELU(), torch.nn.Linear(64, 10)).to(B)
    x, y = drawn(16, 40), torch.randint(10, (16,))
    wide, narrow = (torch.nn.Sequential(*(type(m)(*_sizes(m)) for m in model)).to(d) for d in (torch.double, B))
    for other in (wide, narrow):
        other.load_state_dict(model.state_dict())
    if kind == "frozen":
        step = torchipu.InferenceStep(model, torchipu.Options(frozen_weights=True))
        exact = wide(x.double())
        assert off(step(x), exact) <= off(narrow(x), exact)
        kernels.clear()
        step(x)
        assert not kernels
        return

    class Loss(torch.nn.Module):
        def __init__(self, inner: torch.nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(self.inner(x), y)

    trained = torchipu.TrainStep(Loss(model), torch.optim.SGD(model.parameters(), lr=0.5))
    trained(x, y)
    for other, given in ((wide, x.double()), (narrow, x)):
        F.cross_entropy(other(given), y).backward()
        torch.optim.SGD(other.parameters(), lr=0.5).step()
    for mine, exact, theirs in zip(model.parameters(), wide.parameters(), narrow.parameters(), strict=True):
        assert off(mine, exact) <= 1.1 * off(theirs, exact) + 1e-6
    assert "bfloat_matmul" in kernels


def _sizes(module: torch.nn.Module) -> tuple[int, ...]:
    return (module.in_features, module.out_features) if isinstance(module, torch.nn.Linear) else ()


CONVOLUTIONS = {
    "of a pixel": ((3, 20, 9, 7), (33, 20, 1, 1), {}),
    "of a pixel in a line": ((3, 20, 19), (33, 20, 1), {}),
    "with steps": ((2, 20, 9, 8), (33, 20, 1, 1), {"stride": 2}),
    "patches": ((2, 3, 16, 24), (40, 3, 8, 8), {"stride": 8}),
    "patches that leave pixels over": ((2, 3, 19, 23), (40, 3, 4, 5), {"stride": (4, 6)}),
    "patches of a line": ((2, 6, 22), (40, 6, 4), {"stride": 5}),
    "of columns": ((2, 6, 5, 22), (40, 6, 5, 2), {"stride": 2}),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("order", ["row-major", "channels last"])
@pytest.mark.parametrize("learned", [False, True])
def test_convolutions_whose_windows_share_no_pixel(
    name: str, has_bias: bool, order: str, learned: bool, kernels: list[str],
) -> None:
    sizes, window, options = CONVOLUTIONS[name]
    if order == "channels last" and len(sizes) == 3:
        pytest.skip("of two dimensions alone")
    torch.manual_seed(0)
    x, weight = drawn(*sizes), drawn(*window, scale=0.3)
    if order == "channels last":
        x = x.contiguous(memory_format=torch.channels_last)
    x, weight = x.requires_grad_(learned), weight.requires_grad_(learned)
    convolve = F.conv1d if len(sizes) == 3 else F.conv2d
    bias = [drawn(window[0], learned=learned)] if has_bias else []
    held_to_eager(lambda x, weight, *bias: convolve(x, weight, *bias, **options), x, weight, *bias)
    assert "bfloat_matmul" in kernels


@pytest.mark.parametrize(("lies", "expected"), [
    ((0, 1, 2, 3), ["bfloat_pack", "bfloat_matmul"]), ((0, 2, 3, 1), ["bfloat_pack", "bfloat_matmul"]),
    ((0, 3, 2, 1), ["transpose", "bfloat_pack", "bfloat_matmul"]),
    ((0, 1, 3, 2), ["transpose", "bfloat_pack", "bfloat_matmul"]),
])
def test_pixels_are_read_as_they_lie_where_they_follow_one_another(
    lies: tuple[int, ...], expected: list[str], kernels: list[str],
) -> None:
    """Of a square image, pixels that lie column by column are as far apart as those that lie row by row."""
    torch.manual_seed(0)
    shape, weight = (3, 20, 8, 8), drawn(33, 20, 1, 1)
    whole = drawn(*(shape[dim] for dim in lies))
    held_to_eager(F.conv2d, whole.permute(*(lies.index(dim) for dim in range(4))), weight)
    assert kernels == 2 * expected


def test_convolutions_with_frozen_weights(kernels: list[str]) -> None:
    torch.manual_seed(0)
    model = torch.nn.Conv2d(3, 48, 8, 8).to(B).requires_grad_(requires_grad=False)
    x = drawn(2, 3, 32, 32)
    made = compiled(model, frozen_weights=True)
    exact = F.conv2d(x.double(), model.weight.double(), model.bias.double(), 8)
    assert off(made(x), exact) <= 1.02 * off(model(x), exact)
    assert "bfloat_matmul" in kernels


def test_other_processors_multiply_floats() -> None:
    code = (
        "import torch, torchipu\n"
        "from torchipu.host.emit.vectors import has_bfloat_products\n"
        "assert not has_bfloat_products()\n"
        "x, w = (torch.randn(9, 9).bfloat16() for _ in range(2))\n"
        "found = torch.compile(torch.mm, backend='ipu')(x, w)\n"
        "torch.testing.assert_close(found.double(), x.double() @ w.double(), atol=1e-6, rtol=2.0**-8)\n"
    )
    environment = {**os.environ, "TORCHIPU_ISA": "avx2"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_host_and_tiles_agree_on_products_of_bfloats() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(24, 40), torch.nn.GELU(), torch.nn.Linear(40, 8)).to(B)
    torchipu.check(model, drawn(6, 24)).raise_for_difference()
