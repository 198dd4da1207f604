"""What becomes of a model or a script on the emulated IPU: programs, graph breaks, recompilations, generic ops."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.utils import clear_compilation_metrics, counters, get_compilation_metrics

from torchipu.advice.door import WHAT_IF_SECONDS, advised
from torchipu.backend import ipu_backend
from torchipu.host.counting import holding, magnitudes_of
from torchipu.host.statistics import format_statistics
from torchipu.report import format_full, markup
from torchipu.report.captured import captured
from torchipu.report.directory import write_directory
from torchipu.report.facts.observed import Event
from torchipu.report.recorder import Recorded, recording
from torchipu.script import refuse_missing, run_script

# Dynamo names the rest of a function after a graph break so.
_RESUMED = re.compile(r"torch_dynamo_resume_in_(?P<function>.+)_at_(?P<line>\d+)")
_LIMIT = "recompile limit"


@dataclass(slots=True)
class Explanation:
    """What was found while a model or a script ran.

    Attributes:
        subject: What ran.
        programs: In the order of compilation.
        graph_breaks: Times seen, by torch's reason.
        broken_at: ``file:line in function`` of each graph break.
        recompilations: Torch's reason for each function that was compiled again.
        eager_functions: Functions that Dynamo left to eager after too many recompilations, and why.
        compile_seconds: That torch took for each function altogether, the backend's compilations among them.
        statistics: Table of the magnitudes in the last run of each program; empty where none counts them.
        error: What ended the run early, if anything did.
    """

    subject: str
    programs: list[Recorded] = field(default_factory=list)
    graph_breaks: dict[str, int] = field(default_factory=dict)
    broken_at: list[str] = field(default_factory=list)
    recompilations: list[str] = field(default_factory=list)
    eager_functions: list[str] = field(default_factory=list)
    compile_seconds: dict[str, float] = field(default_factory=dict)
    statistics: str = ""
    error: BaseException | None = None

    def report(
        self, directory: str | os.PathLike[str], *, what_if_seconds: float = WHAT_IF_SECONDS,
    ) -> tuple[Path, ...]:
        """Write a report of each program into a directory of its own: ``1-training``, ``2-inference`` ...

        Args:
            directory: Where to; it is made.
            what_if_seconds: For advice and alternatives of each program, which are compiled; 0 leaves those out.

        Returns:
            These directories.

        Raises:
            OSError: The directory cannot be written.
        """
        events = tuple(self._events())
        return tuple(
            write_directory(
                advised(replace(program, events=events), what_if_seconds),
                Path(directory) / f"{number}-{program.graph.name}",
            ).parent for number, program in enumerate(self.programs, start=1)
        )

    def _events(self) -> Iterator[Event]:
        """Yield what torch has told of its captures."""
        for place, reason in zip_longest(self.broken_at, self.graph_breaks, fillvalue=""):
            yield Event(place or "somewhere", "graph break", 0.0, reason)
        for text in self.recompilations:
            name, _, reason = text.partition(": ")
            yield Event(name, "recompilation", self.compile_seconds.get(name, 0.0), reason)
        for text in self.eager_functions:
            yield Event("function", "eager frame", 0.0, text)
        for name, seconds in self.compile_seconds.items():
            yield Event(name, "capture", seconds, "by TorchDynamo, with what the backend compiles")

    def text(self) -> str:
        """Return the findings for people, the programs last."""
        parts = [
            f"{self.subject}: {counted(len(self.programs), 'program')} for the IPU, "
            f"{counted(len(self.broken_at), 'graph break')}, {counted(len(self.recompilations), 'recompilation')}"
        ]
        if not self.programs:
            parts.append(
                "Nothing was compiled for the IPU.\n"
                '  do      use torch.compile(model, backend="ipu") or torchipu.TrainStep, and call the result'
            )
        parts += section("Graph breaks: the code between two graphs runs eagerly", self.broken_at)
        parts += section("  reasons", (f"{count} x {reason}" for reason, count in self.graph_breaks.items()))
        parts += section("Recompilations", self.recompilations)
        parts += section("Left to eager", self.eager_functions)
        for number, program in enumerate(self.programs, start=1):
            parts.append(
                f"\nProgram {number} of {len(self.programs)}\n{captured(program.graph).text()}\n"
                f"{format_full(program.profile)}"
            )
        if self.statistics:
            parts.append(f"\nMagnitudes in the last runs, and what half would lose\n{self.statistics}")
        if self.error is not None:
            parts.append(f"\nThe run ended early: {type(self.error).__name__}: {self.error}")
        return "\n".join(parts)

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        """Return the findings for a notebook: counts and places first, then the figures of each program."""
        counts = markup.table([
            ("programs for the IPU", len(self.programs)), ("graph breaks", len(self.broken_at)),
            ("recompilations", len(self.recompilations)), ("left to eager", len(self.eager_functions)),
        ], caption=self.subject)
        places = [
            *(("graph break", place) for place in self.broken_at),
            *(("recompilation", reason) for reason in self.recompilations),
            *(("left to eager", reason) for reason in self.eager_functions),
        ]
        parts = [counts, markup.table(places, ("what", "where, and why")) if places else ""]
        for program in self.programs:
            parts.append(markup.text(captured(program.graph).text()) + markup.figures(program.profile))
        if self.error is not None:
            parts.append(markup.text(f"The run ended early: {type(self.error).__name__}: {self.error}"))
        return "".join(parts)


def explain(
    function: Callable[..., Any], *inputs: Any, options: Mapping[str, Any] | None = None
) -> Explanation:
    """Compile a model or a function for the IPU, run it once, and say what became of it.

    The backward graph is compiled too when the result holds a scalar that requires a gradient. Gradients that the
    parameters had are restored. What `torch.compile` has compiled before is forgotten, as `torch._dynamo.explain` does:
    it is compiled again when it is called next.

    Args:
        function: A module, or a function of tensors.
        inputs: Its arguments.
        options: As for ``torch.compile(..., options=...)``.
    """
    torch._dynamo.reset()  # code that has run before, in this model or in another one, would not be compiled again
    compiled = torch.compile(function, backend=ipu_backend, options=dict(options or {}))
    name = getattr(function, "__name__", type(function).__name__)
    with listening(Explanation(name)) as explanation:
        run_once(compiled, inputs, list(function.parameters()) if isinstance(function, torch.nn.Module) else [])
    return explanation


def explain_function(reference: str) -> Explanation:
    """Explain ``module:function``.

    The function takes no arguments. It either returns ``(model, inputs)``, which are then compiled and run once,
    or does all of it itself, with either door. What `torch.compile` has compiled before is forgotten, as by `explain`.

    Raises:
        ValueError: The reference is not of this form, or names nothing that can be called.
        ModuleNotFoundError: There is no such module.
    """
    module_name, _, function_name = reference.partition(":")
    sys.path.insert(0, str(Path.cwd()))  # as python -m does
    try:
        function = getattr(importlib.import_module(module_name), function_name, None)
        if not callable(function):
            raise ValueError(f"{module_name} has no function {function_name!r}")
        torch._dynamo.reset()
        with listening(Explanation(reference)) as explanation:
            made = function()
            if is_model_and_inputs(made):
                model, inputs = made
                run_once(torch.compile(model, backend=ipu_backend), as_tuple(inputs), list(model.parameters()))
    finally:
        sys.path.remove(str(Path.cwd()))
    return explanation


def explain_script(path: str, arguments: Sequence[str] = ()) -> Explanation:
    """Run a script as ``python path arguments...`` would, and say what it compiled for the IPU.

    What `torch.compile` has compiled before is forgotten, as by `explain`.

    Raises:
        FileNotFoundError: There is no such script.
    """
    refuse_missing(path)
    torch._dynamo.reset()
    with listening(Explanation(path)) as explanation:
        run_script(path, arguments)
    return explanation


@contextmanager
def listening(explanation: Explanation) -> Iterator[Explanation]:
    """Fill an explanation with what is compiled meanwhile; an exception ends the run and is kept."""
    reasons_before = graph_break_reasons()
    clear_compilation_metrics()
    with recording() as programs, holding() as counting:
        try:
            yield explanation
        except SystemExit as exit_:
            if exit_.code not in (None, 0):
                explanation.error = exit_
        except Exception as error:  # whatever the user's code raises: what was found before it is still of use
            explanation.error = error
    explanation.programs += programs
    magnitudes = magnitudes_of(counting)
    explanation.statistics = format_statistics(magnitudes) if magnitudes else ""
    explanation.graph_breaks.update(graph_break_reasons() - reasons_before)
    for metrics in get_compilation_metrics():
        note_metrics(explanation, metrics)


def note_metrics(explanation: Explanation, metrics: Any) -> None:
    """Add what torch recorded about one compilation."""
    name = metrics.co_name or "function"
    seconds = metrics.entire_frame_compile_time_s or 0.0
    explanation.compile_seconds[name] = explanation.compile_seconds.get(name, 0.0) + seconds
    resumed = _RESUMED.fullmatch(metrics.co_name or "")
    if resumed:
        place = f"{metrics.co_filename}:{resumed['line']} in {resumed['function']}"
        if place not in explanation.broken_at:
            explanation.broken_at.append(place)
    if metrics.fail_reason and _LIMIT in metrics.fail_reason.splitlines()[0]:
        explanation.eager_functions.append(
            f"after too many recompilations: {one_line(metrics.recompile_reason or metrics.fail_reason)}"
        )
    elif metrics.fail_reason:
        place = f"{metrics.co_filename}:{metrics.co_firstlineno} in {name}"
        explanation.eager_functions.append(f"{place}: {one_line(metrics.fail_reason)}")
    elif metrics.recompile_reason:
        explanation.recompilations.append(f"{metrics.co_name}: {one_line(metrics.recompile_reason)}")


def graph_break_reasons() -> Counter[str]:
    """Return how often torch met each reason, the reason in one line."""
    seen: Counter[str] = Counter()
    # A branch on a tensor is counted as unimplemented only, other breaks as both.
    for reasons in (counters["graph_break"], counters["unimplemented"]):
        for reason, count in reasons.items():
            line = one_line(reason)
            if _LIMIT not in line:
                seen[line] = max(seen[line], count)
    return seen


def run_once(function: Callable[..., Any], inputs: Sequence[Any], parameters: Sequence[torch.nn.Parameter]) -> None:
    """Call a function, and go backward from the scalars that it returns."""
    kept = [parameter.grad for parameter in parameters]
    outputs = function(*inputs)
    try:
        for output in outputs if isinstance(outputs, (tuple, list)) else (outputs,):
            if isinstance(output, torch.Tensor) and output.requires_grad and output.numel() == 1:
                output.backward(retain_graph=True)
    finally:
        for parameter, gradient in zip(parameters, kept, strict=True):
            parameter.grad = gradient


def is_model_and_inputs(made: object) -> bool:
    """Whether a function returned ``(model, inputs)``."""
    return isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], torch.nn.Module)


def as_tuple(inputs: object) -> tuple[Any, ...]:
    """Return the inputs of a model as a tuple: a single tensor stands for itself."""
    return tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)


def one_line(reason: str) -> str:
    """Return torch's first line, with its explanation when that follows."""
    lines = [" ".join(line.split()) for line in reason.strip().splitlines()]
    explained = [line.removeprefix("Explanation: ") for line in lines[1:3] if line.startswith("Explanation: ")]
    return ": ".join([lines[0] if lines else "", *explained])


def counted(number: int, noun: str) -> str:
    """Return ``1 program`` or ``2 programs``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def section(title: str, lines: Iterable[str]) -> list[str]:
    """Return a title and indented lines, or nothing when there are no lines."""
    body = [f"    {line}" for line in lines]
    return [title, *body] if body else []
