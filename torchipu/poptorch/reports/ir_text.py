"""The program's ops in the form in which PopART shows them."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torchipu.compiler import Compiled
from torchipu.ir.graph import Graph, Op, Placement, Tensor
from torchipu.ir.program import Executable
from torchipu.ir.text import format_graph
from torchipu.ir.types import DType, Leg, Role
from torchipu.poptorch._logging import TRACE, logger
from torchipu.poptorch.operators.multi_conv import MULTI_CONV
from torchipu.poptorch.options import Options
from torchipu.poptorch.options.strategies import _IExecutionStrategy, _PhasedExecution
from torchipu.poptorch.reports.anchors import LOGGED_TYPES, op_names, op_type

DTYPES = {
    DType.HALF: "float16", DType.FLOAT: "float32", DType.INT: "int32", DType.LONG: "int32", DType.SHORT: "int16",
    DType.CHAR: "int8", DType.UNSIGNED_CHAR: "uint8", DType.BOOL: "bool",
}


EXPORT_VARIABLE = "POPTORCH_EXPORT_PROTO_FILE"
MAX_GRAPH_LENGTH = 10_000
"""Characters of a graph in the log, unless ``POPTORCH_MAX_GRAPH_LEN`` says otherwise. Source: PopTorch, recalled."""
ATTRIBUTES = {"available_memory": "availableMemoryProportion", "partials": "partialsType"}
"""PopART's name of an attribute where it is not ATen's or the user's."""
CONVOLUTIONS = ("Conv", "ConvolutionBackward")
ADAM = ("ipu.adam.default", "ipu.adamw.default", "ipu.lamb.default")
SGD0, SGD1, SGD2 = "SGD0VarUpdate", "SGD1VarUpdate", "SGD2VarUpdate"
"""PopART's updates by SGD: without any state, with one tensor for accumulator and velocity, and with two."""
STATES_OF_SGD = ("momentum_buffer", "acc_sum")
UPDATERS = {"AdamVarUpdate": "AdamUpdater", SGD1: "SGD1AcclUpdate", SGD2: "SGD2PartialAcclUpdate"}
"""What PopART shows of an update beside its last op: the one that makes the step of its states."""


def popart_ir(compiled: Compiled, *, is_combined: bool = False) -> dict[str, list[dict[str, Any]]]:
    """Return ``{"maingraph": [ops]}``; an op has name, type, attributes (all of them text), inputs and outputs.

    Args:
        compiled: The program.
        is_combined: Whether SGD keeps one tensor for accumulator and velocity.
    """
    ops: list[dict[str, Any]] = []
    together: dict[tuple[str, Leg], dict[str, Any]] = {}
    for name, op in op_names(compiled.graph):
        kind = _type(op, is_combined)
        name = name.replace(SGD0, kind)
        if op.target in ADAM or kind in (SGD1, SGD2):
            ops.append(_updater(name, kind, op))
        attributes = {ATTRIBUTES.get(key, key): str(value) for key, value in op.attrs.items()}
        if op.placement is not None:
            attributes["__pipeline_stage"] = str(op.placement.stage)
            attributes["__ipu_number"] = str(op.placement.ipu)
        shown = {
            "name": name, "type": kind, "domain": "ai.graphcore" if op.target.startswith("ipu") else "ai.onnx",
            "attributes": attributes, "inputs": [_tensor(t, n) for n, t in enumerate(op.inputs)],
            "outputs": [_tensor(t, n) for n, t in enumerate(op.outputs)],
        }
        region = attributes.get(MULTI_CONV)
        if region is None or shown["type"] not in CONVOLUTIONS:
            ops.append(shown)
        elif (region, op.leg) in together:
            _join(together[region, op.leg], shown)
        else:
            together[region, op.leg] = shown
            ops.append(shown)
            shown["type"] = "MultiConv"
    return {"maingraph": [*ops, *_stashes(compiled.executable)]}


def _stashes(executable: Executable) -> Iterator[dict[str, Any]]:
    """Yield the ops that keep a tensor of a pipeline for the backward of its micro-batch, and those that fetch it."""
    for variable in executable.variables:
        if variable.depth > 1 and variable.role in (Role.INPUT, Role.ACTIVATION):
            shape = f"[{' '.join(map(str, variable.shape))}]"
            tensor = {"name": variable.name, "index": "0", "type": variable.dtype.text, "shape": shape}
            for kind, inputs, outputs in ("Stash", [tensor], []), ("Restore", [], [tensor]):
                yield {
                    "name": f"{variable.name}/{kind}", "type": kind, "domain": "ai.graphcore",
                    "attributes": {"stashSize": str(variable.depth)}, "inputs": inputs, "outputs": outputs,
                }


def _join(first: dict[str, Any], other: dict[str, Any]) -> None:
    """Add a convolution to those that PopART shows as one op."""
    for side in ("inputs", "outputs"):
        first[side] += [{**entry, "index": str(len(first[side]) + n)} for n, entry in enumerate(other[side])]


def _type(op: Op, is_combined: bool) -> str:
    """Return PopART's name of what an op computes; updates by SGD are told apart by their states."""
    kind = op_type(op)
    if kind != SGD0 or not any(tensor.name.startswith(STATES_OF_SGD) for tensor in op.inputs):
        return kind
    return SGD1 if is_combined else SGD2


def _updater(name: str, kind: str, op: Op) -> dict[str, Any]:
    """Return what PopART shows beside the last op of an update."""
    return {
        "name": name.replace(kind, UPDATERS[kind]), "type": UPDATERS[kind], "domain": "ai.graphcore",
        "attributes": {}, "inputs": [_tensor(t, n) for n, t in enumerate(op.inputs[1:])], "outputs": [],
    }


def show(compiled: Compiled, options: Options, *, is_combined: bool = False) -> None:
    """Write a program to where its user looks: the log, and the file that ``POPTORCH_EXPORT_PROTO_FILE`` names.

    Args:
        compiled: The program.
        options: The executor's.
        is_combined: As for `popart_ir`.
    """
    log_ops(compiled, options)
    if logger.isEnabledFor(TRACE):
        logger.log(TRACE, "Graph of the compiled model:\n%s", _shortened_text(compiled.graph))
    path = os.environ.get(EXPORT_VARIABLE)
    if not path:
        return
    text = json.dumps(popart_ir(compiled, is_combined=is_combined), indent=1)
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:  # what is only to be looked at is no reason for a training to end
        logger.warning("%s: the ops of the program are not written: %s", EXPORT_VARIABLE, error)
    else:
        logger.info("Wrote the ops of the program to %s", path)


def _shortened_text(graph: Graph) -> str:
    """Return the text of a graph, cut where ``POPTORCH_MAX_GRAPH_LEN`` says; 0 cuts nothing."""
    text = format_graph(graph)
    given = os.environ.get("POPTORCH_MAX_GRAPH_LEN", "")
    length = int(given) if given.lstrip("-").isdigit() else MAX_GRAPH_LENGTH
    if 0 < length < len(text):
        return f"{text[:length]}\n... ({len(text)} characters: POPTORCH_MAX_GRAPH_LEN=0 shows all)"
    return text


def log_ops(compiled: Compiled, options: Options) -> None:
    """Write a line of the debug log for each op, with its block's place."""
    if not logger.isEnabledFor(logging.DEBUG):
        return
    mode = type(options._execution_strategy).__name__.removesuffix("Execution")
    stages = {op.placement.stage for op in compiled.graph.ops if op.placement is not None}
    is_pipelined = mode == "Pipelined" and len(stages) > 1
    logger.debug("enablePipelining set to value %d", is_pipelined)
    strategy = options._execution_strategy
    if isinstance(strategy, _PhasedExecution):
        mode = "Phased"
        is_training = any(op.leg is Leg.BACKWARD for op in compiled.graph.ops)
        logger.debug("executionPhaseSettings.phases set to value %d", strategy.phases(is_training=is_training))
    for name, op in op_names(compiled.graph, LOGGED_TYPES):
        if op.placement is not None and op.outputs:
            result = op.outputs[0]
            logger.debug(
                "%s [%s(%s), mode(%s), ipu(%d), %s]", numbered(name), DTYPES[result.dtype],
                ", ".join(map(str, result.shape)), mode, op.placement.ipu, _time_of(op.placement, strategy),
            )


def _time_of(placement: Placement, strategy: _IExecutionStrategy) -> str:
    """Return when an op runs, as the log shows it."""
    is_forward = placement.leg is Leg.FORWARD
    stages = strategy._stages()
    first = placement.block.partition(" (")[0]
    if not isinstance(strategy, _PhasedExecution):
        # The strategy's number, in whose order a pipeline runs; a backward has no number there.
        return f"stage({stages[first]._stage_id if is_forward and first in stages else placement.stage})"
    phase = stages[first]._phase_id if first in stages else 0
    return f"phase({strategy.forward_phase(phase) if is_forward else strategy.backward_phase(phase)})"


def numbered(name: str) -> str:
    """Return an op's name with the number of its first result: ``scope/Type:0``, then what tells it from its like."""
    base, slash, last = name.rpartition("/")
    return f"{base}:0/{last}" if slash and last.isdigit() else f"{name}:0"


def _tensor(tensor: Tensor, index: int) -> dict[str, str]:
    shape = f"[{' '.join(map(str, tensor.shape))}]"
    return {"name": tensor.name, "index": str(index), "type": tensor.dtype.text, "shape": shape}
