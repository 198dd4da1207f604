"""Softmax and log-softmax over one dimension, forward and backward."""

from __future__ import annotations

from math import prod

from torchipu._kernels.table.softmax import SoftmaxMode
from torchipu.device.codelets import reduction_codelet, vector_codelet
from torchipu.device.reductions import chain_sets
from torchipu.device.tilings import softmax as tilings
from torchipu.device.whole_rows import SCATTERED_ROWS, brought_together
from torchipu.host.emit.softmax import emit_softmax, emit_softmax_gradient, read_rows
from torchipu.ir.graph import Op
from torchipu.ir.types import DType
from torchipu.optable.arguments import has_dim
from torchipu.optable.codelet import Codelet, Lowering, Vertices
from torchipu.optable.planner import Emitter, HostPlanner
from torchipu.optable.spec import FLOATING, OpSpec, register
from torchipu.target import Target

# --------------------------------------------------------------------------- device side
# No single vertex: seven compute sets; 18,300 cycles for 8 rows of 736 halves a tile on silicon (ipu_hardware.md 2.3).
_REDUCE_MAX = reduction_codelet("popops::Reduce<max>")
_REDUCE_ADD = reduction_codelet("popops::Reduce<add,float>")
_SUBTRACT = vector_codelet("popops::BroadcastVectorInner<subtract>", 2, 2, supervisor=15)
_MULTIPLY = vector_codelet("popops::BroadcastVectorInner<multiply>", 2, 2, supervisor=15)
_PRODUCT = vector_codelet("popops::BinaryOp<multiply>", 3, 3)
_EXP = vector_codelet("popops::UnaryOp<exp>", 4, 6)
_LOG = vector_codelet("popops::UnaryOp<log>", 4, 12)
_INVERSE = vector_codelet("popops::UnaryOp<inverse>", 15, 6)

Chain = tuple[tuple[Codelet, str], ...]
FORWARD: Chain = (
    (_REDUCE_MAX, "reduce"), (_SUBTRACT, "map"), (_EXP, "map"), (_REDUCE_ADD, "reduce"), (_INVERSE, "rows"),
    (_MULTIPLY, "map"),
)
_LOG_FORWARD: Chain = (
    (_REDUCE_MAX, "reduce"), (_SUBTRACT, "map"), (_EXP, "map"), (_REDUCE_ADD, "reduce"), (_LOG, "rows"),
    (_SUBTRACT, "map"),
)
BACKWARD: Chain = ((_PRODUCT, "map"), (_REDUCE_ADD, "reduce"), (_SUBTRACT, "map"), (_PRODUCT, "map"))
_LOG_BACKWARD: Chain = ((_EXP, "map"), (_REDUCE_ADD, "reduce"), (_MULTIPLY, "map"), (_PRODUCT, "map"))


def _lower(chain: Chain, computed: tilings.Computed) -> Lowering:
    def lower(op: Op, target: Target) -> tuple[Vertices, ...]:
        data = op.inputs[0]
        if data.num_elements == 0:
            return ()
        sets = chain_sets(target, chain, _split(op, data.shape), (1,), data.dtype, computed)
        return (brought_together(target, data.shape, data.dtype), *sets) if op.attrs.get(SCATTERED_ROWS) else sets

    return lower


def _of_data(op: Op) -> tuple[int, int, int]:
    return _split(op, op.inputs[0].shape)


def _lower_forward(chain: Chain, *, is_log: bool = False, is_safe: bool = False) -> Lowering:
    return _lower(chain, tilings.forward(_of_data, is_log=is_log, is_safe=is_safe))


# --------------------------------------------------------------------------- host side
def _split(op: Op, shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return the sizes before, of and after the dimension; a 0-d tensor is one row of one."""
    if not shape:
        return 1, 1, 1
    dim = op.attrs["dim"]
    assert isinstance(dim, int)
    dim %= len(shape)
    return prod(shape[:dim]), shape[dim], prod(shape[dim + 1 :])


def _emit(mode: SoftmaxMode) -> Emitter:
    def emit(op: Op, plan: HostPlanner) -> None:
        split = _split(op, op.inputs[0].shape)
        (x,) = read_rows(plan, split, op.inputs[0])
        emit_softmax(plan, plan.output(op.outputs[0], DType.FLOAT), x, split, mode)

    return emit


def _emit_grad(mode: SoftmaxMode) -> Emitter:
    def emit(op: Op, plan: HostPlanner) -> None:
        given, result = op.needed("grad_output"), op.needed("output")
        split = _split(op, result.shape)
        dy, y = read_rows(plan, split, given, result)
        emit_softmax_gradient(plan, plan.output(op.outputs[0], DType.FLOAT), dy, y, split, mode)

    return emit


register(
    OpSpec("aten._softmax.default", "softmax", _lower_forward(FORWARD), _emit(SoftmaxMode.SOFTMAX), dtypes=FLOATING,
           overwrites=("self",), constraints=(has_dim(),)),
    OpSpec("aten._safe_softmax.default", "safe_softmax", _lower_forward(FORWARD, is_safe=True),
           _emit(SoftmaxMode.SAFE), dtypes=FLOATING, overwrites=("self",), constraints=(has_dim(),)),
    OpSpec("aten._log_softmax.default", "log_softmax", _lower_forward(_LOG_FORWARD, is_log=True),
           _emit(SoftmaxMode.LOG), dtypes=FLOATING, overwrites=("self",), constraints=(has_dim(),)),
    OpSpec("aten._softmax_backward_data.default", "softmax_grad", _lower(BACKWARD, tilings.backward(_of_data)),
           _emit_grad(SoftmaxMode.SOFTMAX), dtypes=FLOATING, overwrites=("grad_output",)),
    OpSpec("aten._log_softmax_backward_data.default", "log_softmax_grad",
           _lower(_LOG_BACKWARD, tilings.log_backward(_of_data)), _emit_grad(SoftmaxMode.LOG), dtypes=FLOATING,
           overwrites=("grad_output",)),
)
