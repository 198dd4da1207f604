"""Calls that torch would take apart, or cannot capture, and what stands in for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch.fx import GraphModule

from torchipu.capture import criteria

REPLACEMENTS: Mapping[Any, Callable[..., Any]] = criteria.CALLS


def replace_calls(module: GraphModule) -> GraphModule:
    """Put our functions in place of torch's in a torch-level graph and in the graphs that it holds."""
    for part in module.modules():
        if not isinstance(part, GraphModule):
            continue
        for node in part.graph.nodes:
            if node.op == "call_function" and node.target in REPLACEMENTS:
                node.target = REPLACEMENTS[node.target]
        part.recompile()
    return module
