"""Small and odd sizes beside round ones of the same model: what share of the machine's peak each reaches.

    pytest benchmarks/bench_odd_sizes.py --benchmark-only -s
    pytest benchmarks/bench_odd_sizes.py --benchmark-only -s -k resnet50 --threads 1

The peak is that of ``torch.mm`` in the same run. A model's step is its inference with frozen weights or its training
as one program, whichever is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture
from rich.console import Console
from rich.table import Table
from torch import nn

from contenders import whole_step
from interleaved import interleave
from library_workloads import Loss, bert_small, missing, timm_model
from share_of_peak import PEAK_FLOPS, flops_of, peak_step
from workloads import Step, Workload, classes, images, tokens

WITHIN = 0.9
"""What an odd size is to reach of the round one's share of the peak."""


@dataclass(frozen=True)
class Pair:
    """A model at a round size and at one that is not.

    Attributes:
        name: Of the row.
        round_size: The model, and its inputs.
        odd_size: Likewise.
    """

    name: str
    round_size: Workload
    odd_size: Workload


def _convolutions(channels: int = 256) -> nn.Module:
    """Return a residual block's layers: `[N, 256, H, W]` to the same."""
    first, second = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
    return nn.Sequential(first, nn.BatchNorm2d(channels), nn.ReLU(), second)


def _classifier(num_classes: int) -> Callable[[], nn.Module]:
    """Return a maker of a head: `[N, 768]` to `[N, num_classes]`."""
    return lambda: nn.Sequential(nn.Linear(768, 768), nn.GELU(), nn.Linear(768, num_classes))


def _squares() -> Loss:
    return lambda output, inputs: output.square().mean()


def _states() -> Loss:
    return lambda output, inputs: output.last_hidden_state.square().mean()


def _pair(
    name: str, model: Callable[[], nn.Module], round_inputs: Callable[[], torch.Tensor],
    odd_inputs: Callable[[], torch.Tensor], losses: tuple[Loss, Loss] | None = None, *,
    odd_model: Callable[[], nn.Module] | None = None, libraries: tuple[str, ...] = (),
) -> Pair:
    """Return a pair that is trained where losses are given, and otherwise infers with frozen weights."""
    made = []
    for made_model, inputs, number in ((model, round_inputs, 0), (odd_model or model, odd_inputs, 1)):
        made.append(Workload(
            name, made_model, inputs, losses[number] if losses else _squares(), training=losses is not None,
            frozen=losses is None, libraries=libraries,
        ))
    return Pair(name, *made)


TIMM, TRANSFORMERS = ("timm",), ("transformers",)
PAIRS = [
    _pair("resnet50: 1 image, 4", timm_model("resnet50"), images(4, 3, 224, 224), images(1, 3, 224, 224),
          libraries=TIMM),
    _pair("resnet50: 5 images, 4", timm_model("resnet50"), images(4, 3, 224, 224), images(5, 3, 224, 224),
          libraries=TIMM),
    _pair("resnet18: 221 x 221, 224 x 224", timm_model("resnet18"), images(4, 3, 224, 224), images(4, 3, 221, 221),
          libraries=TIMM),
    _pair("mobilenetv3-large: 1 image, 8", timm_model("mobilenetv3_large_100"), images(8, 3, 224, 224),
          images(1, 3, 224, 224), libraries=TIMM),
    _pair("convolutions of 3 x 3: 7 x 7, 16 x 16", _convolutions, images(8, 256, 16, 16), images(8, 256, 7, 7)),
    _pair("the same, 1 image", _convolutions, images(8, 256, 16, 16), images(1, 256, 7, 7)),
    _pair("the same, trained", _convolutions, images(8, 256, 16, 16), images(8, 256, 7, 7), (_squares(), _squares())),
    _pair("bert-small: 197 tokens, 192", bert_small, tokens(4, 192), tokens(4, 197), libraries=TRANSFORMERS),
    _pair("bert-small: 1 x 127 tokens, 4 x 128", bert_small, tokens(4, 128), tokens(1, 127), libraries=TRANSFORMERS),
    _pair("bert-small, trained: 3 x 197 tokens, 4 x 128", bert_small, tokens(4, 128), tokens(3, 197),
          (_states(), _states()), libraries=TRANSFORMERS),
    _pair("linear layers: 1,000 classes, 1,024", _classifier(1024), images(128, 768), images(128, 768),
          odd_model=_classifier(1000)),
    _pair("the same, trained on 127 rows", _classifier(1024), images(128, 768), images(127, 768),
          (classes(128, 1024), classes(127, 1000)), odd_model=_classifier(1000)),
]

Row = tuple[str, float, float]


@pytest.fixture(scope="module")
def rows() -> Iterator[list[Row]]:
    """Collect the rows; print them when all have been measured."""
    found: list[Row] = []
    yield found
    table = Table(title="share of the peak", title_justify="left")
    for heading in ("odd size, round one", "round", "odd", "odd of round"):
        table.add_column(heading, justify="left" if heading.startswith("odd size") else "right")
    for name, of_round, of_odd in found:
        table.add_row(name, f"{of_round:.0%}", f"{of_odd:.0%}", f"{of_odd / of_round:.2f}")
    Console().print(table)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_odd_size(
    benchmark: BenchmarkFixture, rows: list[Row], pair: Pair, num_threads: int, rounds: int,
    clock: Callable[[], float],
) -> None:
    """Operations a second at both sizes, in turns."""
    absent = missing(pair.odd_size.libraries)
    if absent:
        pytest.skip(f"needs {', '.join(absent)}")
    steps: dict[str, Step] = {"peak": peak_step()}
    for name, workload in (("round", pair.round_size), ("odd", pair.odd_size)):
        steps[name] = whole_step(workload, num_threads)[1]
    timings = interleave(steps, rounds=rounds, clock=clock)
    peak = PEAK_FLOPS / timings["peak"].median_s
    shares = [
        flops_of(workload.step()) / timings[name].median_s / peak
        for name, workload in (("round", pair.round_size), ("odd", pair.odd_size))
    ]
    rows.append((pair.name, *shares))
    benchmark.group = "odd sizes beside round ones"
    benchmark.extra_info["share_of_peak"] = dict(zip(("round", "odd"), shares, strict=True))
    benchmark.extra_info["wanted"] = WITHIN
    benchmark.pedantic(steps["odd"], rounds=5, iterations=1)
