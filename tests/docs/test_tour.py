"""The texts in docs/tour.md are those that the compiler writes today; EXPECTTEST_ACCEPT=1 writes the page anew."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from tests.goldens.two_blocks import TwoBlocks
from torchipu import Options, TrainStep
from torchipu.compiler import STAGES
from torchipu.device.cost import FunctionCost
from torchipu.host.plan import HostPlan
from torchipu.host.storage import Place
from torchipu.ir.graph import Tensor
from torchipu.optable.host_tensor import HostTensor

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tour.md"
BLOCK = re.compile(
    r"^<!-- from: (?P<source>[^\n]+) -->\n```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL,
)
NAMES = ["captured", *(stage.name for stage in STAGES)]
ACCEPT = "EXPECTTEST_ACCEPT=1 python -m pytest tests/docs/test_tour.py"


# ---------------------------------------------------------------------- what a block may show of a text
def function(text: str, title: str) -> str:
    """Return a function, or the main program, of an executable."""
    lines = text.split("\n")
    begin = lines.index(f"{title} {{")
    return "\n".join(lines[begin : lines.index("}", begin) + 1])


def variables(text: str) -> str:
    """Return the variables of an executable."""
    return text[: text.index("\n}") + 2]


def lines_with(text: str, words: Sequence[str]) -> str:
    """Return the lines that hold any of some words."""
    found = [line for line in text.split("\n") if any(word in line for word in words)]
    assert found, f"no line has any of {words}"
    return "\n".join(found)


def lines_unlike(text: str, before: str) -> str:
    """Return the lines that an earlier text does not have."""
    known = set(before.split("\n"))
    return "\n".join(line for line in text.split("\n") if line not in known) or "as before"


def host_plan(plan: HostPlan, names: dict[Tensor, str]) -> str:
    """Return the steps of a host plan: when each runs, its kernel, its op, what it reads and what it writes."""
    inputs = list(names.values())
    states = {held.buffer: names[tensor] for tensor, held in plan.states.items()}

    def show(held: HostTensor) -> str:
        allocation = plan.allocations[held.buffer]
        shape = f"[{','.join(map(str, held.shape))}]"
        if held.buffer in states:
            return f"{states[held.buffer]}{shape}"
        if allocation.place is Place.INPUT:
            return f"{inputs[allocation.index]}{shape}"
        place = f"{allocation.place.value}+{allocation.offset_bytes}" if allocation.place is Place.ARENA else "result"
        return f"{place}{shape}"

    ends = [plan.num_prologue, plan.num_prologue + plan.num_body, len(plan.steps)]
    lines = []
    for number, step in enumerate(plan.steps):
        part = next(part for part, end in zip(("before", "body", "update"), ends, strict=True) if number < end)
        assert step.kernel is not None
        assert step.op is not None
        read, written = (" ".join(dict.fromkeys(map(show, held))) or "nothing" for held in (step.inputs, step.outputs))
        lines.append(f"{part:<7} {step.kernel.name:<15} {step.op.kind:<19} {read} -> {written}")
    return "\n".join(lines)


def cycles(cost: FunctionCost) -> str:
    """Return the supersteps of a function with their cycles."""
    rows = [("compute set", "sync", "exchange", "compute")]
    rows += [(step.name, f"{step.sync:,}", f"{step.exchange:,}", f"{step.compute:,}") for step in cost.supersteps]
    return "\n".join(f"{name:<42} {sync:>6} {exchange:>9} {compute:>8}" for name, sync, exchange, compute in rows)


# ---------------------------------------------------------------------- the page
@dataclass(frozen=True)
class Levels:
    """A compiled step, and what the compiler has written of it.

    Attributes:
        step: Compiled with three micro-batches of four samples.
        texts: By name of the stage.
    """

    step: TrainStep
    texts: dict[str, str]

    def shown(self, source: str) -> str:
        """Return what a block shows: ``STAGE``, or one stage and which part of it."""
        stage, _, part = source.partition(", ")
        if stage in self.texts:
            return self._part(stage, part)
        if stage.endswith(".py"):
            return (ROOT / stage).read_text(encoding="utf-8").rstrip("\n")
        return self._others()[stage]()

    def _part(self, stage: str, part: str) -> str:
        text = self.texts[stage]
        if not part:
            return text
        if part == "variables":
            return variables(text)
        if part == "unlike the stage before":
            return lines_unlike(text, self._before(stage))
        if part.startswith("lines with "):
            return lines_with(text, part.removeprefix("lines with ").split(" or "))
        return function(text, part)

    def _before(self, stage: str) -> str:
        """Return the last text of the same kind: a graph for a graph, a program for a program."""
        kind = self.texts[stage].split(" ", 1)[0]
        return next(
            self.texts[name] for name in reversed(NAMES[: NAMES.index(stage)])
            if self.texts[name].split(" ", 1)[0] == kind
        )

    def _others(self) -> dict[str, Callable[[], str]]:
        bound, compiled = self.step._bound, self.step.compiled
        assert bound is not None
        names = {tensor: f"%{tensor.name}" for tensor in bound.graph.inputs}
        costs = compiled.cost.functions.items()
        return {
            "the host plan": lambda: host_plan(bound.host_plan, names),
            "the summary": lambda: self.step.profile.summary(),
            **{f"cycles of {name}": lambda cost=cost: cycles(cost) for name, cost in costs},
        }


@pytest.fixture(scope="module")
def levels(tmp_path_factory: pytest.TempPathFactory) -> Levels:
    directory = tmp_path_factory.mktemp("dump")
    model = TwoBlocks()
    options = Options(gradient_accumulation=3, dump=str(directory))
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), options)
    step.compile(torch.zeros(12, 16), torch.zeros(12, 8))
    texts = {path.name.split("-")[1]: path.read_text(encoding="utf-8") for path in directory.iterdir()}
    return Levels(step, {name.removesuffix(".txt"): text.rstrip("\n") for name, text in texts.items()})


def blocks() -> Iterator[re.Match[str]]:
    return BLOCK.finditer(PAGE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module", autouse=True)
def accepted(levels: Levels) -> None:
    """Write the page anew if that is asked for."""
    if os.environ.get("EXPECTTEST_ACCEPT"):
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(BLOCK.sub(lambda found: _block(found, levels), page), encoding="utf-8")


def _block(found: re.Match[str], levels: Levels) -> str:
    return f"<!-- from: {found['source']} -->\n```{found['language']}\n{levels.shown(found['source'])}\n```"


@pytest.mark.whole
@pytest.mark.parametrize("source", [found["source"] for found in blocks()])
def test_the_text_is_what_the_compiler_writes(source: str, levels: Levels) -> None:
    text = next(found["text"] for found in blocks() if found["source"] == source)
    assert text == levels.shown(source) + "\n", f"docs/tour.md shows another text; to take this one: {ACCEPT}"


def test_every_stage_has_its_chapter_in_the_order_of_the_compiler() -> None:
    chapters = re.findall(r"^## (\w+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert chapters == NAMES


def test_every_block_with_a_source_is_found() -> None:
    sources = [found["source"] for found in blocks()]
    assert len(sources) == PAGE.read_text(encoding="utf-8").count("<!-- from: ") == len(set(sources))
    assert len(sources) > len(NAMES)
