"""Calls that torch would take apart, or cannot capture, and what stands in for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import GraphModule

from torchipu.capture import assertions, criteria, flex_attention, least_squares, recurrence, substitutes
from torchipu.capture.collectives import in_place_calls
from torchipu.capture.control import keep_operands_apart
from torchipu.capture.fx_source import line_in
from torchipu.capture.written_state import tell_writes
from torchipu.errors import CaptureError

RECURRENT: Mapping[Any, Callable[..., Any]] = {
    torch._VF.lstm: recurrence.lstm,
    torch._VF.gru: recurrence.gru,
    torch._VF.rnn_tanh: recurrence.rnn_tanh,
    torch._VF.rnn_relu: recurrence.rnn_relu,
}
REPLACEMENTS: Mapping[Any, Callable[..., Any]] = {
    **criteria.CALLS, **RECURRENT, F.gaussian_nll_loss: substitutes.gaussian_nll_loss,
    torch.bincount: substitutes.bincount, torch.Tensor.bincount: substitutes.bincount,
    torch.cov: substitutes.cov, torch.Tensor.cov: substitutes.cov, torch.combinations: substitutes.combinations,
    torch.corrcoef: substitutes.corrcoef, torch.Tensor.corrcoef: substitutes.corrcoef,
    torch.Tensor.random_: substitutes.random_, torch.ops.higher_order.flex_attention: flex_attention.attention,
    torch.linalg.lstsq: least_squares.lstsq, **assertions.TRACED, **in_place_calls(),
}

PAD = "pad the sequences to one length, give the layer [T, N, C] and mask what lies behind their ends"


def replace_calls(module: GraphModule) -> GraphModule:
    """Put our functions in place of torch's in a torch-level graph and in the graphs that it holds."""
    for part in module.modules():
        if not isinstance(part, GraphModule):
            continue
        tell_writes(part)
        keep_operands_apart(part)
        for node in part.graph.nodes:
            if node.op == "call_function":
                node.target = stand_in(node.target, node.args, node.meta.get("stack_trace") or "")
        part.recompile()
    return module


def stand_in(function: Callable[..., Any], args: Sequence[Any], trace: str = "") -> Callable[..., Any]:
    """Return what to call in place of a function of torch, or the function itself.

    Args:
        function: What is called.
        args: Its positional arguments.
        trace: Stack trace of the call.

    Raises:
        CaptureError: A recurrent layer is given packed sequences.
    """
    if function in RECURRENT and isinstance(args[3], (list, tuple)):  # the weights are one argument further
        raise CaptureError(
            "packed sequences: the batch of each time step has a size of its own", source=line_in(trace), remedy=PAD,
        )
    return REPLACEMENTS.get(function, function)
