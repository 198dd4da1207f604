"""`PoplarExecutor`: a model compiled for the device, called like the model."""

from __future__ import annotations

import contextlib
import datetime
import functools
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from torchipu.poptorch._logging import logger
from torchipu.poptorch.arguments.parser import ArgsParser, Arguments
from torchipu.poptorch.capturing import isRunningOnIpu
from torchipu.poptorch.enums import ConnectionType, OutputMode
from torchipu.poptorch.executor import instrumentation
from torchipu.poptorch.executor.checks import check_inference
from torchipu.poptorch.executor.grouping import GroupedParameter
from torchipu.poptorch.executor.parts import Parts
from torchipu.poptorch.executor.session import Session
from torchipu.poptorch.executor.state import State
from torchipu.poptorch.operators.blocks import module_repr
from torchipu.poptorch.optim.optimizer import attach
from torchipu.poptorch.options import Options
from torchipu.poptorch.poptorch_core import createPoptorchError
from torchipu.poptorch.trace_points import Channel
from torchipu.poptorch.tracing.traced_model import Function


class PoplarExecutor:
    """A model on the device; made by `trainingModel`, `inferenceModel` and `load`.

    The methods are PopTorch's, and what they do is done by the executor's parts. Methods that call others of this
    class, such as a copy of weights that a call brings about, call them here: programs replace them.

    Args:
        model: The user's module, or a callable.
        options: The user's options; they are frozen, and a copy is used.
        training: Whether to train.
        optimizer: For training.
    """

    _poptorch_state: State
    _poptorch_parts: Parts

    def __init__(
        self, model: Callable[..., Any], options: Options | None, training: bool,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        options = _own_options(options)
        if options.defaultOutputMode():
            options.outputMode(OutputMode.Final if training else OutputMode.All)
        if not training:
            check_inference(options)
        if isinstance(model, torch.nn.Module):
            _refuse_scripts(model)
        parser = ArgsParser(model)
        captured = instrumentation.shallow(model) if isinstance(model, torch.nn.Module) else Function(model)
        channel = Channel("poptorch.trainingModel" if training else "poptorch.inferenceModel")
        self._poptorch_state = State(model, captured, options, training, optimizer, parser, channel)
        self._poptorch_parts = Parts(self._poptorch_state)
        if training:
            self._poptorch_parts.optimiser.begin()
        options._freeze()
        if training and isinstance(model, torch.nn.Module):
            instrumentation.instrument(model, self)
        attach(optimizer, self)
        channel.instrument(self, "copyWeightsToHost", "copyWeightsToDevice", "setOptimizer", "compile", "destroy")

    # ------------------------------------------------------------------ the model behind
    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the user's model."""
        if _is_own(name) or name.startswith("__"):
            raise AttributeError(f"'{type(self).__name__}' object has no attribute {name!r}")
        value = getattr(self._poptorch_state.user_model, name)
        if isinstance(value, torch.nn.Parameter):
            return GroupedParameter.of(value, functools.partial(self._set_group, name))
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute of the user's model, unless it is one of the executor."""
        if _is_own(name) or hasattr(type(self), name) or not hasattr(self._poptorch_state.user_model, name):
            object.__setattr__(self, name, value)
        else:
            setattr(self._poptorch_state.user_model, name, value)

    def __repr__(self) -> str:
        model = self._poptorch_state.user_model
        return module_repr(model) if isinstance(model, torch.nn.Module) else repr(model)

    def __del__(self) -> None:
        """Leave what was trained to the user's module, which outlives the executor, and complete the report."""
        parts = self.__dict__.get("_poptorch_parts")
        if parts is not None:
            with contextlib.suppress(Exception):  # at the end of the interpreter half of torch is gone
                parts.weights.leave()
            with contextlib.suppress(Exception):
                parts.state.complete_report()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle what the executor was made of, weights included; the copy is not compiled."""
        self._pull()
        state = self._poptorch_state
        return _restored, (self._user_model_plain(), state.options.clone(), state.is_training, state.optimizer)

    def _user_model_plain(self) -> Any:
        """Return the user's model as it was before it was wrapped."""
        model = self._poptorch_state.user_model
        if not self._poptorch_state.is_training or not isinstance(model, torch.nn.Module):
            return model
        return instrumentation.plain_twin(model)

    @property
    def model(self) -> Any:
        """The user's model."""
        return self._poptorch_state.user_model

    @property
    def options(self) -> Options:
        """The executor's own options, frozen."""
        return self._poptorch_state.options

    # ------------------------------------------------------------------ names of PopTorch's that programs look at
    @property
    def _user_model(self) -> Any:
        return self._poptorch_state.user_model

    @property
    def _model(self) -> torch.nn.Module:
        return self._poptorch_state.model

    @property
    def _options(self) -> Options:
        return self._poptorch_state.options

    @property
    def _optimizer(self) -> torch.optim.Optimizer | None:
        return self._poptorch_state.optimizer

    @property
    def _training(self) -> bool:
        return self._poptorch_state.is_training

    @property
    def _executable(self) -> Session | None:
        return self._poptorch_state.executable

    @property
    def _was_compiled(self) -> bool:
        return self._poptorch_state.was_compiled

    @property
    def _host_version(self) -> int:
        return self._poptorch_state.host_version

    def _session(self) -> Session:
        """Return the program, or raise Error."""
        return self._poptorch_state.session

    # ------------------------------------------------------------------ calling
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model on a batch for all replicas, device iterations and accumulation.

        Args:
            *args: Arguments of ``forward``; tensors are cut along dimension 0.
            **kwargs: The same by name.

        Returns:
            What ``forward`` returned when it was compiled, with the results of this call.
        """
        with self._poptorch_state.channel.tracepoint("poptorch._poplar_executor.PoplarExecutor.__call__"):
            return self._call(args, kwargs)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        state = self._poptorch_state
        if state.compiled_by == threading.get_ident():
            raise createPoptorchError(
                "This model is being compiled: it cannot be called within itself, from its forward or a hook. Call "
                "what it wraps there instead"
            )
        if isRunningOnIpu():
            raise createPoptorchError(
                f"A {type(state.user_model).__name__} that an executor wraps was called within a model that is being "
                "compiled: a program holds the whole model. Let it call the model before it was wrapped, and wrap the "
                "model around it alone"
            )
        if state.options.connection_type == ConnectionType.Never:
            raise AssertionError(
                "Trying to run a model on an offline device (ConnectionType.Never): use ConnectionType.Always or "
                "OnDemand"
            )
        arguments = state.parser.parse(args, kwargs)
        if state.executable is None:
            self._compile(arguments)
        if not state.is_attached:
            self._poptorch_parts.device.attach()
        started = time.perf_counter()  # compilation is no part of the latency of the first run
        if not state.is_training:
            self._follow_trainer()
        return self._poptorch_parts.runs.call(arguments, started)

    # ------------------------------------------------------------------ compiling
    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile for arguments like these without running; they are those of a call."""
        if self._poptorch_state.executable is not None:
            logger.warning("Call to compile() ignored: model is already compiled")
            return
        self._compile(self._poptorch_state.parser.parse(args, kwargs))
        if not self._poptorch_parts.device.is_offline:
            self._poptorch_parts.device.attach()

    def _compile(self, arguments: Arguments) -> None:
        state = self._poptorch_state
        state.compiled_by = threading.get_ident()
        try:
            self._poptorch_parts.compilation.make(arguments, self)
        finally:
            state.compiled_by = None

    def isCompiled(self) -> bool:
        """Whether the model is compiled."""
        return self._poptorch_state.executable is not None

    def destroy(self) -> None:
        """Give the program back; the next call compiles again, for any arguments."""
        state = self._poptorch_state
        if state.executable is not None:
            if state.is_training:
                self._pull()
            state.forget()
        if state.is_training and isinstance(state.user_model, torch.nn.Module):
            instrumentation.uninstrument(state.user_model, self)

    def _set_group(self, name: str, *group: Any) -> None:
        if self._poptorch_state.executable is not None:
            raise createPoptorchError("replicaGrouping must be called before the model is compiled")
        self._poptorch_state.groups[name] = group

    # ------------------------------------------------------------------ files
    def save(self, filename: str | os.PathLike[str], export_model: bool = True, save_rng_state: bool = True) -> None:
        """Write the program, and with ``export_model`` the weights, to a file.

        Args:
            filename: Where to; a folder receives ``model.poptorch``.
            export_model: Whether `load` shall be able to build the executor from the file alone.
            save_rng_state: Whether the state of the random numbers goes with it.
        """
        self._poptorch_state.check_compiled()
        self._pull()
        self._poptorch_parts.files.save(filename, export_model, save_rng_state)

    def compileAndExport(
        self, filename: str | os.PathLike[str], *args: Any, export_model: bool = True, **kwargs: Any,
    ) -> None:
        """Compile and `save`.

        Args:
            filename: Where to.
            *args: Arguments as of a call.
            export_model: As for `save`.
            **kwargs: The same by name.
        """
        self.compile(*args, **kwargs)
        self.save(filename, export_model)

    def loadExecutable(self, filename: str | os.PathLike[str]) -> None:
        """Take a program from a file instead of capturing the model.

        Args:
            filename: Written by `save` or `compileAndExport`.
        """
        self._poptorch_parts.files.load(filename, self)
        if not self._poptorch_parts.device.is_offline:
            self._poptorch_parts.device.attach()

    # ------------------------------------------------------------------ the device
    def isAttachedToDevice(self) -> bool:
        """Whether the program is on the device."""
        return self._poptorch_parts.device.is_attached

    def attachToDevice(self) -> None:
        """Put the program and the host's weights on the device."""
        self._poptorch_parts.device.check_free()
        self._poptorch_parts.device.attach()

    def detachFromDevice(self) -> None:
        """Take the program from the device, the weights it has trained to the host."""
        self._poptorch_parts.device.check_attached()
        if self._poptorch_state.is_training:
            self._pull()
        self._poptorch_parts.device.detach()

    # ------------------------------------------------------------------ weights
    def copyWeightsToHost(self) -> None:
        """Copy parameters and buffers from the device to the user's model."""
        self._poptorch_parts.weights.to_host()

    def copyWeightsToHostIfNeeded(self) -> bool:
        """Copy the weights if those of the device are newer; return whether it was so."""
        if not self._poptorch_state.is_dirty:
            return False
        self._poptorch_state.is_dirty = False  # before the copy, which looks at the weights
        logger.debug("Implicit copyWeightsToHost()")
        self.copyWeightsToHost()
        return True

    def copyWeightsToDevice(self) -> None:
        """Copy parameters and buffers of the user's model to the device, whatever that has trained."""
        self._poptorch_parts.weights.to_device()

    def copyNamedBuffersToDevice(self) -> None:
        """Copy the buffers named by `Options.updatableNamedBuffers` to the device."""
        self._poptorch_parts.weights.named_buffers_to_device()

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

    def _follow_trainer(self) -> None:
        """Take over what a training executor of the same model has trained."""
        trainer = instrumentation.owner_of(self._poptorch_state.user_model)
        if trainer is None:
            return
        trainer.copyWeightsToHostIfNeeded()
        if self._poptorch_parts.weights.is_behind(trainer):
            logger.debug("Implicit copyWeightsToDevice()")
            self.copyWeightsToDevice()

    def _pull(self) -> None:
        """Bring what the device has trained to the host."""
        self.copyWeightsToHostIfNeeded()
        self._pull_optimiser()

    # ------------------------------------------------------------------ the optimiser
    def setOptimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Let the device use the values of an optimiser from now on.

        Args:
            optimizer: The one in use, after a change of its values, or another one of the same kind.

        Raises:
            AssertionError: The model is not wrapped for training, or the optimiser is of an unknown kind.
            Error: A value that the program was compiled with as a constant is another now.
            ValueError: Its accumulators need a program of another kind.
        """
        if not self._poptorch_state.is_training:
            raise AssertionError("setOptimizer is for models wrapped by poptorch.trainingModel")
        self._poptorch_parts.optimiser.take(optimizer, self)

    def _pull_optimiser(self) -> bool:
        """Bring the states of the optimiser to the host; return whether those of the device were newer."""
        return self._poptorch_parts.optimiser.pull()

    # ------------------------------------------------------------------ random numbers
    @property
    def rng_state(self) -> list[int]:
        """Seed of the device's random numbers, then how far each has come."""
        self._poptorch_state.check_compiled()
        return list(self._poptorch_parts.random.read())

    @rng_state.setter
    def rng_state(self, state: list[int]) -> None:
        self._poptorch_parts.random.set(state)

    @property
    def random_seed(self) -> int:
        """Seed of the device's random numbers."""
        return self.rng_state[0]

    # ------------------------------------------------------------------ what is told of the program
    def getTensorNames(self) -> list[str]:
        """Return the names of all tensors of the program."""
        return self._poptorch_parts.figures.tensor_names()

    def getAnchoredTensor(self, short_name: str) -> torch.Tensor:
        """Return what the last run left in a tensor that `Options.anchorTensor` has named.

        Args:
            short_name: First argument of that call.
        """
        return self._poptorch_parts.figures.anchored(short_name)

    def getPerfCounters(self) -> dict[str, list[list[float]]]:
        """Return when each micro-batch's inputs were asked for and there, and its outputs ready and there, in s."""
        return self._poptorch_parts.figures.counters.lists()

    def getLatency(self) -> tuple[float, float, float]:
        """Return least, greatest and mean seconds from a batch's first input to its last output."""
        return self._poptorch_parts.figures.counters.latency("input", "output_complete")

    def getHostIpuLatency(self) -> tuple[float, float, float]:
        """Return the same from the first input to the last one being there."""
        return self._poptorch_parts.figures.counters.latency("input", "input_complete")

    def getComputeLatency(self) -> tuple[float, float, float]:
        """Return the same from the last input being there to the last output being ready."""
        return self._poptorch_parts.figures.counters.latency("input_complete", "output")

    def getIpuHostLatency(self) -> tuple[float, float, float]:
        """Return the same from the first output being ready to the last one being there."""
        return self._poptorch_parts.figures.counters.latency("output", "output_complete")

    def cycleCount(self) -> int:
        """Return the modelled cycles of a run; the emulator needs no hardware for it."""
        return self._poptorch_parts.figures.cycles()

    def compilationTime(self) -> datetime.timedelta:
        """Return how long the compilation took."""
        return self._poptorch_parts.figures.compilation_time()

    def _debugGetPopartIR(self) -> str:
        """Return the program's ops as JSON."""
        return self._poptorch_parts.figures.popart_ir()


def _own_options(options: Options | None) -> Options:
    """Return options for an executor: a copy of the user's, which are frozen."""
    if options is None:
        return Options()
    if not isinstance(options, Options):
        raise createPoptorchError(f"Invalid type: 'options' is of type {type(options)} (Expected poptorch.Options)")
    options._freeze()
    return options.clone()


def _is_own(name: str) -> bool:
    """Whether an attribute is the executor's and never the model's."""
    return name in _OWN or isinstance(getattr(PoplarExecutor, name, None), property)


_OWN = frozenset({"__dict__", "__class__", "__weakref__", *PoplarExecutor.__annotations__})


def _restored(
    model: Any, options: Options, training: bool, optimizer: torch.optim.Optimizer | None,
) -> PoplarExecutor:
    return PoplarExecutor(model, options, training, optimizer)


def _refuse_scripts(model: torch.nn.Module) -> None:
    """Raise Error for a part of a model whose parameters lie in TorchScript, where nothing can stand for them."""
    for path, member in model.named_modules():
        if isinstance(member, torch.jit.ScriptModule) and any(True for _ in (*member.parameters(), *member.buffers())):
            raise createPoptorchError(
                f"{f'The module {path}' if path else 'The model'} was made by torch.jit.script or torch.jit.trace, and "
                "cannot be captured. Use the module that it was made from, with its state_dict()."
            )
