"""The page of speed: what was measured of each model, in one run."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from contenders import CONTENDERS, OURS, WHOLE_STEP, WITH_UPDATE
from workloads import HELD_OUT, WORKLOADS

COMPILERS = ("inductor", "openvino", "onnxruntime")


@dataclass(frozen=True)
class Measured:
    """What was measured of a workload.

    Attributes:
        ratios: By contender, how much faster torchipu is through ``torch.compile``.
        updated: By contender, how much faster it is where the optimiser's step is compiled too.
        whole: By contender, how much faster its whole step is.
        refused: Why others are not there.
        share_of_peak: The rate of torchipu's products and convolutions over that of ``torch.mm``, in the same run.
        costliest: torchipu's kernels that take longest, with their shares of the time in kernels.
    """

    ratios: Mapping[str, float]
    updated: Mapping[str, float]
    whole: Mapping[str, float]
    refused: Mapping[str, str]
    share_of_peak: float
    costliest: Sequence[tuple[str, float]]

    @property
    def of_the_best(self) -> float | None:
        """The time of the fastest other compiler over torchipu's; None where none ran."""
        found = [self.ratios[name] for name in COMPILERS if name in self.ratios]
        return min(found, default=None)


def page(measured: Mapping[str, Measured], num_threads: int, rounds: int) -> str:
    """Return the page.

    Args:
        measured: By workload.
        num_threads: Of every contender.
        rounds: Samples of each.
    """
    lines = [
        "# Speed", "",
        f"Written by `make bench`: {platform.machine()} with {torch.backends.cpu.get_cpu_capability()}, "
        f"{num_threads} threads for everyone, torch {torch.__version__}, medians of {rounds} rounds in turns with a "
        "rest before each sample. Above 1, torchipu is faster.", "",
        "- *peak*: the rate of all products and convolutions of the call over that of a product of two matrices of "
        "1,024 by `torch.mm`, timed in the same rounds.",
        "- *costliest*: torchipu's kernels that take longest, with their share of the time in kernels.",
        "- *whole*: the step as one program, `TrainStep` or `InferenceStep`, beside eager; all other columns are of "
        "`torch.compile`.",
        "- *update too*: the same where `torch.compile` was given the optimiser's step as well, beside eager; AdamW is "
        "eager in the columns before it.",
        f"- No kernel was written beside the models marked *: {', '.join(model.name for model in HELD_OUT)}.", "",
    ]
    for title, chosen in (
        ("Inference with frozen weights", [n for n in measured if WORKLOADS[n].frozen]),
        ("Inference", [n for n in measured if not WORKLOADS[n].training and not WORKLOADS[n].frozen]),
        ("Training", [n for n in measured if WORKLOADS[n].training]),
    ):
        if chosen:
            lines += [f"## {title}", "", *_table({name: measured[name] for name in chosen}), ""]
    return "\n".join(lines)


def _table(measured: Mapping[str, Measured]) -> list[str]:
    doors = (OURS, WITH_UPDATE, WHOLE_STEP)
    others = [n for n in CONTENDERS if n not in doors and any(n in m.ratios for m in measured.values())]
    has_best, has_updated = any(name in COMPILERS[1:] for name in others), any(m.updated for m in measured.values())
    optional = [*(["best of them"] if has_best else []), *(["update too, eager"] if has_updated else [])]
    heads = ["model", *others, *optional, "whole, eager", "peak", "costliest"]
    lines = [_row(heads), _row(["---", *["---:"] * (len(heads) - 2), "---"])]
    for name, one in measured.items():
        best = [_times(one.of_the_best)] if has_best else []
        costliest = ", ".join(f"{kernel} {share:.0%}" for kernel, share in one.costliest)
        updated = [_times(one.updated.get("eager"))] if has_updated else []
        lines.append(_row([
            _shown(name), *(_times(one.ratios.get(who)) for who in others), *best, *updated,
            _times(one.whole.get("eager")), f"{one.share_of_peak:.0%}", costliest,
        ]))
    means = [_mean([m.ratios.get(who) for m in measured.values()]) for who in others]
    best = [_mean([m.of_the_best for m in measured.values()])] if has_best else []
    updated = [_mean([m.updated.get("eager") for m in measured.values()])] if has_updated else []
    whole = _mean([m.whole.get("eager") for m in measured.values()])
    lines.append(_row(["geometric mean", *means, *best, *updated, whole, "", ""]))
    reasons = [f"- {name}, {who}: {why}" for name, one in measured.items() for who, why in one.refused.items()]
    return [*lines, *(["", *reasons] if reasons else [])]


def _shown(name: str) -> str:
    held_out = any(name.startswith(f"{model.name}-") for model in HELD_OUT)
    return f"{name} *" if held_out else name


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}x"


def _mean(ratios: Sequence[float | None]) -> str:
    found = [ratio for ratio in ratios if ratio is not None]
    return f"{statistics.geometric_mean(found):.2f}x" if found else ""

