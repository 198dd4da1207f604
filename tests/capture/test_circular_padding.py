"""Circular padding is one op each way, and gives what eager PyTorch gives."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func

from torchipu.capture.whole_ops import whole

PADDINGS = {1: [2, 3], 2: [1, 0, 4, 2], 3: [1, 2, 0, 3, 2, 1]}


@pytest.mark.parametrize("dims", PADDINGS)
@pytest.mark.parametrize("cut", [False, True])
def test_results_and_gradients_are_those_of_eager_pytorch(dims: int, cut: bool) -> None:
    padding = [-width if cut and place % 2 else width for place, width in enumerate(PADDINGS[dims])]
    x = torch.randn(2, 3, *(7, 6, 5)[:dims], generator=torch.Generator().manual_seed(dims), requires_grad=True)
    torch._dynamo.reset()
    result = torch.compile(lambda x: F.pad(x, padding, "circular"), backend="ipu", fullgraph=True)(x)
    weights = torch.randn(result.shape, generator=torch.Generator().manual_seed(1))
    (gradient,) = torch.autograd.grad((result * weights).sum(), x)
    wanted = F.pad(x, padding, "circular")
    assert torch.equal(result, wanted)
    (exact,) = torch.autograd.grad((wanted.double() * weights.double()).sum(), x)
    torch.testing.assert_close(gradient, exact.float())


@pytest.mark.parametrize("dtype", [torch.float16, torch.int64, torch.bool, torch.complex64])
@pytest.mark.parametrize("layout", ["dense", "channels last", "every other"])
def test_all_types_and_layouts_are_padded(dtype: torch.dtype, layout: str) -> None:
    x = (torch.randn(2, 3, 7, 6, generator=torch.Generator().manual_seed(0)) * 5).to(dtype)
    x = x.to(memory_format=torch.channels_last) if layout == "channels last" else x
    x = x[..., ::2] if layout == "every other" else x
    torch._dynamo.reset()
    result = torch.compile(lambda x: F.pad(x, (1, 2, 3, 0), "circular"), backend="ipu", fullgraph=True)(x)
    assert torch.equal(result, F.pad(x, (1, 2, 3, 0), "circular"))


@pytest.mark.parametrize("padding", [(5, 5, 4, 4), (2, -3, -1, 1), (-1, -1, 0, 0), (0, 0, 0, 0)])
def test_all_of_a_dimension_or_nothing_may_be_repeated(padding: tuple[int, ...]) -> None:
    x = torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(0))
    x[0, 1, 2], x[1, 3, 4] = torch.nan, torch.inf
    torch._dynamo.reset()
    result = torch.compile(lambda x: F.pad(x, padding, "circular") + 0, backend="ipu", fullgraph=True)(x)
    torch.testing.assert_close(result, F.pad(x, padding, "circular"), rtol=0, atol=0, equal_nan=True)


def test_the_op_and_its_gradients_are_what_torch_makes_of_its_definition() -> None:
    x = torch.randn(2, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    padding = [2, -1, 3, 1]
    assert torch.equal(torch.ops.ipu.circular_pad(x, padding), F.pad(x, padding, "circular"))
    assert torch.autograd.gradcheck(lambda x: torch.ops.ipu.circular_pad(x, padding), x)
    assert torch.autograd.gradgradcheck(lambda x: torch.ops.ipu.circular_pad(x.sin(), padding), x)


def test_vmap_takes_it_apart() -> None:
    x = torch.randn(3, 2, 4, 5, generator=torch.Generator().manual_seed(0))
    mapped = torch.vmap(lambda x: F.pad(x, (1, 1, 1, 1), "circular") * 2)
    torch._dynamo.reset()
    assert torch.equal(torch.compile(mapped, backend="ipu")(x), mapped(x))


def test_it_is_one_op_each_way() -> None:
    targets: list[str] = []

    def keep(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        targets.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return make_boxed_func(graph.forward)

    torch._dynamo.reset()
    x = torch.randn(1, 1, 4, 5, requires_grad=True)
    with whole():
        compiled = torch.compile(lambda x: F.pad(x, (1, 1, 1, 1), "circular"), backend=aot_autograd(fw_compiler=keep))
        compiled(x).sum().backward()
    assert targets.count("ipu.circular_pad.default") == targets.count("ipu.circular_pad_backward.default") == 1
    assert not any("scatter" in target or "cat" in target.split(".") for target in targets)
