"""Names of the tensors of a program in PopART's manner, and what `Options.anchorTensor` hands back of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torchipu.capture.gradient_scaling import LOSS_SCALE
from torchipu.host.resident import Returned
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.types import Leg, Role
from torchipu.poptorch.poptorch_core import createPoptorchError

OP_TYPES: Mapping[str, str] = {
    "mm": "MatMul", "bmm": "MatMul", "addmm": "MatMul", "linear": "MatMul", "convolution": "Conv", "t": "Transpose",
    "permute": "Transpose", "transpose": "Transpose", "view": "Reshape", "_unsafe_view": "Reshape",
    "native_batch_norm": "BatchNormalization", "native_layer_norm": "GroupNormalization",
    "native_group_norm": "GroupNormalization", "native_dropout": "Dropout", "_softmax": "Softmax",
    "_log_softmax": "LogSoftmax", "nll_loss_forward": "Nll", "embedding": "Gather", "mean": "ReduceMean",
    "sum": "ReduceSum", "max_pool2d_with_indices": "MaxPool", "cat": "Concat", "_to_copy": "Cast", "clone": "Identity",
    "sgd": "SGD0VarUpdate", "adam": "AdamVarUpdate", "adamw": "AdamVarUpdate", "rmsprop": "RMSPropUpdater",
    "rmsprop_tf": "RMSPropUpdater", "lamb": "AdamVarUpdate",
    "accumulate": "Accumulate", "all_reduce": "ReplicatedAllReduce", "l1_loss": "L1", "cos": "Cos", "sin": "Sin",
    "_native_batch_norm_legit_functional": "BatchNormalization", "_native_batch_norm_legit": "BatchNormalization",
    "_native_batch_norm_legit_no_training": "BatchNormalization",
    "native_batch_norm_backward": "BatchNormalizationGrad", "native_layer_norm_backward": "GroupNormalizationGrad",
    "native_group_norm_backward": "GroupNormalizationGrad", "nll_loss_backward": "NllGrad",
    "_softmax_backward_data": "SoftmaxGrad", "_log_softmax_backward_data": "LogSoftmaxGrad",
    "threshold_backward": "ReluGrad", "embedding_dense_backward": "GatherGrad",
    "max_pool2d_with_indices_backward": "MaxPoolGrad", "avg_pool2d": "AveragePool",
    "avg_pool2d_backward": "AveragePoolGrad", "ones": "Fill", "zeros": "Fill", "full": "Fill", "select": "Slice",
    "squeeze": "Reshape", "unsqueeze": "Reshape",
}
"""PopART's name of an op where it is not simply ATen's in capitals."""

LOGGED_TYPES = {**OP_TYPES, "addmm": "Gemm"}
"""The same for the log, whose ops PopART has not taken apart yet: a product with a bias is one op of ONNX."""

GRADIENT, UPDATED = "Gradient___", "UpdatedVar___"
FINAL_LOSS_SCALE = "finalLossScale"
"""PopART's name of the scale that automatic loss scaling uses at the time."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """A tensor that is handed back beside the results.

    Attributes:
        long_name: Its name in the program.
        returned: Which micro-batches' values; None as the results.
    """

    long_name: str
    returned: Returned | None

    @property
    def is_update(self) -> bool:
        """Whether it is a weight as its updates leave it."""
        return self.long_name.startswith(UPDATED)


def op_type(op: Op, types: Mapping[str, str] = OP_TYPES) -> str:
    """Return PopART's name of what an op computes.

    Args:
        op: The op.
        types: Names that are not simply ATen's in capitals.
    """
    name = op.target.split(".")[1] if "." in op.target else op.kind
    return types.get(name) or "".join(part.capitalize() for part in name.strip("_").split("_"))


def op_names(graph: Graph, types: Mapping[str, str] = OP_TYPES) -> Iterator[tuple[str, Op]]:
    """Yield each op with its name: ``module/path/Type:0``, a number behind it where several are alike.

    Args:
        graph: The program.
        types: Names of what ops compute, by the overload's name.
    """
    counts: dict[str, int] = {}
    for op in graph.ops:
        scope = op.source.module.replace(".", "/")
        leg = "" if op.leg is Leg.FORWARD else "Gradient___" if op.leg is Leg.BACKWARD else "Update___"
        base = f"{scope}/{leg}{op_type(op, types)}" if scope else f"{leg}{op_type(op, types)}"
        count = counts[base] = counts.get(base, -1) + 1
        yield (f"{base}/{count}" if count else base), op


def tensor_names(graph: Graph, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return every tensor of a captured graph by its name.

    Args:
        graph: As captured.
        gradients: Gradient of each parameter.
    """
    names = {
        tensor.name: tensor for tensor in graph.inputs
        if tensor.role in (Role.INPUT, Role.WEIGHT, Role.BUFFER, Role.CONSTANT)
    }
    for name, op in op_names(graph):
        names |= {f"{name}:{place}": tensor for place, tensor in enumerate(op.outputs)}
    names |= {f"{GRADIENT}{name}": tensor for name, tensor in gradients.items()}
    names |= {f"{UPDATED}{state.name}": state for state, _ in graph.updates if state.role is Role.WEIGHT}
    for state, _ in graph.updates:
        if state.name == LOSS_SCALE:
            names[FINAL_LOSS_SCALE] = state
    return names


def find_tensor(long_name: str, graph: Graph, gradients: Mapping[str, Tensor]) -> Tensor:
    """Return the tensor of a name.

    Raises:
        Error: There is none.
    """
    found = tensor_names(graph, gradients).get(long_name)
    if found is None:
        raise createPoptorchError(
            f"Anchored tensor {long_name} is not in the graph. getTensorNames() lists the tensors that are."
        )
    return found
