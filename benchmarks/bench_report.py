"""What a report costs: of a step that is timed, to write it for a large model, and until its page is ready.

    pytest benchmarks/bench_report.py --benchmark-only -s

Times are those on the CPU: of the thread that steps or writes, and of the browser's main thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from pytest_benchmark.fixture import BenchmarkFixture
from torch import nn

import torchipu
from interleaved import interleave, print_table, speed_ups
from library_workloads import missing
from torchipu.advice.door import WHAT_IF_SECONDS
from workloads import DemoNet

IPUS = 4
LAYERS = 12


class Trained(nn.Module):
    """The demo's CNN with its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.model = DemoNet()

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.model(x), labels)


class Loss(nn.Module):
    """The loss of BERT's pre-training alone.

    Args:
        model: Of transformers.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        return self.model(**inputs, return_dict=False)[0]


def demo_step(**options: object) -> Callable[[], object]:
    """Return a call of a training of the demo's CNN on one thread."""
    torch.manual_seed(0)
    model = Trained()
    step = torchipu.TrainStep(
        model, torch.optim.AdamW(model.parameters(), lr=1e-3),
        torchipu.Options(gradient_accumulation=10, host_threads=1, **options),
    )
    images, labels = torch.randn(400, 1, 28, 28), torch.randint(10, (400,))
    return lambda: step(images, labels)


def bert_base() -> torchipu.TrainStep:
    """Return a compiled training of BERT-Base, three layers on each of four IPUs."""
    from transformers import BertConfig, BertForPreTraining

    model = BertForPreTraining(BertConfig()).half().train()
    for number, layer in enumerate(model.bert.encoder.layer):
        torchipu.BeginBlock(layer, f"layer{number}", ipu_id=number * IPUS // LAYERS)
    torchipu.BeginBlock(model.bert.embeddings, "embeddings", ipu_id=0)
    torchipu.BeginBlock(model.cls, "head", ipu_id=0)
    trained = Loss(model)
    words = torch.zeros(32, 128, dtype=torch.int64)
    step = torchipu.TrainStep(
        trained, torch.optim.AdamW(trained.parameters(), lr=1e-4),
        torchipu.Options(gradient_accumulation=16, recompute="stage", offload_optimiser_state=True),
    )
    step.compile(
        input_ids=words, attention_mask=torch.ones_like(words), labels=words,
        next_sentence_label=torch.zeros(32, dtype=torch.int64),
    )
    return step


def test_step_that_is_timed(benchmark: BenchmarkFixture, request: pytest.FixtureRequest) -> None:
    """A step whose host times go into the report, beside one without a report."""
    contenders = {"without": demo_step(), "torchipu": demo_step(host_times=True)}
    timings = interleave(contenders, rounds=request.config.getoption("--rounds"), clock=time.thread_time)
    print_table("a step, host times in its report", timings)
    benchmark.extra_info["cost"] = 1 / speed_ups(timings)["without"] - 1
    benchmark.pedantic(contenders["torchipu"], rounds=1)


def test_report_of_bert_base(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """The report of a training of BERT-Base on four IPUs: seconds to write it, its size, until its page is ready."""
    if missing(("transformers",)):
        pytest.skip("transformers is not installed")
    step = bert_base()
    spent = {}
    for name, seconds in (("tables and pages", 0.0), ("with alternatives", WHAT_IF_SECONDS)):
        began = time.thread_time()
        step.report(tmp_path / name, what_if_seconds=seconds)
        spent[name] = time.thread_time() - began
    page = tmp_path / "with alternatives" / "report.html"
    found = {**{f"{name}, s of CPU": value for name, value in spent.items()}, "page, MB": page.stat().st_size / 1e6}
    found |= ready_in_browser(page)
    for name, value in found.items():
        print(f"{name:<32} {value:.2f}")
    benchmark.extra_info.update(found)
    benchmark.pedantic(step.report, args=(tmp_path / "again",), kwargs={"what_if_seconds": 0}, rounds=1)


def ready_in_browser(page: Path) -> dict[str, float]:
    """Return the seconds that Chromium takes until a page is ready, of the clock and of its main thread; none without.

    Args:
        page: The file.
    """
    from tests.report.browser.chromium import find_chromium

    path = find_chromium()
    if path is None:
        return {}
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        shown = browser.new_page()
        meter = shown.context.new_cdp_session(shown)
        meter.send("Performance.enable", {"timeDomain": "threadTicks"})
        began = time.perf_counter()
        shown.goto(page.as_uri())
        shown.wait_for_selector("html[data-ready]")
        ready = time.perf_counter() - began
        metrics = {one["name"]: one["value"] for one in meter.send("Performance.getMetrics")["metrics"]}
        browser.close()
    return {"ready in the browser, s": ready, "of its main thread, s of CPU": metrics["TaskDuration"]}
