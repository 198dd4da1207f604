"""What a forward saves for its backward lies in one block where there are many small values."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from torchipu.backend.saved_block import SavedBlock
from torchipu.errors import CaptureError
from torchipu.host.output_memory import Room
from torchipu.host.packing import LARGEST_BYTES, Packing

OPTIONS = {"allow_out_of_memory": True, "host_threads": 2}


class Steps(nn.Module):
    """A loop over steps that saves some small values at each, masks and indices among them."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.gate = nn.Linear(12, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, found = x.new_zeros(len(x), 8), []
        for t in range(x.shape[1]):
            h = torch.tanh(self.cell(torch.cat([x[:, t], h], 1)))
            h = torch.where(h > 0.3, h * h, torch.sigmoid(self.gate(h)))
            found.append(h.max(1).values)
        return torch.stack(found, 1)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(3)
    yield
    torch._dynamo.reset()


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> list[SavedBlock | None]:
    """Return what each graph that is trained is found to save in."""
    made: list[SavedBlock | None] = []
    plain = SavedBlock.of

    def of(*args: object) -> SavedBlock | None:
        made.append(plain(*args))
        return made[-1]

    monkeypatch.setattr(SavedBlock, "of", of)
    return made


def trained(model: nn.Module) -> nn.Module:
    """Return a compiled model whose next call saves a block."""
    compiled = torch.compile(model, backend="ipu", options=OPTIONS)
    for _ in range(4):
        compiled(torch.randn(5, 6, 4)).sum().backward()
    model.zero_grad()
    return compiled


def judged(model: nn.Module, x: torch.Tensor, result: torch.Tensor, times: int = 1) -> None:
    """Compare results and gradients, of so many equal backwards, with eager PyTorch in float64."""
    exact = copy.deepcopy(model).double()
    exact.zero_grad()
    wanted = exact(x.double())
    wanted.square().sum().backward()
    torch.testing.assert_close(result.double(), wanted, rtol=1e-5, atol=1e-6)
    for mine, one in zip(model.parameters(), exact.parameters(), strict=True):
        assert mine.grad is not None
        assert one.grad is not None
        torch.testing.assert_close(mine.grad.double(), times * one.grad, rtol=1e-4, atol=1e-5)


def saved_by(result: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return result.grad_fn.saved_tensors  # type: ignore[union-attr]


def test_gradients_are_those_of_float64_at_each_call(blocks: list[SavedBlock | None]) -> None:
    model = Steps()
    compiled = torch.compile(model, backend="ipu", options=OPTIONS)
    for _ in range(5):
        model.zero_grad()
        x = torch.randn(5, 6, 4)
        result = compiled(x)
        result.square().sum().backward()
        judged(model, x, result)
    assert len(blocks) == 1
    assert blocks[0] is not None


def test_a_block_is_a_tensor_of_bytes_and_the_rest_is_saved_apart() -> None:
    model = Steps()
    compiled = torch.compile(model, backend="ipu", options=OPTIONS)
    x = torch.randn(5, 6, 4)
    apart = len(saved_by(compiled(x)))
    compiled = trained(model)
    saved = saved_by(compiled(x))
    assert len(saved) < apart / 3
    assert [value.dtype for value in saved].count(torch.uint8) == 1


def test_other_strides_and_sizes_are_saved_as_tensors() -> None:
    model = Steps()
    compiled = trained(model)
    for x in (torch.randn(6, 5, 4).transpose(0, 1), torch.randn(3, 6, 4), torch.randn(5, 6, 4)):
        model.zero_grad()
        result = compiled(x)
        result.square().sum().backward()
        judged(model, x, result)


def test_a_graph_that_is_kept_gives_its_gradients_twice() -> None:
    model, x = Steps(), torch.randn(5, 6, 4)
    result = trained(model)(x)
    result.square().sum().backward(retain_graph=True)
    result.square().sum().backward()
    judged(model, x, result, times=2)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        result.square().sum().backward()


def test_gradients_in_another_order_are_brought_in_order() -> None:
    model, x = Steps(), torch.randn(5, 6, 4)
    result = trained(model)(x)
    result.backward((2 * result.detach()).t().contiguous().t())
    judged(model, x, result)


def test_gradients_of_other_types_are_left_to_autograd() -> None:
    result = trained(Steps())(torch.randn(5, 6, 4))
    with pytest.raises(RuntimeError, match="guessed its\nmetadata incorrectly"):
        result.backward(nn.Parameter(torch.ones(5, 6)))


def test_two_forwards_before_their_backwards_have_blocks_of_their_own() -> None:
    model = Steps()
    compiled = trained(model)
    xs = torch.randn(5, 6, 4), torch.randn(5, 6, 4)
    results = [compiled(x) for x in xs]
    for x, result in zip(xs, results, strict=True):
        model.zero_grad()
        result.square().sum().backward()
        judged(model, x, result)


@pytest.mark.parametrize("wrapped", ["ipu", "eager"])
def test_compiled_autograd_reads_what_lies_in_a_block(wrapped: str) -> None:
    model, x = Steps(), torch.randn(5, 6, 4)
    result = trained(model)(x)
    assert torch.uint8 in [value.dtype for value in saved_by(result)]
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend=wrapped)):
        result.square().sum().backward()
    judged(model, x, result)


def test_hooks_have_each_value_as_a_tensor() -> None:
    model, x = Steps(), torch.randn(5, 6, 4)
    compiled, seen = trained(model), list[torch.dtype]()

    def pack(value: torch.Tensor) -> torch.Tensor:
        seen.append(value.dtype)
        return value.clone()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
        result = compiled(x)
    result.square().sum().backward()
    judged(model, x, result)
    assert torch.uint8 not in seen
    assert len(seen) > 12


@pytest.mark.parametrize("reentrant", [False, True])
def test_layers_of_one_graph_are_computed_again_in_turn(reentrant: bool) -> None:
    """The first layer's backward lets the next forward save a block; that of the second layer had none."""

    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Layer() for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=reentrant)
            return x

    class Layer(Steps):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * super().forward(x)[..., None]

    model = Layers()
    exact = copy.deepcopy(model)
    for layer in model.layers:
        layer.compile(backend="ipu", options=OPTIONS)
    for _ in range(3):
        model.zero_grad()
        exact.zero_grad()
        x = torch.randn(5, 6, 4)
        model(x.requires_grad_()).square().sum().backward()
        exact(x.detach().requires_grad_()).square().sum().backward()
        for mine, one in zip(model.parameters(), exact.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, one.grad, rtol=1e-4, atol=1e-5)


def test_anomaly_mode_and_the_profiler_have_the_same_gradients() -> None:
    model, x = Steps(), torch.randn(5, 6, 4)
    compiled = trained(model)
    with torch.autograd.detect_anomaly(check_nan=False):
        result = compiled(x)
        result.square().sum().backward()
    judged(model, x, result)
    model.zero_grad()
    result = compiled(x)
    with torch.profiler.profile():
        result.square().sum().backward()
    judged(model, x, result)


def test_a_second_derivative_is_refused_as_before() -> None:
    model, x = Steps(), torch.randn(5, 6, 4)
    result = trained(model)(x)
    grads = torch.autograd.grad(result.square().sum(), list(model.parameters()), create_graph=True)
    with pytest.raises(CaptureError, match="a gradient of its gradient is asked for"):
        grads[0].square().sum().backward()


def test_a_block_is_gone_with_what_was_recorded() -> None:
    result = trained(Steps())(torch.randn(5, 6, 4))
    block = next(value for value in saved_by(result) if value.dtype is torch.uint8)
    gone = weakref.ref(block.untyped_storage())
    del block
    result.sum().backward()
    del result
    gc.collect()
    assert gone() is None


def test_threads_have_blocks_of_their_own() -> None:
    model = Steps()
    compiled, wrong = trained(model), list[float]()

    def run(number: int) -> None:
        x = torch.randn(5, 6, 4, generator=torch.Generator().manual_seed(number), requires_grad=True)
        exact = copy.deepcopy(model).double()
        (wanted,) = torch.autograd.grad(exact(y := x.detach().double().requires_grad_()).square().sum(), y)
        for _ in range(20):
            (found,) = torch.autograd.grad(compiled(x).square().sum(), x)
            wrong.append((found - wanted).abs().max().item())

    xs = torch.randn(5, 6, 4, requires_grad=True)
    for _ in range(4):
        compiled(xs).sum().backward()
    model.zero_grad()
    running = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert len(wrong) == 80
    assert max(wrong) < 1e-5


def test_few_values_and_large_ones_are_tensors(blocks: list[SavedBlock | None]) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    trained(model)
    assert blocks == [None]
    rooms = [*[Room.of((16,), torch.float32)] * 9, Room.of((LARGEST_BYTES,), torch.float32)]
    packing = Packing.of(rooms, range(1, 10))
    assert packing is not None
    assert packing.offsets == (-1, *range(0, 512, 64), -1)
    assert [room.num_bytes for room in packing.made] == [64, 4 * LARGEST_BYTES, 512]
    assert packing.place(9) == 1
    assert Packing.of(rooms, range(3)) is None
