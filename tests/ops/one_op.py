"""Programs of one ATen call, made by the importer and the compiler as those of whole models are, without tracing."""

from __future__ import annotations

import dataclasses
import functools
import logging
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule
from torch.utils import _pytree as pytree

from tests.ops.cases.drawing import Call
from torchipu.capture.fx_import import Imported, import_graph
from torchipu.compiler import compile_graph
from torchipu.host.executor import GraphExecutor
from torchipu.ir.types import Leg
from torchipu.options import Options
from torchipu.target import Target, lookup_target


def overload_of(target: str) -> Callable[..., Any]:
    """Return what runs a target in eager mode."""
    namespace, name, overload = target.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), name), overload)  # type: ignore[no-any-return]


def run_eager(call: Call) -> list[torch.Tensor | None]:
    """Return eager's results; None for those that it leaves out."""
    results = overload_of(call.target)(*call.args, **call.kwargs)
    return list(results) if isinstance(results, (tuple, list)) else [results]


def tensors_of(call: Call) -> list[torch.Tensor]:
    """Return the tensors among the arguments, in order."""
    return [leaf for leaf in pytree.tree_leaves((call.args, call.kwargs)) if isinstance(leaf, torch.Tensor)]


def changed(call: Call, change: Callable[[torch.Tensor], torch.Tensor]) -> Call:
    """Return the call with other tensors in its place."""
    args, kwargs = pytree.tree_map_only(torch.Tensor, change, (call.args, dict(call.kwargs)))
    return Call(call.target, args, kwargs)


class Traced(NamedTuple):
    """A call with tensors without values.

    Attributes:
        call: The call that it stands for.
        faked: The same with fake tensors.
        results: What torch expects of the results: types, shapes and strides.
    """

    call: Call
    faked: Call
    results: list[torch.Tensor | None]


_traced: dict[int, Traced] = {}
"""By the number of the call: whether one can be traced is asked before it is imported, often for several machines."""
_mode = functools.cache(FakeTensorMode)


def traced(call: Call) -> Traced:
    """Trace a call; raises where torch cannot."""
    if id(call) not in _traced:  # a call that is there is held, so that no other has its number
        logs = logging.getLogger(FakeTensorMode.__module__)
        was, logs.disabled = logs.disabled, True  # what cannot be traced is raised; torch would write the stack besides
        try:
            with _mode():
                faked = changed(call, lambda value: torch.empty_strided(value.shape, value.stride(), dtype=value.dtype))
                _traced[id(call)] = Traced(call, faked, run_eager(faked))
        finally:
            logs.disabled = was
    return _traced[id(call)]


class _Unwritten(GraphModule):
    """A graph that is only read: nobody runs it, so that no code is written for it."""

    def recompile(self) -> Any:
        return None


def imported(call: Call) -> Imported:
    """Import the call as the only one of a graph; of its tensors only types, shapes and strides matter."""
    graph = Graph()
    _, faked, results = traced(call)

    def placeholder(value: torch.Tensor) -> Any:
        node = graph.placeholder(f"x{len(graph.nodes)}")
        node.meta["val"] = value
        return node

    args, kwargs = pytree.tree_map_only(torch.Tensor, placeholder, (faked.args, dict(faked.kwargs)))
    overload: Any = overload_of(call.target)
    node = graph.call_function(overload, args, kwargs)
    several = len(overload._schema.returns) != 1 or str(overload._schema.returns[0].type).startswith("List")
    node.meta["val"] = list(results) if several else results[0]
    if not several:
        returned: list[Any] = [node]
    else:
        returned = []
        for place, result in enumerate(results):
            if result is not None:
                returned.append(graph.call_function(operator.getitem, (node, place)))
                returned[-1].meta["val"] = result
    graph.output(tuple(returned))
    return import_graph(_Unwritten(torch.nn.Module(), graph), name="one", leg=Leg.FORWARD)


class Program:
    """A compiled call.

    Args:
        call: The call.
        tiles: Of the machine.
        threads: Of the host.
    """

    def __init__(self, call: Call, *, tiles: int = 1472, threads: int = 1) -> None:
        self.imported = imported(call)
        target: Target = dataclasses.replace(lookup_target("mk2"), num_tiles=tiles)
        options = Options(allow_out_of_memory=True)
        self.compiled = compile_graph(self.imported.graph, options, target)
        self.executor = GraphExecutor(self.compiled.graph, self.imported.constants, threads=threads, seed=5)

    @property
    def is_generic(self) -> bool:
        """Whether the call runs through the generic codelet."""
        return bool(self.imported.generic_targets)

    def run(self, call: Call, *, threads: int = 1) -> list[torch.Tensor]:
        """Return the results for the tensors of a call of the same types and shapes."""
        self.executor.threads, self.executor.calls = threads, 0
        place = dict(zip(self.imported.placeholders, tensors_of(call), strict=True))
        outputs = dict(zip(self.imported.graph.outputs, self.executor(
            *(place[tensor] for tensor in self.executor.arguments),
        ), strict=True))
        return [outputs[value] if value in outputs else place[value] for value in self.imported.results]
