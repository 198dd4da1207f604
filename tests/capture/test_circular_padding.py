"""Circular padding joins pieces, and gives what eager PyTorch gives."""

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


def test_nothing_is_copied_into_a_copy_of_all() -> None:
    targets: list[str] = []

    def keep(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        targets.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return make_boxed_func(graph.forward)

    torch._dynamo.reset()
    with whole():
        compiled = torch.compile(lambda x: F.pad(x, (1, 1, 1, 1), "circular"), backend=aot_autograd(fw_compiler=keep))
        compiled(torch.randn(1, 1, 4, 5))
    assert targets.count("aten.cat.default") == 2
    assert not any("scatter" in target or "copy" in target for target in targets)
