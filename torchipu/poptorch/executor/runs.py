"""Calls of a compiled program."""

from __future__ import annotations

import time
from typing import Any

from torchipu.errors import ExecutionError
from torchipu.poptorch.arguments.parser import Arguments
from torchipu.poptorch.executor.errors import as_poptorch_error
from torchipu.poptorch.executor.inputs import Inputs, synthetic
from torchipu.poptorch.executor.state import State
from torchipu.poptorch.poptorch_core import createPoptorchError
from torchipu.poptorch.reports.perf import Counters
from torchipu.poptorch.reports.profile import write_magnitudes


def _refuse_backward(*args: Any, **kwargs: Any) -> None:
    raise createPoptorchError(
        "backward() cannot be called explicitly on outputs of a PopTorch model. If you're using a trainingModel, the "
        "backwards pass is performed automatically when invoking the model. If you're using an inferenceModel, you "
        "should use a trainingModel instead."
    )


def _plain_state() -> None:
    """Leave `_refuse_backward` out of what is pickled: a saved result loads anywhere, with ``weights_only=True``."""


class Runs:
    """Calls the program of an executor.

    Args:
        state: The executor's.
        inputs: Brings arguments into types that the device has.
        counters: Told when inputs and results were there.
    """

    def __init__(self, state: State, inputs: Inputs, counters: Counters) -> None:
        self._state, self._inputs, self._counters = state, inputs, counters

    def call(self, arguments: Arguments, started: float) -> Any:
        """Run the program once.

        Args:
            arguments: Of the call.
            started: When it began.

        Returns:
            What ``forward`` returned when it was compiled, with the results of this call.
        """
        state = self._state
        session, expected = state.executable, state.compiled_arguments
        assert session is not None and expected is not None
        with state.channel.tracepoint("inputPreparation"):
            given = synthetic(expected.collect(arguments), state.options)
            tensors = self._inputs.converted([*given], arguments)
        received = time.perf_counter()
        try:
            with state.channel.tracepoint("modelExecution"):
                results, anchored = session.run(tensors, given)
        except ExecutionError as error:
            raise as_poptorch_error(error) from error
        finally:
            # Also after an error or Ctrl-C: the device has then made all updates up to that moment.
            state.is_dirty = state.is_optimiser_dirty = state.is_training
        computed = time.perf_counter()
        state.random = None
        state.has_run = True
        if state.options.anchored_tensors:
            state.anchored = anchored
        write_magnitudes(session, state.options, is_training=state.is_training)
        if state.report is not None:
            state.report.note_run()
        for result in results:
            result.backward = _refuse_backward  # type: ignore[method-assign]
            result.__getstate__ = _plain_state  # type: ignore[method-assign]
        returned = session.traced.rebuild(results)
        self._counters.note(
            state.options, len(tensors), len(results), (started, received, computed, time.perf_counter()),
        )
        return returned
