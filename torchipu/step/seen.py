"""What a step sees of its own making and running, for its report."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchipu.capture.built import Built
from torchipu.capture.repeated_layers import captured_once
from torchipu.capture.stand_ins import has_values, stand_in_of
from torchipu.capture.tensor_classes import CONSTANTS
from torchipu.errors import CaptureError
from torchipu.host.bound_plan import BoundPlan
from torchipu.host.waits import WAITS
from torchipu.ir.graph import Graph
from torchipu.options import Options
from torchipu.report.facts.observed import Event, Observed
from torchipu.target import lookup_target

MOST_SCALES = 1000
"""Changes of the loss scale that are remembered, the last ones."""
STATE_TYPES = ("first_moment_type", "second_moment_type")


@dataclass(slots=True)
class Seen:
    """What a step has seen.

    Attributes:
        capture_seconds: That the last capture took, with what is added to its graph.
        plan_seconds: That planning for the host took.
        recompilations: Why it was compiled again, with the seconds that it took.
        cache_hits: Where captures were found that were not made again.
        example: Arguments and keyword arguments of one micro-batch, without values.
        calls: That were timed.
        around_seconds: Of these outside the engine.
        between_seconds: Between the end of a call and the begin of the next.
        waits: For batches of loaders between calls.
        waited_seconds: That these took.
        ended: When the last call ended; 0 before the first.
        waits_at_end: Waits for batches until then, with their seconds.
        loss_scales: Numbers of calls from which on the loss scale was another, with it.
    """

    capture_seconds: float = 0.0
    plan_seconds: float = 0.0
    recompilations: list[tuple[str, float]] = field(default_factory=list)
    cache_hits: list[str] = field(default_factory=list)
    example: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
    calls: int = 0
    around_seconds: float = 0.0
    between_seconds: float = 0.0
    waits: int = 0
    waited_seconds: float = 0.0
    ended: float = 0.0
    waits_at_end: tuple[int, float] = (0, 0.0)
    loss_scales: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=MOST_SCALES))

    def keep_example(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Remember the sizes of the inputs of one micro-batch."""
        self.example = pytree.tree_map_only(
            torch.Tensor, lambda tensor: tensor.detach().to("meta"), (arguments, keywords),
        )

    def note_scale(self, call: int, scale: float) -> None:
        """Remember the loss scale of a call, where it is another than before."""
        if not self.loss_scales or self.loss_scales[-1][1] != scale:
            self.loss_scales.append((call, scale))

    def timed(self, run: Callable[[], Any], bound: BoundPlan) -> Any:
        """Run a call and note where its time goes."""
        began, in_engine = time.perf_counter(), bound.seconds
        waits, waited = WAITS.count, WAITS.seconds
        results = run()
        now = time.perf_counter()
        if self.ended:
            self.between_seconds += began - self.ended
            self.waits += waits - self.waits_at_end[0]
            self.waited_seconds += waited - self.waits_at_end[1]
        self.ended, self.waits_at_end = now, (WAITS.count, WAITS.seconds)
        self.calls += 1
        self.around_seconds += now - began - (bound.seconds - in_engine)
        return results

    def observed(self, bound: BoundPlan, *, counts: bool, loss_scale: float | None) -> Observed:
        """Return all of it.

        Args:
            bound: The program on the host.
            counts: Whether it counts magnitudes.
            loss_scale: Of the last call; None for inference.
        """
        events = [Event("model", "capture", self.capture_seconds), Event("host plan", "plan", self.plan_seconds)]
        events += [Event("model", "cache hit", 0.0, where) for where in self.cache_hits]
        events += [Event("step", "recompilation", seconds, reason) for reason, seconds in self.recompilations]
        return Observed(
            tuple(events), bound.step_times(), self.around_seconds, self.between_seconds, self.calls,
            self.waits, self.waited_seconds,
            bound.statistics() if counts and bound.has_run else (), loss_scale, tuple(self.loss_scales),
        )


def why_again(before: Sequence[object], now: Sequence[object]) -> str:
    """Return what is another in the signature of a call.

    Args:
        before: Inputs, modes of modules, parameters, buffers.
        now: The same of this call.
    """
    if len(before) != 4 or len(now) != 4:
        return "another program was asked for"
    if before[0] != now[0]:
        return f"inputs are {_inputs(now[0])}, and were {_inputs(before[0])}"
    words = ("modules are in another mode, training or not", "parameters are others, or freeze otherwise",
             "buffers are others")
    differ = (word for word, one, other in zip(words, before[1:], now[1:], strict=True) if one != other)
    return next(differ, "inputs are nested in another way")


def _inputs(described: object) -> str:
    leaves = described if isinstance(described, tuple) else ()
    return ", ".join(
        f"{str(kind).removeprefix('torch.')}{list(shape)}{_of_class(*derived)}"
        if isinstance(shape, torch.Size) else repr(kind)
        for shape, kind, *derived in leaves
    )


def _of_class(kind: type | None = None, *attributes: tuple[str, type, object]) -> str:
    """Return what is told of an input of a class of the user's own."""
    told = ", ".join(f"{name}={value}" for name, of, value in attributes if of in CONSTANTS)
    return "" if kind is None else f" of {kind.__name__}({told})"


def graph_again(
    step: Any, built: Built | None, example: tuple[tuple[Any, ...], dict[str, Any]], options: Options,
    samples: int | None,
) -> Graph:
    """Return the graph of a step's model under other options, or for other micro-batches; the step stays as it is.

    Args:
        step: A `torchipu.step.base.ProgramStep`, which nothing else uses meanwhile.
        built: What it captured; taken again where the model would be captured as before.
        example: Arguments and keyword arguments of one micro-batch; their values do not matter.
        options: Of the step.
        samples: Of a micro-batch; None for as many as in the example.

    Raises:
        CaptureError: The model cannot be captured again.
    """
    given = step.options
    arguments, keywords = pytree.tree_map_only(
        torch.Tensor, lambda tensor: tensor if has_values(tensor) else stand_in_of(tensor), example,
    )
    if samples is not None:
        arguments, keywords = resized((arguments, keywords), samples)
    held = None if built is None or samples is not None or capture_key(options) != capture_key(given) else built.capture
    if held is None and not step.captures_again:
        raise CaptureError("the model is captured once only", remedy="use torchipu.TrainStep or torchipu.InferenceStep")
    undo = step._keep()
    if any(getattr(options, name) != getattr(given, name) for name in STATE_TYPES):
        for state in step.optimizer.state.values():
            state.clear()  # states that are there keep their types
    step.options, step.target = options, lookup_target(options.target)
    step._capturing = lambda capture: captured_once(step.model, capture) if held is None else held
    try:
        graph: Graph = step._build(arguments, keywords).graph
        return graph
    finally:
        step.options, step.target, step._capturing = given, lookup_target(given.target), None
        undo()


def resized(example: Any, size: int) -> Any:
    """Return an example with another number of samples: its tensors whose first size is that of the first tensor.

    Args:
        example: Inputs of one micro-batch.
        size: Samples.
    """
    tensors = [leaf for leaf in pytree.tree_leaves(example) if isinstance(leaf, torch.Tensor) and leaf.dim()]
    first = tensors[0].shape[0] if tensors else 0

    def change(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.dim() or tensor.shape[0] != first:
            return tensor
        return torch.zeros((size, *tensor.shape[1:]), dtype=tensor.dtype)

    return pytree.tree_map_only(torch.Tensor, change, example)


def capture_key(options: Options) -> tuple[object, ...]:
    """Return what of the options a capture depends on."""
    return options.backward_scale, options.strict_ops, options.batch_norm_group_size
