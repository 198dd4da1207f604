"""Whether a model is being captured or run for the IPU at this moment; executors say so, models and ops ask."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

import torch

from torchipu import forks

P = ParamSpec("P")
T = TypeVar("T")


def answered_at_capture(question: Callable[P, T]) -> Callable[P, T]:
    """Let Dynamo, which cannot look into a ContextVar, call a function and take its answer as a constant.

    So a model with annotations is one graph of torch.compile too, where they say nothing. The same as
    `torch.compiler.assume_constant_result`, which would load Dynamo.
    """
    question._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return question


@dataclass(frozen=True, slots=True)
class _Running:
    """What runs for the IPU."""

    is_training: bool
    model: torch.nn.Module | None
    told: set[str]


_RUNNING: ContextVar[_Running | None] = ContextVar("running", default=None)
"""Of this thread: another one may call the same module plainly meanwhile."""
Tensors = Sequence[torch.Tensor]
BodyCheck = Callable[[Tensors, Tensors], None]
"""Refuses a body for the tensors that it takes from around it, and those that it writes into."""


@contextlib.contextmanager
def _unchecked() -> Iterator[BodyCheck]:
    yield lambda taken, written: None


_BODY: ContextVar[Callable[[], contextlib.AbstractContextManager[BodyCheck]]] = ContextVar("body", default=_unchecked)
"""What is entered around the capture of a body of a loop or of a choice."""
_OF_FAKE_TENSORS = logging.getLogger("torch._subclasses.fake_tensor")
"""Logs a traceback of torch's insides for every op that is refused while a model is captured."""


@answered_at_capture
def isRunningOnIpu() -> bool:
    """Return whether ``forward`` runs for the IPU; False in a plain call of the same module."""
    return _RUNNING.get() is not None


@answered_at_capture
def is_training_on_ipu() -> bool:
    """Return whether ``forward`` runs for a `trainingModel`."""
    running = _RUNNING.get()
    return running is not None and running.is_training


@answered_at_capture
def model_on_ipu() -> torch.nn.Module | None:
    """Return the model whose ``forward`` is captured for the IPU."""
    running = _RUNNING.get()
    return None if running is None else running.model


def is_news(what: str) -> bool:
    """Return whether a captured model was not told something yet: its forward runs several times."""
    running = _RUNNING.get()
    if running is None or what in running.told:
        return running is None
    running.told.add(what)
    return True


@contextlib.contextmanager
def on_ipu(
    is_training: bool = False, model: torch.nn.Module | None = None, told: set[str] | None = None,
) -> Iterator[None]:
    """Let `isRunningOnIpu` answer True within; an executor wraps this around the capture of a model.

    Args:
        is_training: Whether backward ops are wanted.
        model: What runs.
        told: What it was warned of; added to.
    """
    token = _RUNNING.set(_Running(is_training, model, set() if told is None else told))
    try:
        with _QUIET:
            yield
    finally:
        _RUNNING.reset(token)


@contextlib.contextmanager
def bodies_within(body: Callable[[], contextlib.AbstractContextManager[BodyCheck]]) -> Iterator[None]:
    """Let `in_body` enter a context.

    Args:
        body: Makes it.
    """
    token = _BODY.set(body)
    try:
        yield
    finally:
        _BODY.reset(token)


def in_body() -> contextlib.AbstractContextManager[BodyCheck]:
    """Return a context in which bodies of a loop or of a choice are captured, which only the program will run.

    What it gives is called with what each body takes and writes.
    """
    return _BODY.get()()


class _Quiet:
    """A filter of torch's tracebacks that is there as long as some thread captures."""

    def __init__(self) -> None:
        self._lock = forks.lock()
        self._captures = 0

    def __enter__(self) -> None:
        with self._lock:
            self._captures += 1
            _OF_FAKE_TENSORS.addFilter(_is_worth_saying)  # once, however often

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._captures -= 1
            if not self._captures:
                _OF_FAKE_TENSORS.removeFilter(_is_worth_saying)


_QUIET = _Quiet()


def _is_worth_saying(record: logging.LogRecord) -> bool:
    """Drop tracebacks while a model is captured: the error itself is raised, in the words of torch's kernels."""
    return record.exc_info is None or not isRunningOnIpu()
