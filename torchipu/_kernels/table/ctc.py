"""Kernels of connectionist temporal classification. Lengths and targets are int64, everything else is float."""

from typing import NamedTuple

from .kernel import Kernel, Nothing

FOR_AVX2_ALONE = True  # with AVX-512 they take as long, or longer


class CtcInts(NamedTuple):
    """Integers of ``ctc_loss`` and ``ctc_loss_backward``.

    Attributes:
        time: Steps.
        batch: Samples.
        classes: With the blank.
        labels: Of a padded target.
        blank: The class that stands for no label.
        zero_infinity: Whether infinite losses count as zero.
    """

    time: int
    batch: int
    classes: int
    labels: int
    blank: int
    zero_infinity: bool


CTC_LOSS = Kernel(
    "ctc_loss",
    {
        "loss": "[batch]", "alpha": "[batch][time][2 * labels + 1]", "log_probs": "[time][batch][classes]",
        "targets": "[batch][labels]", "input_lengths": "[batch]", "target_lengths": "[batch]",
    },
    CtcInts,
    Nothing,
    items="batch",
)
CTC_LOSS_BACKWARD = Kernel(
    "ctc_loss_backward",
    {
        "gradient": "[time][batch][classes] of the log-probabilities, as ATen has it: that of the logits below a "
        "log-softmax",
        "grad": "[batch], of the loss", "loss": "of the forward", "alpha": "of the forward",
        "log_probs": "[time][batch][classes]", "targets": "[batch][labels]", "input_lengths": "[batch]",
        "target_lengths": "[batch]",
    },
    CtcInts,
    Nothing,
    items="batch",
    scratch="2 * (2 * labels + 1) + classes doubles",
)
