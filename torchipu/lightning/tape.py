"""What a step does beside computing: logs, updates of metrics, writes of attributes; noted, and done later."""

from __future__ import annotations

import contextlib
import operator
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from torchipu.lightning.effects import Assigned, Bound, Effect, Filled, Written, is_data
from torchipu.lightning.expressions import Number, Output, Pending, Surroundings, evaluated
from torchipu.lightning.known_metrics import KnownMetric, known_metric
from torchipu.lightning.noted_reads import TRACED, NotedAttributes
from torchipu.lightning.verdict import Verdict
from torchipu.lightning.written_attributes import Containers, Elsewhere

METRIC_METHODS = ("forward", "update", "compute", "reset")


@dataclass(slots=True)
class Logged:
    """A call of ``self.log``.

    Lightning checks a call anew for every batch, and copies what it knows of the metric, which takes longer than all
    else that it does for a batch. Once it has taken a call, further values of the same metric are handed over directly.
    """

    name: str
    value: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    known: KnownMetric | None = None

    def do(self, module: Any, at: Surroundings) -> None:
        """Log the value of a micro-batch."""
        value = self.value(at) if type(self.value) is Output else evaluated(self.value, at)
        kwargs = self.kwargs
        if any(isinstance(one, Number) for one in kwargs.values()):
            kwargs = {key: evaluated(one, at) for key, one in kwargs.items()}
        if self.known is None or not self.known.take(module, value, kwargs.get("batch_size")):
            module.log(self.name, value, *self.args, **kwargs)
            self.known = known_metric(module, self.name, value, self.args, kwargs)


@dataclass(frozen=True, slots=True)
class MetricCall:
    """A call of a metric's method, done with real values on the host."""

    metric: Any
    method: str
    args: Any
    kwargs: Any
    number: int

    def do(self, module: Any, at: Surroundings) -> None:
        """Call the method."""
        called = self.metric if self.method == "forward" else getattr(self.metric, self.method)
        at.results[self.number] = called(*evaluated(self.args, at), **evaluated(self.kwargs, at))


class Tape:
    """Notes what a step does while it is captured; nothing of it happens then.

    Args:
        module: The Lightning module.

    Attributes:
        actions: What was noted, in order.
        tensors: Those of the capture that are handed back: for actions, and for what the step returns.
        unplayed: What the step does only where it runs on what it has left, which nothing does for it.
        sums: Places of outputs that replicas add up, rather than average, by the word of ``reduce_fx``.
    """

    def __init__(self, module: Any) -> None:
        self.module = module
        self.actions: list[Any] = []
        self.tensors: list[torch.Tensor] = []
        self.reductions: dict[int, str] = {}
        self.has_numbers = False
        self.unplayed: tuple[Effect, ...] = ()

    # ------------------------------------------------------------------ values
    def hold(self, value: Any) -> Any:
        """Return a structure in which every tensor of the capture is an `Output`."""
        return pytree.tree_map(self._held, value)

    def _held(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if not isinstance(leaf, TRACED):
            with _disable_current_modes():
                return leaf.detach().clone()
        place = next((place for place, tensor in enumerate(self.tensors) if tensor is leaf), None)
        if place is None:
            place = len(self.tensors)
            self.tensors.append(leaf)
        return Output(place)

    # ------------------------------------------------------------------ what the step calls
    def log(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        """Stand in for ``LightningModule.log``."""
        if isinstance(value, (int, float)) and not isinstance(value, Number):
            self.has_numbers = True
        if isinstance(value, torch.Tensor) and isinstance(value, TRACED):
            # A value of its own for each log: the same tensor may be logged with several reductions.
            value = value.detach()
        held = self.hold(value)
        reduction = kwargs.get("reduce_fx", "mean")
        word = reduction if isinstance(reduction, str) else getattr(reduction, "__name__", "mean")
        if isinstance(held, Output):
            self.reductions[held.place] = word
        self.actions.append(Logged(name, held, args, kwargs))

    def _metric_call(self, metric: Any, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        number = len(self.actions)
        self.actions.append(MetricCall(metric, method, self.hold(args), self.hold(kwargs), number))
        if method not in ("forward", "compute"):
            return None
        label = type(metric).__name__

        def pending(get: Callable[[Any], Any]) -> Pending:
            return Pending(lambda at: get(at.results[number]), label, self.hold)

        if hasattr(metric, "keys") and callable(metric.keys):
            return {key: pending(operator.itemgetter(key)) for key in metric.keys()}  # noqa: SIM118
        return pending(lambda found: found)

    # ------------------------------------------------------------------ in force
    @contextlib.contextmanager
    def noting(self) -> Iterator[None]:
        """Stand in for what would act, while the step runs; then note what it has written into attributes, and undo."""
        reads = NotedAttributes()
        with contextlib.ExitStack() as stack:
            elsewhere = Elsewhere(self.module, reads)
            stack.callback(elsewhere.restore)
            stack.callback(reads.restore)  # in any case, and below before the rest
            elsewhere.begin()
            containers = Containers(self.module, reads)
            stack.enter_context(standing_in(self.module, {"log": self.log}))
            for metric in outermost_metrics(self.module):
                stack.enter_context(standing_in(metric, {
                    method: lambda *args, _metric=metric, _method=method, **kwargs: self._metric_call(
                        _metric, _method, args, kwargs
                    ) for method in METRIC_METHODS
                }))
            try:
                yield
            finally:
                reads.restore()
                written = [*containers.undo(), *elsewhere.written()]
        self.actions += [effect.held(self.hold) for effect in written]

    def play(self, at: Surroundings) -> None:
        """Do for a micro-batch what was noted."""
        for action in self.actions:
            if not isinstance(action, Effect) or action.is_followed:
                action.do(self.module, at)

    # ------------------------------------------------------------------ what the next micro-batch does
    def may_differ(self) -> bool:
        """Whether the step may read what it leaves: where it does not, every micro-batch does the same."""
        return any(
            isinstance(action, Effect) and not action.is_guarded
            and (action.look.may_matter or not action.is_followed) for action in self.actions
        )

    def judge(self, verdict: Verdict) -> None:
        """Take what was found when the step ran a second time on what it leaves.

        Args:
            verdict: What differs then.
        """
        self.actions = [
            self._judged(action, verdict) if isinstance(action, Effect) else action for action in self.actions
        ]
        self.unplayed = verdict.unplayed

    def _judged(self, effect: Effect, verdict: Verdict) -> Effect:
        key = effect.key
        line = verdict.told.get(key)
        judged: Any = effect.looked(is_state=line is not None, read_at=effect.look.read_at or line or "")
        if key in verdict.anew:
            judged = judged.anew()
        elif key in verdict.once and effect.extends:
            judged = judged.once(self.module)
        if line is None and isinstance(judged, (Bound, Filled)) and is_data(judged.content):
            judged = replace(judged, is_followed=True)
        found: Effect = judged
        return found

    def warn_of_states(self, step: str, told: set[str]) -> None:
        """Say once what the step leaves that it reads again, and what else is not followed.

        Args:
            step: Name of the step.
            told: What has been told of already; what is told now is added.
        """
        kind = type(self.module).__name__
        for action in (*self.actions, *self.unplayed):
            if isinstance(action, (Bound, Filled)):
                if action.look.is_state or not (action.is_followed or _is_made(action)):
                    self._warn_of_elsewhere(action, step, kind, told)
            elif isinstance(action, Written) and action.look.is_state:
                name = ".".join(str(part) for part in action.path if part != "")
                is_tensor = isinstance(action, Assigned) and isinstance(action.content, Output)
                what = "another tensor" if is_tensor else "other content"
                _warn_once(
                    told, name, f"{step} gives {name} of {kind} {what}: it is no buffer, so that every micro-batch "
                    f"reads what it held when the step was captured{_read(action.look.read_at)}. If it is to change, "
                    f'call self.register_buffer("{action.path[1]}", ...) in __init__, and write into it',
                )

    @staticmethod
    def _warn_of_elsewhere(action: Bound | Filled, step: str, kind: str, told: set[str]) -> None:
        what, words = action.told, "that tensor" if isinstance(action, Bound) and action.is_followed else "it"
        _warn_once(
            told, what, f"{what} is changed by {step} of {kind}: every micro-batch reads what {words} was when the "
            f"step was captured{_read(action.look.read_at)}. If it is to change, keep it in an attribute of the "
            "module: a number, or a buffer that the step writes into",
        )

    def warn_of_numbers(self, step: str) -> None:
        """Say once that a plain number was logged."""
        names = [a.name for a in self.actions if isinstance(a, Logged) and type(a.value) in (int, float, bool)]
        if names:
            warnings.warn(
                f"{step} logs {names[0]!r}, a Python number that torchipu cannot follow: it is taken anew only when "
                "the step is captured again. Log it in a hook such as on_train_batch_end", stacklevel=2,
            )


def _is_made(action: Bound | Filled) -> bool:
    """Whether there was nothing in its place before."""
    return isinstance(action, Bound) and not action.was_there


def _read(place: str) -> str:
    return f", at {place}" if place else ""


def _warn_once(told: set[str], what: str, text: str) -> None:
    if what not in told:
        told.add(what)
        warnings.warn(f"torchipu: {text}", stacklevel=4)


def outermost_metrics(module: torch.nn.Module) -> list[Any]:
    """Return the metrics and collections of metrics in a module that lie in no other one."""
    try:
        from torchmetrics import Metric, MetricCollection
    except ImportError:
        return []
    found: list[Any] = []

    def search(member: torch.nn.Module) -> None:
        for child in member.children():
            if isinstance(child, (Metric, MetricCollection)):
                if not any(child is known for known in found):
                    found.append(child)
            else:
                search(child)

    search(module)
    return found


@contextlib.contextmanager
def standing_in(owner: Any, members: dict[str, Any]) -> Iterator[None]:
    """Give an object attributes of its own, and take them off again."""
    held = owner.__dict__
    before = {name: held[name] for name in members if name in held}
    held.update(members)
    try:
        yield
    finally:
        for name in members:
            held.pop(name, None)
        held.update(before)
