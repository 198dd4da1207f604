"""`PoplarExecutor`: a model compiled for the device, called like the model."""

from __future__ import annotations

import contextlib
import functools
import inspect
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from torchipu.errors import ExecutionError, IpuError, PlacementError
from torchipu.poptorch import instrumentation, ir_text, optim, perf, popart_options, profiling, translation
from torchipu.poptorch._args_parser import ArgsParser, Arguments
from torchipu.poptorch._impl import createPoptorchError
from torchipu.poptorch._logging import logger
from torchipu.poptorch.blocks import module_repr
from torchipu.poptorch.compile_hooks import compilation_bar, compiling
from torchipu.poptorch.engine_options import write_magnitudes, write_report
from torchipu.poptorch.enums import ConnectionType, OutputMode
from torchipu.poptorch.executable_cache import cache_of
from torchipu.poptorch.executor_errors import as_poptorch_error
from torchipu.poptorch.executor_files import Files
from torchipu.poptorch.executor_optimiser import Optimised
from torchipu.poptorch.executor_reports import Reports
from torchipu.poptorch.grouping import GroupedParameter, groups_of
from torchipu.poptorch.mixed_types import stand_ins_for
from torchipu.poptorch.optim_attributes import FixedValues
from torchipu.poptorch.options import Options
from torchipu.poptorch.overlap import check_overlaps
from torchipu.poptorch.session import Session, TrainingSession, make_session
from torchipu.poptorch.tracing import Function, TracedModel, error_on_the_host

NOT_COMPILED = "Model has not been compiled or has been destroyed."
UNSUPPORTED_INPUTS = (torch.complex64, torch.complex128)
"""Types that the device does not have and that inputs are converted from."""

def _refuse_backward(*args: Any, **kwargs: Any) -> None:
    raise createPoptorchError(
        "backward() cannot be called explicitly on outputs of a PopTorch model. If you're using a trainingModel, the "
        "backwards pass is performed automatically when invoking the model. If you're using an inferenceModel, you "
        "should use a trainingModel instead."
    )


def _plain_state() -> None:
    """Leave `_refuse_backward` out of what is pickled: a saved result loads anywhere, with ``weights_only=True``."""


class PoplarExecutor(Reports, Files, Optimised):
    """A model on the device; made by `trainingModel`, `inferenceModel` and `load`.

    Args:
        model: The user's module, or a callable.
        options: The user's options; they are frozen, and a copy is used.
        training: Whether to train.
        optimizer: For training.
    """

    _parser: ArgsParser
    _model: torch.nn.Module | Function
    _compiled_arguments: Arguments | None
    _is_attached: bool
    _is_dirty: bool
    _host_version: int
    _seen_version: int
    _random: tuple[int, int] | None
    _warned_not_contiguous_input: bool
    _stand_ins: dict[torch.dtype, torch.dtype]
    _groups: dict[str, tuple[Any, ...]]

    def __init__(
        self, model: Callable[..., Any], options: Options | None, training: bool,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        if options is None:
            options = Options()
        elif not isinstance(options, Options):
            raise createPoptorchError(
                f"Invalid type: 'options' is of type {type(options)} (Expected poptorch.Options)"
            )
        else:
            options._freeze()
            options = options.clone()
        if options.defaultOutputMode():
            options.outputMode(OutputMode.Final if training else OutputMode.All)
        if not training:
            translation.check_inference(options)
        self._parser = ArgsParser(model)
        self._user_model = model
        self._model = instrumentation.shallow(model) if isinstance(model, torch.nn.Module) else Function(model)
        self._options = options
        self._training = training
        self._optimizer = optimizer
        self._executable = None
        self._was_compiled = False
        self._compiled_arguments = None
        self._is_attached = False
        self._is_dirty = False
        self._is_optimiser_dirty = False
        self._host_version = 0
        self._seen_version = -1
        self._anchor_memory = {}
        self._has_run = False
        self._perf = perf.Counters()
        self._compilation_seconds = None
        self._random = None
        self._warned_not_contiguous_input = False
        self._stand_ins = {}
        self._groups = {}
        if training:
            assert optimizer is not None
            optim.check(optimizer)
            translation.adapt_options(options, optimizer)
            self._begin_optimiser(optimizer)
        options._freeze()
        if training and isinstance(model, torch.nn.Module):
            instrumentation.instrument(model, self)
        optim.attach(optimizer, self)
        channel = profiling.Channel("poptorch.trainingModel" if training else "poptorch.inferenceModel")
        channel.instrument(self, "copyWeightsToHost", "copyWeightsToDevice", "setOptimizer", "compile", "destroy")

    # ------------------------------------------------------------------ the model behind
    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the user's model."""
        if name in OWN or name.startswith("__"):
            raise AttributeError(f"'{type(self).__name__}' object has no attribute {name!r}")
        value = getattr(self._user_model, name)
        if isinstance(value, torch.nn.Parameter):
            return GroupedParameter.of(value, functools.partial(self._set_group, name))
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute of the user's model, unless it is one of the executor."""
        if name in OWN or hasattr(type(self), name) or not hasattr(self._user_model, name):
            object.__setattr__(self, name, value)
        else:
            setattr(self._user_model, name, value)

    def __repr__(self) -> str:
        if isinstance(self._user_model, torch.nn.Module):
            return module_repr(self._user_model)
        return repr(self._user_model)

    def __del__(self) -> None:
        """Leave what was trained to the user's module, which outlives the executor."""
        if self.__dict__.get("_is_dirty"):
            with contextlib.suppress(Exception):  # at the end of the interpreter half of torch is gone
                self._is_dirty = False
                self._session().download(self._session().weights)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle what the executor was made of, weights included; the copy is not compiled."""
        self._pull()
        return _restored, (self._user_model_plain(), self._options.clone(), self._training, self._optimizer)

    def _user_model_plain(self) -> Any:
        """Return the user's model as it was before it was wrapped."""
        if not self._training or not isinstance(self._user_model, torch.nn.Module):
            return self._user_model
        twin = instrumentation.shallow(self._user_model)
        twin.__dict__.pop(instrumentation.OWNERS, None)
        if instrumentation.is_instrumented(twin):
            twin.__class__ = type(twin).__bases__[-1]
        return twin

    @property
    def model(self) -> Any:
        """The user's model."""
        return self._user_model

    @property
    def options(self) -> Options:
        """The executor's own options, frozen."""
        return self._options

    # ------------------------------------------------------------------ calling
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model on a batch for all replicas, device iterations and accumulation.

        Args:
            *args: Arguments of ``forward``; tensors are cut along dimension 0.
            **kwargs: The same by name.

        Returns:
            What ``forward`` returned when it was compiled, with the results of this call.
        """
        assert self._options.connection_type != ConnectionType.Never, (
            "Trying to run a model on an offline device (ConnectionType.Never): use ConnectionType.Always or OnDemand"
        )
        arguments = self._parser.parse(args, kwargs)
        if self._executable is None:
            self._compile(arguments)
        if not self._is_attached:
            self._attach()
        started = time.perf_counter()  # compilation is no part of the latency of the first run
        session, expected = self._executable, self._compiled_arguments
        assert session is not None and expected is not None
        if not self._training:
            self._follow_trainer()
        tensors = translation.synthetic(self._inputs(expected.collect(arguments)), self._options)
        received = time.perf_counter()
        try:
            results, anchored = session.run(tensors)
        except ExecutionError as error:
            raise as_poptorch_error(error) from error
        finally:
            # Also after an error or Ctrl-C: the device has then made all updates up to that moment.
            self._is_dirty = self._is_optimiser_dirty = self._training
        computed = time.perf_counter()
        self._random = None
        self._has_run = True
        if self._options.anchored_tensors:
            self._keep_anchored(session, anchored)
        write_magnitudes(session, self._options, is_training=self._training)
        for result in results:
            result.backward = _refuse_backward  # type: ignore[method-assign]
            result.__getstate__ = _plain_state  # type: ignore[method-assign]
        returned = session.traced.rebuild(results)
        self._perf.note(self._options, len(tensors), len(results), (started, received, computed, time.perf_counter()))
        return returned

    def _inputs(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Bring inputs into types that the device has."""
        for place, tensor in enumerate(tensors):
            if tensor.dtype in self._stand_ins:
                tensors[place] = tensor.to(self._stand_ins[tensor.dtype])
            if not tensor.is_contiguous() and not self._warned_not_contiguous_input:
                logger.warning(
                    "At least one input tensor is not contiguous: non-contiguous tensors will be converted."
                )
                self._warned_not_contiguous_input = True
        return tensors

    # ------------------------------------------------------------------ compiling
    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile for arguments like these without running; they are those of a call."""
        if self._executable is not None:
            logger.warning("Call to compile() ignored: model is already compiled")
            return
        self._compile(self._parser.parse(args, kwargs))
        if self._options.connection_type != ConnectionType.Never:
            self._attach()

    def _compile(self, arguments: Arguments, captured: Any = None) -> None:
        translation.check_batch(arguments, self._options)
        self._check_inputs(arguments)
        popart_options.check_popart(self._options)
        self._check_buffer_names()
        popart_options.log_options(self._options)
        started = time.perf_counter()
        self._stand_ins = stand_ins_for(self._user_model)
        tensors = self._inputs([tensor.detach() for tensor in arguments.tensors()])
        owner = self._user_model if isinstance(self._user_model, torch.nn.Module) else self._model
        try:
            core = translation.core_options(self._options, self._optimizer)
        except IpuError as error:
            raise as_poptorch_error(error) from error
        optimizer = self._optimizer if self._training else None
        fetched = instrumentation.owner_of(owner)
        if fetched is not None and fetched is not self:
            fetched.copyWeightsToHostIfNeeded()
        groups = groups_of(self._groups, self._model, self._options.replication_factor)
        frozen = contextlib.nullcontext() if self._training else instrumentation.without_gradients(owner)
        with instrumentation.as_plain(owner), frozen:
            session = make_session(owner, core, optimizer)
            traced = TracedModel(
                self._model, arguments, self._options, is_training=self._training, loss_scale=core.backward_scale,
                groups=groups,
            )
            session.prepare(traced, translation.anchors(self._options), captured, cache_of(self._options))
            with compiling(), compilation_bar(self._options) as progress:
                try:
                    session.compile(*tensors, progress=progress)
                    translation.check_ipus(session.num_ipus, self._options)
                    check_overlaps(session.capture, traced, self._options, session.num_ipus)
                except IpuError as error:
                    if isinstance(error, PlacementError):
                        # More IPUs than there are have PopTorch's own words.
                        placed = list(zip(traced.blocks, traced.ipus, strict=True))
                        translation.check_ipus(max(traced.ipus, default=0) + 1, self._options, placed)
                    raise as_poptorch_error(error) from error
                except (RuntimeError, ValueError, IndexError, TypeError) as error:
                    raise error_on_the_host(error, traced, session.cut(tensors)) from None
        self._executable = session
        self._was_compiled = True
        self._fixed = FixedValues(optimizer) if optimizer is not None else None
        optim.go_on(optimizer)
        self._compiled_arguments = arguments.with_tensors([t.detach().to("meta") for t in arguments.tensors()])
        self._compilation_seconds = time.perf_counter() - started
        ir_text.show(session.compiled, self._options, is_combined=self._is_combined)
        write_report(session.profile, session.compiled, self._options, is_training=self._training)
        self._seen_version = -1

    def _check_inputs(self, arguments: Arguments) -> None:
        for name, tensor in arguments.named_tensors():
            if tensor.dtype in UNSUPPORTED_INPUTS:
                raise createPoptorchError(f"Unsupported input type torch.{tensor.dtype} for {name}")
            if tensor.numel() == 0:
                raise createPoptorchError(
                    f"Zero-sized tensors are unsupported (Got shape {list(tensor.shape)}) in the input {name}"
                )
            if tensor.requires_grad:
                logger.warning(
                    "Input tensor has requires_grad=True set. This tensor will be detached because backward pass via "
                    "inputs is not supported."
                )
        values = [*arguments.positional, *arguments.keyword.values()]
        if any(isinstance(value, dict) for value in values):
            logger.warning("Dictionaries are partially supported as inputs: only their tensors reach the device.")

    def isCompiled(self) -> bool:
        """Whether the model is compiled."""
        return self._executable is not None

    def _session(self) -> Session:
        if self._executable is None:
            raise createPoptorchError(NOT_COMPILED)
        return self._executable

    def destroy(self) -> None:
        """Give the program back; the next call compiles again, for any arguments."""
        if self._executable is not None:
            if self._training:
                self._pull()
            self._executable = None
            self._is_attached = False
            self._compiled_arguments = None
        if self._training and isinstance(self._user_model, torch.nn.Module):
            instrumentation.uninstrument(self._user_model, self)

    # ------------------------------------------------------------------ the device
    def isAttachedToDevice(self) -> bool:
        """Whether the program is on the device."""
        return self._executable is not None and self._is_attached

    def attachToDevice(self) -> None:
        """Put the program and the host's weights on the device."""
        self._session()
        assert self._options.connection_type != ConnectionType.Never, (
            "Trying to attach to an offline device (ConnectionType.Never)"
        )
        if self._is_attached:
            raise createPoptorchError("Device is already attached")
        self._attach()

    def _attach(self) -> None:
        session = self._session()
        session.must_upload = True
        if isinstance(session, TrainingSession):
            session.is_refreshed = False
        self._is_attached = True
        self._is_dirty = False
        logger.debug("Acquired device")
        logger.debug("Setting random seed to %d", session.options.seed)
        self._push_weights()

    def detachFromDevice(self) -> None:
        """Take the program from the device, the weights it has trained to the host."""
        self._session()
        if not self._is_attached:
            raise createPoptorchError("Device is not attached")
        if self._training:
            self._pull()
        self._random = self._random_state()
        self._is_attached = False
        logger.debug("Detached from device")

    # ------------------------------------------------------------------ weights
    def copyWeightsToHost(self) -> None:
        """Copy parameters and buffers from the device to the user's model."""
        session = self._session()
        logger.debug("Writing weights from IPU to host")
        self._is_dirty = False
        session.download(session.weights)
        self._host_version += 1

    def copyWeightsToHostIfNeeded(self) -> bool:
        """Copy the weights if those of the device are newer; return whether it was so."""
        if not self._is_dirty:
            return False
        self._is_dirty = False  # before the copy, which looks at the weights
        logger.debug("Implicit copyWeightsToHost()")
        self.copyWeightsToHost()
        return True

    def copyWeightsToDevice(self) -> None:
        """Copy parameters and buffers of the user's model to the device, whatever that has trained."""
        self._session()
        self._is_dirty = False
        self._push_weights()

    def _push_weights(self) -> None:
        session = self._session()
        if session.must_upload:
            session.upload([*session.weights, *session.states])
            session.must_upload = False
        else:
            session.upload(session.weights)
        logger.debug("Writing weights from host to IPU memory")
        trainer = instrumentation.owner_of(self._user_model)
        self._seen_version = getattr(trainer, "_host_version", 0)

    def copyNamedBuffersToDevice(self) -> None:
        """Copy the buffers named by `Options.updatableNamedBuffers` to the device."""
        session = self._session()
        names = self._options._popart.options.get("updatableNamedBuffers")
        if not names:
            raise createPoptorchError(
                "No named buffers marked as updatable: name them with poptorch.Options().updatableNamedBuffers"
            )
        session.upload(session.buffers(names))

    def _check_buffer_names(self) -> None:
        module = self._user_model if isinstance(self._user_model, torch.nn.Module) else self._model
        known = [name for name, _ in module.named_buffers()]
        unknown = [n for n in self._options._popart.options.get("updatableNamedBuffers", ()) if n not in known]
        if unknown:
            raise createPoptorchError(
                f"poptorch.Options().updatableNamedBuffers names {', '.join(unknown)}, which the model does not have. "
                f"Its buffers: {', '.join(known) or 'none'}"
            )

    def _follow_trainer(self) -> None:
        """Take over what a training executor of the same model has trained."""
        trainer = instrumentation.owner_of(self._user_model)
        if trainer is None:
            return
        trainer.copyWeightsToHostIfNeeded()
        if self._seen_version != trainer._host_version:  # type: ignore[attr-defined]
            logger.debug("Implicit copyWeightsToDevice()")
            self.copyWeightsToDevice()

    def _pull(self) -> None:
        """Bring what the device has trained to the host."""
        self.copyWeightsToHostIfNeeded()
        self._pull_optimiser()

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> Any:
        """Load weights into the user's model and, if there is one, onto the device.

        Args:
            state_dict: As of ``state_dict()``.
            strict: Whether the names must agree.
        """
        result = self.model.load_state_dict(state_dict, strict)
        if self.isAttachedToDevice():
            logger.debug("load_state_dict: implicit copyWeightsToDevice()")
            self.copyWeightsToDevice()
        return result

    # ------------------------------------------------------------------ random numbers
    @property
    def rng_state(self) -> list[int]:
        """Seed of the device's random numbers, then how far each has come."""
        self._session()
        return list(self._random_state())

    @rng_state.setter
    def rng_state(self, state: list[int]) -> None:
        session = self._session()
        seed, calls = state
        session.set_random_state(int(seed), int(calls))
        self._random = (int(seed), int(calls))
        logger.debug("Setting RNG state")

    def _random_state(self) -> tuple[int, int]:
        if self._random is None:
            session = self._session()
            logger.debug("Reading random seed")
            logger.debug("Reading RNG state")
            self._random = (int(session.options.seed or 0), session.calls)
        return self._random

    @property
    def random_seed(self) -> int:
        """Seed of the device's random numbers."""
        return self.rng_state[0]

    def _set_group(self, name: str, *group: Any) -> None:
        if self._executable is not None:
            raise createPoptorchError("replicaGrouping must be called before the model is compiled")
        self._groups[name] = group


def _restored(
    model: Any, options: Options, training: bool, optimizer: torch.optim.Optimizer | None,
) -> PoplarExecutor:
    return PoplarExecutor(model, options, training, optimizer)


OWN = frozenset({
    "__dict__", "__class__", "__weakref__",
    *(name for part in PoplarExecutor.__mro__ for name in inspect.get_annotations(part)),
})
"""Attributes of an executor itself, which its classes declare; all others are those of the model."""
