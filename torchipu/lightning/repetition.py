"""Whether a step does again what it did: it is run twice on tensors without values, the second time on what it left.

On the CPU a step's Python runs for every micro-batch, and reads what the one before has left; in a program it has run
once. Nothing differs where the second run computes what the first did, and leaves what the first left.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import torch
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils import _pytree as pytree

from torchipu.capture.process_wide import capturing
from torchipu.capture.reachable import Kept, Reachable
from torchipu.lightning.effects import PLAIN, Effect
from torchipu.lightning.expressions import Number, Output, Pending, Surroundings
from torchipu.lightning.value_numbers import ValueNumbers
from torchipu.lightning.verdict import Verdict
from torchipu.lightning.written_attributes import OF_LIGHTNING

MOST_PLACES = 16
"""Places that a step writes of which each is tried by itself, to find those that matter."""


@dataclass(slots=True)
class Outcome:
    """What a run of a step did.

    Attributes:
        computed: Its ops, what it logged and what it returned.
        effects: What it left, by place.
        values: What of that is compared, by place.
        constant: Places whose values are the same in every run.
        tensors: Those that effects leave.
        line: Where it first did another op than was expected.
    """

    computed: Any
    effects: dict[Any, Effect] = field(default_factory=dict)
    values: dict[Any, Any] = field(default_factory=dict)
    constant: set[Any] = field(default_factory=set)
    tensors: Sequence[torch.Tensor] = ()
    line: str = ""


class Repetition:
    """Runs a step again and again on tensors without values, and compares.

    Args:
        step: The capture.
        tensors: Examples of its inputs.
    """

    def __init__(self, step: Any, tensors: Sequence[torch.Tensor]) -> None:
        self._step, self._module = step, step.inner
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)
        self._numbers = ValueNumbers()
        self._tensors = tensors
        self._inputs: list[torch.Tensor] = []
        self._states: dict[str, torch.Tensor] = {}

    def _prepare(self) -> None:
        """Make tensors without values of the inputs and the states, once for all runs."""
        if self._inputs:
            return
        self._states = {
            name: self._named(tensor, name)
            for name, tensor in (*self._step.named_parameters(), *self._step.named_buffers())
        }
        self._inputs = [self._named(tensor.detach(), ("input", place)) for place, tensor in enumerate(self._tensors)]

    def _named(self, tensor: torch.Tensor, name: Any) -> torch.Tensor:
        fake = self._fake.from_tensor(tensor)
        self._numbers.name(fake, name)
        return fake

    # ------------------------------------------------------------------ running
    def _run(self, left: Sequence[tuple[Effect, Sequence[torch.Tensor]]], first: Outcome | None = None) -> Outcome:
        """Run the step behind what an earlier run has left; everything is set back afterwards."""
        step = copy.copy(self._step)
        step.counters = set(self._step.counters)
        kept = Kept(Reachable(self._module, libraries=OF_LIGHTNING))
        numbers = self._numbers
        try:
            self._prepare()
            numbers.begin(None if first is None else first.computed[0])
            for effect, tensors in left:
                effect.do(self._module, Surroundings(outputs=tensors))
            step.__dict__["run"] = lambda tensors: self._ran(step, tensors)
            with self._in_force():
                step.forward(*self._inputs)
            return self._outcome(step)
        except Exception as error:  # the step's own, or what such tensors cannot do
            return Outcome([[], type(error)], line=numbers.line)
        finally:
            kept.restore()

    def _ran(self, step: Any, tensors: Sequence[torch.Tensor]) -> Any:
        """Run the step alone: what is done with all that it leaves is no part of it."""
        ran = type(step).run(step, tensors)
        self._numbers.stop()
        return ran

    @contextlib.contextmanager
    def _in_force(self) -> Iterator[None]:
        with (
            capturing(), torch.inference_mode(False), torch.set_grad_enabled(self._step.loss_scale != 0.0),
            torch.random.fork_rng(devices=[]), tracing(TracingContext(self._fake)),
            _reparametrize_module(self._step, self._states), self._fake, self._numbers,
        ):
            yield

    # ------------------------------------------------------------------ what a run did
    def _outcome(self, step: Any) -> Outcome:
        tape, numbers = step.tape, self._numbers
        plain = [action for action in tape.actions if not isinstance(action, Effect)]
        written = [action for action in tape.actions if isinstance(action, Effect)]
        # What a metric returns is not known here, so that it cannot be put in its place.
        judged = [effect for effect in written if not (effect.is_guarded or _is_pending(effect.content))]
        effects = {effect.key: effect.held(_plain) for effect in judged}
        found = Outcome(
            [list(numbers.done), [self._seen(one, tape.tensors)[0] for one in plain],
             self._seen(step.returned, tape.tensors)[0]],
            effects, tensors=list(tape.tensors), line=numbers.line,
        )
        for effect in judged:
            found.values[effect.key], is_constant = self._seen(effect.content, tape.tensors)
            if is_constant:
                found.constant.add(effect.key)
        return found

    def _seen(self, value: Any, tensors: Sequence[torch.Tensor]) -> tuple[Any, bool]:
        """Return what of a value is compared, and whether it is the same in every run."""
        if is_dataclass(value) and not isinstance(value, (type, Output)):
            value = [type(value).__name__, *(getattr(value, one.name) for one in fields(value))]
        leaves, spec = pytree.tree_flatten(value)
        seen = [self._leaf(leaf, tensors) for leaf in leaves]
        return (tuple(leaf for leaf, _ in seen), str(spec)), all(is_constant for _, is_constant in seen)

    def _leaf(self, leaf: Any, tensors: Sequence[torch.Tensor]) -> tuple[Any, bool]:
        if isinstance(leaf, Output):
            leaf = tensors[leaf.place]
        if isinstance(leaf, torch.Tensor):
            number = self._numbers.of(leaf)
            return ("tensor", number), self._numbers.is_constant(number)
        if isinstance(leaf, (Number, Pending)):
            return type(leaf).__name__, False
        if isinstance(leaf, PLAIN):
            return (type(leaf).__name__, leaf), True
        if isinstance(leaf, (set, frozenset)):
            members = [self._leaf(one, tensors) for one in leaf]
            return frozenset(seen for seen, _ in members), all(is_constant for _, is_constant in members)
        if isinstance(leaf, torch.nn.Module):
            return id(leaf), True
        return type(leaf).__qualname__, True

    # ------------------------------------------------------------------ comparing
    def verdict(self) -> Verdict | None:
        """Return what differs, or None where the step cannot be run so, or never does the same twice."""
        first = self._run([])
        if len(first.computed) != 3:
            return None
        left = {key: (effect, first.tensors) for key, effect in first.effects.items()}
        second = self._run(list(left.values()), first)
        if second.computed == first.computed:
            return _compared(first, dict.fromkeys((*first.effects, *second.effects), second))
        if self._run([], first).computed != first.computed:
            return None
        if len(left) > MOST_PLACES:
            return Verdict(dict.fromkeys(left, second.line))
        alone = {key: self._run([one], first) for key, one in left.items()}
        told = {key: other.line for key, other in alone.items() if other.computed != first.computed}
        if not told:  # several matter together
            return Verdict(dict.fromkeys(left, second.line))
        found = _compared(first, alone)
        return replace(found, told={**found.told, **told})


def _compared(first: Outcome, others: Mapping[Any, Outcome]) -> Verdict:
    """Compare what runs leave at each place with what the first did, which they have begun from."""
    told: dict[Any, str] = {}
    once, anew, unplayed = set(), set(), []
    for key, other in others.items():
        before, now = first.effects.get(key), other.effects.get(key)
        if now is None:  # it is left as it is
            if key in first.constant:
                once.add(key)
            else:
                told[key] = ""
        elif before is None:
            unplayed.append(now.looked(is_state=True))
        elif first.values[key] != other.values[key]:
            told[key] = ""
        elif before.extends and not now.extends:
            anew.add(key)
        elif before.extends != now.extends or (before.extends and before.look.read_at):
            told[key] = ""  # where it grows, what is read of it may change at any time
    return Verdict(told, frozenset(once), frozenset(anew), tuple(unplayed))


def _is_pending(content: Any) -> bool:
    return any(isinstance(leaf, Pending) for leaf in pytree.tree_leaves(content))


def _plain(content: Any) -> Any:
    """Return a structure with numbers as they are now."""
    return pytree.tree_map(lambda leaf: leaf.plain if isinstance(leaf, Number) else leaf, content)


