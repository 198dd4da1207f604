"""From an executor's model and the arguments of a call to a program."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from typing import Any

import torch

from torchipu.errors import IpuError, OutOfTileMemoryError, PlacementError
from torchipu.options import Options as CoreOptions
from torchipu.poptorch._logging import logger
from torchipu.poptorch.arguments.parser import Arguments
from torchipu.poptorch.executor import instrumentation
from torchipu.poptorch.executor.checks import check_batch, check_buffer_names, check_ipus, check_trainable
from torchipu.poptorch.executor.compile_hooks import compilation_bar, compiling
from torchipu.poptorch.executor.errors import as_poptorch_error
from torchipu.poptorch.executor.grouping import groups_of
from torchipu.poptorch.executor.inputs import Inputs, apart, check_inputs
from torchipu.poptorch.executor.session import InferenceSession, Session
from torchipu.poptorch.executor.state import State
from torchipu.poptorch.executor.training_session import TrainingSession
from torchipu.poptorch.executor.translation import anchors, core_options
from torchipu.poptorch.optim.attributes import FixedValues
from torchipu.poptorch.optim.optimizer import go_on
from torchipu.poptorch.options.session_options import check_popart, log_options
from torchipu.poptorch.reports import ir_text
from torchipu.poptorch.reports.profile import is_reported, write_report
from torchipu.poptorch.stored.cache import cache_of
from torchipu.poptorch.tracing.errors_on_the_host import error_on_the_host
from torchipu.poptorch.tracing.mixed_types import stand_ins_for
from torchipu.poptorch.tracing.overlaps import check_overlaps
from torchipu.poptorch.tracing.traced_model import TracedModel


class Compilation:
    """Makes the program of an executor.

    Args:
        state: The executor's; receives the program.
        inputs: Brings arguments into types that the device has.
    """

    def __init__(self, state: State, inputs: Inputs) -> None:
        self._state, self._inputs = state, inputs

    def make(self, arguments: Arguments, executor: instrumentation.Owner, captured: Any = None) -> None:
        """Compile for arguments like these.

        Args:
            arguments: Of a call.
            executor: Whose compilation it is; what another one has trained of the same model is fetched before.
            captured: The capture, if it was read from a file.
        """
        state = self._state
        check_inputs(arguments)
        check_batch(arguments, state.options)
        check_popart(state.options)
        check_buffer_names(state.options, state.holder)
        log_options(state.options)
        started = time.perf_counter()
        state.stand_ins = stand_ins_for(state.user_model)
        tensors = self._inputs.converted([tensor.detach() for tensor in arguments.tensors()], arguments)
        tensors = apart(tensors, state.holder)
        core = self._core_options()
        optimizer = state.optimizer if state.is_training else None
        fetched = instrumentation.owner_of(state.holder)
        if fetched is not None and fetched is not executor:
            fetched.copyWeightsToHostIfNeeded()
        session = self._compiled(arguments, tensors, core, optimizer, captured)
        state.executable = session
        state.was_compiled = True
        state.fixed = FixedValues(optimizer) if optimizer is not None else None
        go_on(optimizer)
        state.compiled_arguments = arguments.with_tensors([t.detach().to("meta") for t in arguments.tensors()])
        state.compilation_seconds = time.perf_counter() - started
        ir_text.show(session.compiled, state.options, is_combined=state.is_combined)
        state.report = write_report(session, state.options, is_training=state.is_training)
        state.seen_version = -1

    def _core_options(self) -> CoreOptions:
        try:
            return core_options(self._state.options, self._state.optimizer)
        except IpuError as error:
            raise as_poptorch_error(error) from error

    def _compiled(
        self, arguments: Arguments, tensors: list[torch.Tensor], core: CoreOptions,
        optimizer: torch.optim.Optimizer | None, captured: Any,
    ) -> Session:
        """Return a program that has been compiled."""
        with self._state.channel.tracepoint("modelCompilation"):
            return self._compiled_now(arguments, tensors, core, optimizer, captured)

    def _compiled_now(
        self, arguments: Arguments, tensors: list[torch.Tensor], core: CoreOptions,
        optimizer: torch.optim.Optimizer | None, captured: Any,
    ) -> Session:
        state, options = self._state, self._state.options
        groups = groups_of(state.groups, state.model, options.replication_factor)
        if state.is_training:
            check_trainable(state.holder)
        frozen = (
            contextlib.nullcontext() if state.is_training else instrumentation.without_gradients(state.holder)
        )
        with instrumentation.as_plain(state.holder), frozen:
            session = _session(state.holder, core, optimizer)
            with state.channel.tracepoint("graphPreprocessing"):
                traced = TracedModel(
                    state.model, arguments, options, is_training=state.is_training, loss_scale=core.backward_scale,
                    groups=groups,
                )
            session.prepare(traced, anchors(options), captured, cache_of(options))
            with compiling(), compilation_bar(options) as progress:
                try:
                    session.compile(*tensors, progress=progress)
                    check_ipus(session.num_ipus, options)
                    check_overlaps(session.capture, traced, options, session.num_ipus)
                except IpuError as error:
                    if isinstance(error, PlacementError):
                        # More IPUs than there are have PopTorch's own words.
                        placed = list(zip(traced.blocks, traced.ipus, strict=True))
                        check_ipus(max(traced.ipus, default=0) + 1, options, placed)
                    if isinstance(error, OutOfTileMemoryError):
                        self._report_overflow(error, session, tensors, core)
                    raise as_poptorch_error(error) from error
                except Exception as error:
                    found = error_on_the_host(error, traced, session.cut(tensors))
                    if found is error:
                        raise
                    raise found from None
        return session

    def _report_overflow(
        self, error: OutOfTileMemoryError, session: Session, tensors: list[torch.Tensor], core: CoreOptions,
    ) -> None:
        """Write the report of a program that does not fit, if one was asked for, and let the error name it.

        Args:
            error: What is raised.
            session: What was to have the program.
            tensors: What it was to be compiled for.
            core: Its options.
        """
        state = self._state
        if not is_reported(state.options) or session.original is None:
            return
        optimizer = state.optimizer if state.is_training else None
        larger = _session(state.holder, dataclasses.replace(core, allow_out_of_memory=True), optimizer)
        larger.prepare(session.traced, anchors(state.options), session.original)
        undo = larger._keep()
        try:
            larger.compile(*tensors)
            report = write_report(larger, state.options, is_training=state.is_training)
        except IpuError as other:
            logger.warning("There is no report of the program that does not fit: %s", other.message)
            return
        finally:
            undo()
        if report is not None:
            error.remedy += f"; the report in {report.folder} shows what takes the memory, marked as out of memory"


def _session(
    model: torch.nn.Module, options: CoreOptions, optimizer: torch.optim.Optimizer | None,
) -> TrainingSession | InferenceSession:
    """Return a session for a model; of training if there is an optimiser."""
    if optimizer is not None:
        return TrainingSession(model, optimizer, options)
    return InferenceSession(model, options)
