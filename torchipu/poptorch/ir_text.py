"""The program's ops in the form in which PopART shows them."""

from __future__ import annotations

import logging
from typing import Any

from torchipu.compiler import Compiled
from torchipu.ir.graph import Tensor
from torchipu.ir.types import DType
from torchipu.poptorch._logging import logger
from torchipu.poptorch.anchors import op_names, op_type
from torchipu.poptorch.options import Options

DTYPES = {
    DType.HALF: "float16", DType.FLOAT: "float32", DType.INT: "int32", DType.LONG: "int32", DType.SHORT: "int16",
    DType.CHAR: "int8", DType.UNSIGNED_CHAR: "uint8", DType.BOOL: "bool",
}


def popart_ir(compiled: Compiled) -> dict[str, list[dict[str, Any]]]:
    """Return ``{"maingraph": [ops]}``; an op has name, type, attributes (all of them text), inputs and outputs."""
    ops = []
    for name, op in op_names(compiled.graph):
        attributes = {key: str(value) for key, value in op.attrs.items()}
        if op.placement is not None:
            attributes["__pipeline_stage"] = str(op.placement.stage)
            attributes["__ipu_number"] = str(op.placement.ipu)
        ops.append({
            "name": name, "type": op_type(op), "domain": "ai.graphcore" if op.target.startswith("ipu") else "ai.onnx",
            "attributes": attributes, "inputs": [_tensor(t, n) for n, t in enumerate(op.inputs)],
            "outputs": [_tensor(t, n) for n, t in enumerate(op.outputs)],
        })
    return {"maingraph": ops}


def log_ops(compiled: Compiled, options: Options) -> None:
    """Write a line of the debug log for each op, with its block's place."""
    if not logger.isEnabledFor(logging.DEBUG):
        return
    mode = type(options._execution_strategy).__name__.removesuffix("Execution")
    stages = {op.placement.stage for op in compiled.graph.ops if op.placement is not None}
    is_pipelined = mode == "Pipelined" and len(stages) > 1
    logger.debug("enablePipelining set to value %d", is_pipelined)
    for name, op in op_names(compiled.graph):
        if op.placement is not None and op.outputs:
            result = op.outputs[0]
            logger.debug(
                "%s [%s(%s), mode(%s), ipu(%d), stage(%d)]", numbered(name), DTYPES[result.dtype],
                ", ".join(map(str, result.shape)), mode, op.placement.ipu, op.placement.stage,
            )


def numbered(name: str) -> str:
    """Return an op's name with the number of its first result: ``scope/Type:0``, then what tells it from its like."""
    base, slash, last = name.rpartition("/")
    return f"{base}:0/{last}" if slash and last.isdigit() else f"{name}:0"


def _tensor(tensor: Tensor, index: int) -> dict[str, str]:
    shape = f"[{' '.join(map(str, tensor.shape))}]"
    return {"name": tensor.name, "index": str(index), "type": tensor.dtype.text, "shape": shape}
