"""How a sample reaches the backend: through torch.compile, or the way that Dynamo would call the backend."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._functorch.aot_autograd import aot_function, make_boxed_func
from torch.utils import _pytree as pytree

from tests.opinfo.samples import Case
from torchipu.backend import ipu_backend

OPTIONS: dict[str, object] = {"host_threads": 1}


class _Module(torch.nn.Module):
    def __init__(self, function: Callable[..., list[Any]]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: torch.Tensor) -> list[Any]:
        return self.function(*tensors)


def is_through_dynamo(case: Case, index: int, fraction: float) -> bool:
    """Whether a sample goes through torch.compile; the same answer at each call."""
    return zlib.crc32(f"{case.name} {case.dtype} {index}".encode()) % 1000 < 1000 * fraction


def through_dynamo(
    function: Callable[..., Any], *, fullgraph: bool = True, backend: Any = "ipu",
) -> Callable[..., list[Any]]:
    """Compile as a user would."""
    torch._dynamo.reset()
    options = OPTIONS if backend == "ipu" else None
    return torch.compile(
        lambda *tensors: flat(function(*tensors)), backend=backend, fullgraph=fullgraph, dynamic=False, options=options,
    )


def directly(function: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> Callable[..., list[Any]]:
    """Compile as Dynamo does once it has traced."""
    return ipu_backend(_Module(lambda *given: flat(function(*given))), list(tensors), options=OPTIONS)


def traced_by_torch(function: Callable[..., Any]) -> Callable[..., list[Any]]:
    """Trace with AOT autograd at the first call, and run the graphs with eager; raises where torch cannot trace."""
    def keep(graph: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        return make_boxed_func(graph)

    return aot_function(lambda *given: flat(function(*given)), fw_compiler=keep, bw_compiler=keep)


def flat(returned: Any) -> list[Any]:
    """Return the leaves of a result."""
    return pytree.tree_leaves(returned)
