"""Training and inference of whole models, and whether they fit, beside the published rows."""

from __future__ import annotations

from torchipu.score import stencils
from torchipu.score.configurations import is_on_device, run_of
from torchipu.score.kinds import Kind, NotExpressed, Prediction
from torchipu.score.programs import Outcome, outcome_of
from torchipu.score.published import lines_of_kinds, row_of
from torchipu.score.rows import Row
from torchipu.target import lookup_target

TRAINING = ("train-cnn", "train-transformer", "train-vit", "train-small", "train-vlm", "train-speech", "phased", "rts",
            "train-gnn", "train-gnn-host")
INFERENCE = ("infer-cnn", "infer-cnn-fp8", "infer-transformer", "infer-misc", "infer-byteMLPerf")

WHY_NOT: dict[str, str] = {
    "SchNet": "nodes and pairs of a pack are not stated",
    "HydroNet": "nodes and pairs of a pack are not stated",
    "packed": "how many tokens a pack has is not stated",
    "EfficientNet": "no workload of this model is written yet",
    "ResNeXt": "no workload of this model is written yet",
    "UNet": "how the network lies on its four IPUs is not stated",
    "DINO": "student, teacher and crops: no workload is written yet",
    "Swin": "its micro-batch, and the IPUs of a replica, are not stated",
    "DALL-E": "its batch matches no published configuration",
    "press figure": "no batch is stated",
    "Conformer": "its configuration is not stated",
    "MNIST": "the script's loader on the host bounds it",
    "CLIP": "which of CLIP's encoders it is, is not stated",
    "Roformer": "which of its sizes it is, is not stated; the rate of batch 356 is beyond the peak for the base one",
    "Wide&Deep": "the host's look-ups bound it; no workload is written yet",
    "VideoBERT": "no workload of this model is written yet",
    "FP8": "no workload of this model with torchipu.fp8 is written yet",
    "fp8": "no workload of this model with torchipu.fp8 is written yet",
}


def _why_not(row: Row) -> NotExpressed:
    text = f"{row.line.text('workload')} {row.line.text('config')}"
    return NotExpressed(next((why for part, why in WHY_NOT.items() if part in text), "no workload is written yet"))


# --------------------------------------------------------------------------- rows
def _outcome(row: Row) -> Outcome | NotExpressed:
    run = run_of(row.line)
    return _why_not(row) if run is None else outcome_of(run.workload, run.options)


def throughput(row: Row) -> Prediction | NotExpressed:
    """Predict samples a second; the split is of cycles."""
    outcome = _outcome(row)
    if isinstance(outcome, NotExpressed):
        return outcome
    run, on_device = run_of(row.line), is_on_device(row.line)
    assert run is not None
    cycles = outcome.device_cycles if on_device else outcome.cycles
    split = outcome.device_split if on_device else {k: float(v) for k, v in outcome.split.items() if v}
    return Prediction(run.samples * lookup_target(run.options.target).clock_hz / cycles, split)


def fits(row: Row) -> Prediction | NotExpressed:
    """Predict whether a program fits; the split is of bytes."""
    is_published = "id" in row.line.values
    outcome = _outcome(row) if is_published else stencils.outcome_of_row(row)
    if isinstance(outcome, NotExpressed):
        return outcome
    return Prediction(
        float(not outcome.overflow), {name: float(count) for name, count in outcome.bytes_by_category.items() if count},
    )


def rates(*kinds: str) -> tuple[Row, ...]:
    """Return the rows of some kinds, in whatever they measure."""
    return tuple(row_of(line) for line in lines_of_kinds(*kinds))


SQUAD = (
    "PopRT's table does not say what of the ONNX model was fused, nor which memory proportion was set; it is computed "
    "as PyTorch's exporter writes it, with nothing fused. "
)
STATED: dict[str, str] = {
    "V118": "some 40 to 90 thousand cycles of a batch that do not grow with it are missing here, in halves (V093, "
    "V103) and, twice as many, in floats (V111, V112); from a batch of 8 on the same network is within 3 %. What they "
    "are is not known",
    "V129": "its source calls it the cliff of a plan in parts: V124, which has the first and the last layer in halves, "
    "is 1.66 times as fast, and half its batch 1.28 times. Which memory proportion was set is not stated",
    "V140": SQUAD + "What is missing grows with the batch as in halves, V134 and V136",
    "V142": SQUAD + "What is missing grows with the batch as in halves, V134 and V136",
    "V132": SQUAD + "Not much more than half as much time is missing as in halves, V134",
    "V134": SQUAD + "With fused layers half as much again would be missing",
    "V136": SQUAD + "Twice as much time is missing as at batch 1, V134",
    "V138": SQUAD + "Four times the batch of V136 takes 8.7 times as long. With fused layers, products in parts come "
    "to that at a memory proportion of 0.015 alone, which makes V132 twice as slow as measured, and V145 of the same "
    "table, which ran out of memory, would have needed less of it",
}
"""Why rows of inference are off, by their numbers.

What memory proportions from 0.6 down to 0.015 give was looked at for all.
"""


BLOCKS = (
    "timed by blocks of samples, 175,000 sequences in V011: some {seconds} s more in each would bring this row and "
    "{row}, the same network on 16 IPUs, within {percent} % at once; what the host does between blocks is not stated"
)
FRAMEWORK = (
    "{row} ran the same network, length and machine under another framework {factor} times as fast; what a framework "
    "adds to the program, and which memory proportions it had, is not stated: 0.15 on all IPUs would make it 5 to 6 % "
    "too slow"
)
STATED_OF_TRAINING: dict[str, str] = {
    "V010": "an epoch of it takes 3.1 s, and half a second more than the model says; that much would be 2 % of V007, "
    "whose epochs on 16 IPUs take 30 s: what the host does between epochs is not stated",
    "V015": BLOCKS.format(row="V013", seconds=1, percent=2),
    "V017": BLOCKS.format(row="V016", seconds=2, percent=6),
    "V067": FRAMEWORK.format(row="V065", factor=1.08),
    "V088": "the host's loader bounds it: V085, the same model on data that are made up, runs 3.1 times as fast on "
    "half the IPUs",
    "V061": FRAMEWORK.format(row="V051", factor=1.14),
    "V062": "V061, the same network under the same framework on 16 IPUs, is a quarter as fast: " + FRAMEWORK.format(
        row="V051", factor=1.14),
    "V085": "6.8 ms of each call of 50 iterations are missing, for which the loader hands over 52 MB; what the host "
    "takes of them is not stated, and its source calls it bound by the IPU",
}
"""Why rows of training are off, by their numbers."""


def decisions() -> tuple[Row, ...]:
    """Return which programs fitted: those that ran out of memory, and those that ran."""
    published = [
        row_of(line, float(line.text("value") != "OOM")) for line in lines_of_kinds("fit", *TRAINING, *INFERENCE)
    ]
    return (*published, *stencils.decisions())


KINDS = (
    Kind("train", "training, 1 to 256 IPUs", "samples/s", lambda: rates(*TRAINING), throughput, is_quick=False,
         scales=True, stated=STATED_OF_TRAINING),
    Kind("infer", "inference on a C600", "samples/s", lambda: rates(*INFERENCE), throughput, is_quick=False,
         stated=STATED),
    Kind("fits", "fits into memory or not", "yes", decisions, fits, is_decision=True, is_quick=False),
)
