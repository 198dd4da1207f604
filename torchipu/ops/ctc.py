"""Connectionist temporal classification, forward and backward."""

from __future__ import annotations

from torchipu._kernels.table.ctc import CTC_LOSS, CTC_LOSS_BACKWARD, CtcInts
from torchipu.device.codelets import element_codelet, vector_codelet
from torchipu.device.compute_sets import elementwise_set, in_first
from torchipu.device.tilings.slices import Axis, Slicing, sliced
from torchipu.ir.graph import Op
from torchipu.ir.types import DType
from torchipu.optable.blocks import Blocks
from torchipu.optable.codelet import Vertices
from torchipu.optable.planner import HostPlanner
from torchipu.optable.spec import FLOATING, Constraint, OpSpec, register
from torchipu.target import Target

MEAN, SUM = 1, 2  # torch.nn._reduction

# Each position of alpha or beta adds up to three logarithms: poplibs' CTC vertices spend about 60 cycles on it.
_ALPHA = element_codelet("popnn::CTCAlpha", 60, 60, code_bytes=900, source="estimate")
_GRADIENT = element_codelet("popnn::CTCGradGivenAlpha", 90, 90, code_bytes=1100, source="estimate")
_LOSS = vector_codelet("popnn::CTCLoss", 20, 20, source="estimate")

# A candidate of the beam search takes about two sums of logarithms, and a comparison with what is kept so far.
_EXTEND = element_codelet("popnn::CTCGenerateExtendCandidates", 60, 60, code_bytes=900, source="estimate")
_RANK = element_codelet("popnn::CTCRankCandidates", 30, 30, code_bytes=700, source="estimate")
_UPDATE = element_codelet("popnn::CTCUpdate", 20, 20, code_bytes=500, source="estimate")


def _ints(op: Op) -> CtcInts:
    (time, batch, classes), labels = op.needed("log_probs").shape, op.needed("targets").shape[1]
    return CtcInts(
        time=time, batch=batch, classes=classes, labels=labels, blank=_blank(op),
        zero_infinity=op.flag("zero_infinity"),
    )


def _blank(op: Op) -> int:
    return op.integer("blank")


def _width(op: Op) -> int:
    """Return the positions of an extended target: labels with blanks around them."""
    return 2 * op.needed("targets").shape[1] + 1


def _emit_loss(op: Op, plan: HostPlanner) -> None:
    inputs = [plan.value(op.needed("log_probs"), DType.FLOAT)]
    inputs += [plan.value(op.needed(name), DType.LONG) for name in ("targets", "input_lengths", "target_lengths")]
    ints = _ints(op)
    outputs = [plan.output(t, DType.FLOAT) for t in op.outputs]
    plan.step(CTC_LOSS, outputs, inputs, ints=ints, items=ints.batch,
              writes=[Blocks.rows(ints.batch, held) for held in outputs])


def _emit_gradient(op: Op, plan: HostPlanner) -> None:
    inputs = [plan.value(op.needed(name), DType.FLOAT) for name in ("grad", "loss", "alpha", "log_probs")]
    inputs += [plan.value(op.needed(name), DType.LONG) for name in ("targets", "input_lengths", "target_lengths")]
    ints = _ints(op)
    plan.step(
        CTC_LOSS_BACKWARD, [plan.output(op.outputs[0], DType.FLOAT)], inputs, ints=ints, items=ints.batch,
        scratch_bytes=8 * (2 * _width(op) + ints.classes),
        writes=[Blocks.of((ints.time, ints.batch, ints.classes), (ints.time, 1, ints.classes))],
    )


def _lower_loss(op: Op, target: Target) -> tuple[Vertices, ...]:
    """One compute set for each time step: positions depend on those of the step before."""
    time, batch, width = *op.needed("log_probs").shape[:2], _width(op)
    dtype = op.needed("log_probs").dtype
    if not batch:
        return ()
    step = elementwise_set(target, _ALPHA, batch * width, dtype, gathered_elements=2)
    return in_first([*[step] * time, elementwise_set(target, _LOSS, batch, dtype)], _BY_SAMPLES)


def _lower_gradient(op: Op, target: Target) -> tuple[Vertices, ...]:
    (time, batch, classes), width = op.needed("log_probs").shape, _width(op)
    dtype = op.needed("log_probs").dtype
    if not batch:
        return ()
    step = elementwise_set(target, _GRADIENT, batch * width, dtype, gathered_elements=2)
    return in_first([*[step] * time, elementwise_set(target, _LOSS, time * batch * classes, dtype)], _BY_SAMPLES)


# Alignments of a sample depend on its lengths, which are known only when the program runs: a vertex has whole samples.
def _samples(op: Op) -> Slicing:
    first = ("targets", "input_lengths", "target_lengths", "grad", "loss", "alpha")
    results = {"out": (1, 1)} if op.operand("alpha") is not None else {"out": (0, 1), "out1": (0, 1)}
    dims = {"log_probs": (1, 1), **dict.fromkeys(first, (0, 1)), **results}
    return Slicing((Axis(op.needed("log_probs").shape[1], dims),), range(len(op.outputs)))


_BY_SAMPLES = sliced(_samples)


def _lower_beam_search(op: Op, target: Target) -> tuple[Vertices, ...]:
    """Three compute sets for each time step: candidates, their ranks, and the beams that are kept."""
    log_probs, width = op.needed("log_probs"), op.attrs["beam_width"]
    time, batch, classes = log_probs.shape
    assert isinstance(width, int)
    if not batch:
        return ()
    candidates, dtype = batch * width * classes, log_probs.dtype
    step = (
        elementwise_set(target, _EXTEND, candidates, dtype, gathered_elements=2),
        elementwise_set(target, _RANK, candidates, dtype, gathered_elements=width),
        elementwise_set(target, _UPDATE, batch * width, dtype, gathered_elements=2),
    )
    return step * time


def _has_tables(op: Op) -> bool:
    return all(op.needed(name).dtype in (DType.INT, DType.LONG) for name in ("targets", "input_lengths"))


CONSTRAINTS = (
    Constraint(lambda op: op.attrs["reduction"] in (MEAN, SUM), "CTC loss cannot be had by reduction='none'",
               "pass reduction='mean' or reduction='sum'"),
    Constraint(lambda op: len(op.needed("targets").shape) == 2, "CTC loss takes targets [N, S], not one row of all",
               "pad the targets to one length and stack them; target_lengths tells the padding apart"),
    Constraint(lambda op: op.needed("targets").shape[1] <= op.needed("log_probs").shape[0],
               "CTC loss has targets [N, S] that are longer than its inputs [T, N, C]",
               "cut the padding of the targets to T columns, or give more time steps: no longer target can be aligned"),
    Constraint(lambda op: 0 <= _blank(op) < op.needed("log_probs").shape[2], "CTC loss has a blank that is no class",
               "pass blank= between 0 and the number of classes less one"),
)

register(
    OpSpec("torchipu.ctc_beam_search.default", "ctc_beam_search", _lower_beam_search,
           dtypes=(*FLOATING, DType.INT, DType.LONG)),
    OpSpec("ipu.ctc_loss.default", "ctc_loss", _lower_loss, _emit_loss,
           dtypes=(*FLOATING, DType.INT, DType.LONG), constraints=CONSTRAINTS, supports=_has_tables),
    OpSpec("ipu.ctc_loss_backward.default", "ctc_loss_backward", _lower_gradient, _emit_gradient,
           dtypes=(*FLOATING, DType.INT, DType.LONG), supports=_has_tables),
)
