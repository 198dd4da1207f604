"""Notes which Python values of its module a step reads: a capture is not used when they have changed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from torchipu.lightning.expressions import Guard, Number, Pending, Surroundings, number
from torchipu.lightning.noted_reads import watching_class

PLAIN = (bool, int, float, str, type(None))
_OF_LOOP = frozenset({"current_epoch", "global_step", "trainer", "optimizers", "lr_schedulers"})


class Reading:
    """What one run of a step has read.

    Args:
        module: The Lightning module.
        guards: Where it is noted.
        counters: Attributes that a run before has written: numbers that change.

    Attributes:
        steps: Gives how many updates the step has made so far, which only one of manual optimisation does.
    """

    def __init__(self, module: Any, guards: list[Guard], counters: set[str]) -> None:
        self.module, self.guards, self.counters = module, guards, counters
        self.seen: set[str] = set()
        self.steps: Callable[[], int] = lambda: 0
        self.before = {name: value for name, value in module.__dict__.items() if isinstance(value, PLAIN)}
        self.written: set[str] = set()

    def attribute(self, name: str, value: Any) -> Any:
        """Return what the step is given for an attribute."""
        if name in self.counters:
            if type(value) in (int, float):  # a number that the step has computed is followed already
                return number(value, lambda at: at.names.get(name, self.module.__dict__.get(name)), self.guards)
            return value
        if name not in self.seen and not name.startswith("_") and name not in ("training", "log"):
            self.seen.add(name)
            self.guards.append(Guard(lambda at: self.module.__dict__.get(name), value))
        return value

    def of_loop(self, name: str, get: Callable[[], Any]) -> Any:
        """Return what the step is given of the state of the training."""
        if name == "global_step":
            found, done = get(), self.steps()
            if isinstance(found, Number):  # the module asks the Trainer
                return found
            return number(found + done, lambda at: at.names["global_step"] + done, self.guards)
        if name == "current_epoch":
            self._once(name, lambda at: self.module.current_epoch)
            return get()
        if name == "trainer":
            found = get()
            return TrainerView(found, self)
        self._once("learning rates", lambda at: _learning_rates(self.module))
        return get()

    def _once(self, key: str, expression: Callable[[Surroundings], Any]) -> None:
        if key not in self.seen:
            self.seen.add(key)
            self.guards.append(Guard(expression, expression(Surroundings())))

    def finish(self) -> None:
        """Note which numbers the step has written."""
        for name, value in self.module.__dict__.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool) and self.before.get(name) is not value:
                self.written.add(name)

    def plain_attributes(self) -> list[tuple[dict[str, Any], str, Any]]:
        """Return the plain attributes of the parts of the module, which are compared as a whole."""
        return [
            (member.__dict__, name, value)
            for member in self.module.modules() if member is not self.module and not _is_metric(member)
            for name, value in member.__dict__.items()
            if type(value) in (bool, int, float, str) and not name.startswith("_") and name != "training"
        ]


def _is_metric(member: torch.nn.Module) -> bool:
    return any(kind.__module__.startswith("torchmetrics") for kind in type(member).__mro__)


def _learning_rates(module: Any) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(float(group["lr"]) for group in o.param_groups) for o in module.trainer.optimizers)


class TrainerView:
    """The Trainer, whose plain attributes are noted when the step reads them.

    Args:
        trainer: The Trainer.
        reading: Where they are noted.
    """

    def __init__(self, trainer: Any, reading: Reading) -> None:
        self.__dict__.update(_trainer=trainer, _reading=reading)

    def __getattr__(self, name: str) -> Any:
        reading, trainer = self._reading, self._trainer
        if name == "global_step":
            return reading.of_loop(name, lambda: trainer.global_step)
        value = getattr(trainer, name)
        if name in METRICS:
            return _Metrics(trainer, name, reading)
        if isinstance(value, PLAIN):
            reading._once(f"trainer.{name}", lambda at: getattr(trainer, name))
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._trainer, name, value)


METRICS = ("callback_metrics", "logged_metrics", "progress_bar_metrics")


class _Metrics(Mapping[str, Any]):
    """Metrics of the Trainer, whose values are taken when what was noted is done."""

    def __init__(self, trainer: Any, name: str, reading: Reading) -> None:
        self._trainer, self._name, self._reading = trainer, name, reading

    def __getitem__(self, key: str) -> Any:
        if key not in self:
            raise KeyError(key)
        trainer, name = self._trainer, self._name
        return Pending(lambda at: getattr(trainer, name)[key], f"{name}[{key!r}]", lambda value: value)

    def __contains__(self, key: object) -> bool:
        trainer, name = self._trainer, self._name
        self._reading._once(f"{name}.{key}", lambda at: key in getattr(trainer, name))
        return key in getattr(trainer, name)

    def __iter__(self) -> Iterator[str]:
        return iter(getattr(self._trainer, self._name))

    def __len__(self) -> int:
        return len(getattr(self._trainer, self._name))


@contextlib.contextmanager
def watched(module: Any, guards: list[Guard], counters: set[str]) -> Iterator[Reading]:
    """Note what a step reads of its module's plain attributes and of the state of the training.

    Args:
        module: The Lightning module.
        guards: Receives what must stay as it is.
        counters: Attributes that the step itself writes.
    """
    reading = Reading(module, guards, counters)
    kind: Any = type(module)

    def get(self: Any, name: str) -> Any:
        if name in _OF_LOOP and name not in object.__getattribute__(self, "__dict__"):
            return reading.of_loop(name, lambda: kind.__getattribute__(self, name))
        value = kind.__getattribute__(self, name)
        if isinstance(value, PLAIN) and name in object.__getattribute__(self, "__dict__"):
            return reading.attribute(name, value)
        return value

    module.__class__ = watching_class(kind, {"__getattribute__": get})
    try:
        yield reading
    finally:
        module.__class__ = kind
        reading.finish()
