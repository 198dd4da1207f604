"""``poptorch.Options``: every setting of a wrapped model or a loader."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import torch

from torchipu.poptorch import _logging
from torchipu.poptorch._logging import logger
from torchipu.poptorch.enums import CommGroupType, ConnectionType, OutputMode, SyncPattern
from torchipu.poptorch.options import strategies
from torchipu.poptorch.options.distributed import _DistributedOptions
from torchipu.poptorch.options.files import apply_json, load_file
from torchipu.poptorch.options.jit import _JitOptions
from torchipu.poptorch.options.popart import _PopartOptions
from torchipu.poptorch.options.precision import _PrecisionOptions
from torchipu.poptorch.options.strategies import PipelinedExecution
from torchipu.poptorch.options.tensor_locations import _TensorLocationOptions
from torchipu.poptorch.options.training import _TrainingOptions
from torchipu.poptorch.options.values import OptionsDict
from torchipu.poptorch.process import prepare

DEFAULT_MAX_REPEAT_LOGS = 4
DEFAULT_LOCATION_EXCLUDES = ("install/poptorch", "site-packages/torch", "site-packages/poptorch")
ENGINE_OPTIONS_VARIABLE = "POPLAR_ENGINE_OPTIONS"
CACHE_VARIABLE = "POPTORCH_CACHE_DIR"
DEFAULT_OPTIONS_VARIABLE = "POPTORCH_DEFAULT_OPTIONS"


class Options(OptionsDict):
    """Settings of a wrapped model; a setter returns the object, so that calls can be chained.

    A model or a loader that is given options freezes them: `clone` gives options that can be changed again.
    ``POPTORCH_CACHE_DIR`` and ``POPTORCH_DEFAULT_OPTIONS`` hold defaults of the environment.
    """

    _private: ClassVar[frozenset[str]] = frozenset({
        "_popart", "_training", "_precision", "_distributed", "_jit", "_tensor_locations", "_execution_strategy",
        "_module_namescope_enabled", "_relax_optimizer_checks", "_show_compilation_progress_bar",
        "_source_location_excludes",
    })

    def __init__(self) -> None:
        prepare()
        super().__init__(
            replication_factor=1,
            input_group_size=1,
            input_cgt=CommGroupType.Consecutive,
            broadcast_buffers=True,
            device_iterations=1,
            log_dir=".",
            max_repeat_logs=DEFAULT_MAX_REPEAT_LOGS,
            auto_round_num_ipus=False,
            anchored_tensors={},
            output_mode=OutputMode.Default.value,
            output_return_period=1,
            connection_type=ConnectionType.Always.value,
            sync_pattern=SyncPattern.Full.value,
            available_memory_proportion={},
        )
        self._popart = _PopartOptions()
        self._training = _TrainingOptions(self._popart)
        self._precision = _PrecisionOptions(self._popart)
        self._distributed = _DistributedOptions()
        self._jit = _JitOptions()
        self._tensor_locations = _TensorLocationOptions()
        self._execution_strategy: strategies._IExecutionStrategy = PipelinedExecution()
        self._module_namescope_enabled = True
        self._relax_optimizer_checks = False
        self._show_compilation_progress_bar = True
        self._source_location_excludes = list(DEFAULT_LOCATION_EXCLUDES)
        if os.environ.get(CACHE_VARIABLE):
            self.enableExecutableCaching(os.environ[CACHE_VARIABLE])
        if os.environ.get(DEFAULT_OPTIONS_VARIABLE):
            self._take_defaults(os.environ[DEFAULT_OPTIONS_VARIABLE])

    def _take_defaults(self, text: str) -> None:
        """Apply the options of the environment; what is raised says that they are not the program's."""
        try:
            self.from_json(text)
        except Exception as error:
            error.add_note(f"said by the variable {DEFAULT_OPTIONS_VARIABLE}={text!r}")
            raise

    # ------------------------------------------------------------------ groups
    @property
    def TensorLocations(self) -> _TensorLocationOptions:
        """Where weights, activations, optimiser states and accumulators are kept."""
        return self._tensor_locations

    @property
    def Training(self) -> _TrainingOptions:
        """Options of training alone."""
        return self._training

    @property
    def Precision(self) -> _PrecisionOptions:
        """Options of number formats and rounding."""
        return self._precision

    @property
    def Distributed(self) -> _DistributedOptions:
        """Which of how many processes this one is."""
        return self._distributed

    @property
    def Jit(self) -> _JitOptions:
        """Options of the front end that PopTorch had before 3.1."""
        return self._jit

    @property
    def _Popart(self) -> _PopartOptions:
        """Options of the graph compiler, passed on by name."""
        return self._popart

    @property
    def Popart(self) -> _PopartOptions:
        """The name of `_Popart` before PopTorch 2.0."""
        return self._popart

    def _groups(self) -> tuple[OptionsDict, ...]:
        return (
            self._distributed, self._jit, self._precision, self._tensor_locations, self._training, self._popart,
        )

    # ------------------------------------------------------------------ the loop on the device
    def deviceIterations(self, device_iterations: int) -> Self:
        """Set how often one call goes round: weight updates in training, batches in inference.

        Args:
            device_iterations: The number.
        """
        return self.set(device_iterations=device_iterations)

    def replicationFactor(self, replication_factor: int) -> Self:
        """Set how many replicas of the model this process runs.

        Args:
            replication_factor: The number.
        """
        return self.set(replication_factor=replication_factor)

    def inputReplicaGrouping(self, input_group_size: int, input_group_type: CommGroupType) -> Self:
        """Let replicas of a group read the same inputs; call `replicationFactor` first.

        Args:
            input_group_size: Replicas in a group.
            input_group_type: Consecutive, Orthogonal or NoGrouping.

        Raises:
            ValueError: The type is All, or the size does not divide the number of replicas.
        """
        replicas = self.replication_factor
        if input_group_type is CommGroupType.All:
            raise ValueError("poptorch.CommGroupType.All cannot be used for the inputs: replicas need their own")
        if input_group_type is CommGroupType.NoGrouping:
            input_group_size, input_group_type = 1, CommGroupType.Consecutive
        if not 0 < input_group_size <= replicas or replicas % input_group_size:
            raise ValueError(
                f"The input group size ({input_group_size}) must be a factor of the replication factor ({replicas}) "
                "and not exceed it"
            )
        return self.set(input_group_size=input_group_size, input_cgt=input_group_type)

    def outputMode(self, output_mode: OutputMode, output_return_period: int | None = None) -> Self:
        """Set which micro-batches' results a call returns.

        Args:
            output_mode: Which.
            output_return_period: For EveryN, how many device iterations lie between two that are returned.

        Raises:
            AssertionError: The mode is no OutputMode, or EveryN comes without a period.
        """
        _check_mode("outputMode", output_mode, output_return_period)
        if output_mode is not OutputMode.EveryN and output_return_period is not None:
            logger.info("output_return_period argument ignored with output_mode %s", output_mode)
        return self.set(output_mode=output_mode.value, output_return_period=output_return_period or 1)

    def anchorMode(self, anchor_mode: OutputMode, anchor_return_period: int | None = None) -> Self:
        """Set the same as `outputMode`, under the name that it had before PopTorch 2.4."""
        return self.outputMode(anchor_mode, anchor_return_period)

    def defaultOutputMode(self) -> bool:
        """Return whether no mode was chosen: Final for training, All for inference."""
        return bool(self.output_mode == OutputMode.Default)

    def defaultAnchorMode(self) -> bool:
        """Return the same as `defaultOutputMode`, under the name that it had before PopTorch 2.4."""
        return self.defaultOutputMode()

    def anchorTensor(
        self, short_name: str, long_name: str, output_mode: OutputMode | None = None, output_return_period: int = 1
    ) -> None:
        """Return a tensor of the graph to the host, for ``getAnchoredTensor``.

        Args:
            short_name: Name to ask for it by.
            long_name: Its name in the graph, one of ``getTensorNames``.
            output_mode: Which micro-batches' values; None for those of the model's results.
            output_return_period: As in `outputMode`.

        Raises:
            AssertionError: The mode is no OutputMode, or the period of EveryN is no positive number.
        """
        self._check_frozen()
        if output_mode is None:
            output_mode = OutputMode(self.output_mode)
            output_return_period = self.output_return_period
        _check_mode("anchorTensor", output_mode, output_return_period)
        if output_mode is not OutputMode.EveryN:
            output_return_period = 1
        anchors = {**self.anchored_tensors, short_name: [long_name, output_mode.value, output_return_period]}
        self.set(anchored_tensors=anchors)

    def broadcastBuffers(self, broadcast_buffers: bool = True) -> Self:
        """Let all replicas begin with the buffers of the host and keep them alike.

        Args:
            broadcast_buffers: False lets each replica change its own.
        """
        return self.set(broadcast_buffers=broadcast_buffers)

    def updatableNamedBuffers(self, buffers: Sequence[str]) -> Self:
        """Name the buffers that ``copyNamedBuffersToDevice`` copies.

        Args:
            buffers: Their names.
        """
        self._popart.set("updatableNamedBuffers", list(buffers))
        return self

    def randomSeed(self, random_seed: int) -> Self:
        """Seed the device, and torch on the host at once.

        Args:
            random_seed: The seed, from -2**63 to 2**64 - 1.

        Raises:
            AssertionError: It is no int.
            ValueError: It is one that torch does not take.
        """
        if not isinstance(random_seed, int):
            raise AssertionError(f"randomSeed takes an int, not {type(random_seed)}")
        if not -(2**63) <= random_seed < 2**64:
            raise ValueError(
                f"randomSeed takes an int from -2**63 to 2**64 - 1, as torch.manual_seed does, not {random_seed}"
            )
        self._check_frozen()
        torch.manual_seed(random_seed)
        return self.createOrSet(random_seed=random_seed)

    # ------------------------------------------------------------------ the device
    def setExecutionStrategy(self, strategy: strategies._IExecutionStrategy) -> Self:
        """Set how blocks become stages and which of these run at a time.

        Args:
            strategy: Such as `PipelinedExecution`.
        """
        if not isinstance(strategy, strategies._IExecutionStrategy):
            raise AssertionError(
                "setExecutionStrategy takes an execution strategy such as poptorch.PipelinedExecution, not "
                f"{strategy!r}"
            )
        self._check_frozen()
        self._execution_strategy = strategy
        return self

    def setAvailableMemoryProportion(self, available_memory_proportion: Mapping[str, float]) -> None:
        """Set which part of the tile memory convolutions and products may use for temporary values.

        Args:
            available_memory_proportion: The part by IPU: ``{"IPU0": 0.6}``.
        """
        proportions = {}
        for name, proportion in available_memory_proportion.items():
            if not (isinstance(name, str) and name.startswith("IPU") and name[3:].isdecimal()):
                raise AssertionError(f"Available memory proportions are set per IPU, as in 'IPU0', not {name!r}")
            if isinstance(proportion, bool) or not isinstance(proportion, (int, float)) or not 0 < proportion <= 1:
                raise ValueError(
                    f"Available memory proportion of {name!r}: expected above 0 and at most 1, got {proportion!r}"
                )
            proportions[int(name.removeprefix("IPU"))] = proportion
        self.createOrSet(available_memory_proportion=proportions)

    def autoRoundNumIPUs(self, auto_round_num_ipus: bool = True) -> Self:
        """Reserve a power of two of IPUs where the model needs fewer.

        Args:
            auto_round_num_ipus: Whether to; it is an error otherwise.
        """
        return self.set(auto_round_num_ipus=auto_round_num_ipus)

    def useIpuModel(self, use_model: bool) -> Self:
        """Emulate the machine, also against ``POPTORCH_IPU_MODEL``.

        Args:
            use_model: Whether to.
        """
        return self.createOrSet(use_model=use_model)

    def useIpuId(self, ipu_id: int) -> Self:
        """Use a certain device.

        Args:
            ipu_id: Its number.
        """
        if not isinstance(ipu_id, int):
            raise AssertionError(f"useIpuId takes an int, not {type(ipu_id)}")
        return self.createOrSet(ipu_id=ipu_id)

    def useOfflineIpuTarget(self, ipu_version: int = 2) -> Self:
        """Compile for a machine that is not there.

        Args:
            ipu_version: 1, 2 or 21.
        """
        return self.connectionType(ConnectionType.Never).createOrSet(ipu_version=ipu_version)

    def connectionType(self, connection_type: ConnectionType) -> Self:
        """Set when to attach to a device.

        Args:
            connection_type: When.
        """
        if not isinstance(connection_type, ConnectionType):
            raise AssertionError(f"connectionType takes a poptorch.ConnectionType, not {connection_type!r}")
        return self.set(connection_type=connection_type.value)

    def syncPattern(self, sync_pattern: SyncPattern) -> Self:
        """Set which IPUs synchronise with each other.

        Args:
            sync_pattern: Which.
        """
        if not isinstance(sync_pattern, SyncPattern):
            raise AssertionError(f"syncPattern takes a poptorch.SyncPattern, not {sync_pattern!r}")
        return self.set(sync_pattern=sync_pattern.value)

    def enableSyntheticData(self, enabled: bool) -> Self:
        """Let the device compute with random values of its own: results mean nothing.

        Args:
            enabled: Whether to.
        """
        self._popart.set("syntheticDataMode", 2 if enabled else 0)
        return self

    def enableStableNorm(self, enabled: bool) -> Self:
        """Compute the variance of norm layers in two passes.

        Args:
            enabled: Whether to.
        """
        self._popart.set("enableStableNorm", enabled)
        return self

    # ------------------------------------------------------------------ compilation, profiles and the log
    def enableExecutableCaching(self, path: str | os.PathLike[str] | None) -> Self:
        """Keep executables in a folder, and take them from there.

        Args:
            path: The folder; None not to.
        """
        if path is not None:
            self._popart.set("cachePath", os.fspath(path))
        self._popart.set("enableEngineCaching", path is not None)
        return self

    def logCycleCount(self, log_cycle_count: bool) -> Self:
        """Count the cycles of each call, for ``cycleCount``.

        Args:
            log_cycle_count: Whether to.
        """
        self._popart.set("instrumentWithHardwareCycleCounter", log_cycle_count)
        return self

    def enableProfiling(self, profile_dir: str | os.PathLike[str] | None = None) -> Self:
        """Write a profile of the compiled model.

        Args:
            profile_dir: Where; the working folder if None.
        """
        wanted = {
            "debug.allowOutOfMemory": "true",
            "autoReport.directory": os.fspath(profile_dir) if profile_dir is not None else ".",
            "autoReport.all": "true",
        }
        of_environment = engine_options_of_environment()
        for name in wanted:
            if name in of_environment:
                logger.warning("%s in %s overrides enableProfiling: %s=%s", name, ENGINE_OPTIONS_VARIABLE, name,
                               of_environment[name])
        engine_options = {**self._popart.options.get("engineOptions", {}), **wanted, **{
            name: value for name, value in of_environment.items() if name in wanted
        }}
        self._popart.set("engineOptions", engine_options)
        return self

    def modelName(self, name: str) -> Self:
        """Set the folder of this model within that of the profiles.

        Args:
            name: The folder.
        """
        return self.createOrSet(model_name=name)

    def logDir(self, log_dir: str | os.PathLike[str]) -> Self:
        """Set where log files go.

        Args:
            log_dir: The folder.
        """
        return self.set(log_dir=os.fspath(log_dir) if isinstance(log_dir, os.PathLike) else log_dir)

    def maxRepeatLogs(self, max_repeat_logs: int | None) -> Self:
        """Set how often a line of the log is written again when it follows its like.

        Args:
            max_repeat_logs: How often; None for no limit.
        """
        limit = _logging.UNLIMITED_REPEATS if max_repeat_logs is None else max_repeat_logs
        self.set(max_repeat_logs=limit)
        _logging.setMaxRepeats(limit)
        return self

    def showCompilationProgressBar(self, show: bool = True) -> Self:
        """Show how far the compilation is.

        Args:
            show: Whether to.
        """
        self._check_frozen()
        self._show_compilation_progress_bar = show
        return self

    def disableModuleNamescope(self) -> Self:
        """Leave the path of modules out of the names of ops."""
        self._check_frozen()
        self._module_namescope_enabled = False
        return self

    def relaxOptimizerAttributesChecks(self, relax: bool = True) -> Self:
        """Say in the debug log, and not as a warning, that an optimiser has attributes that are not used.

        Args:
            relax: Whether to.
        """
        self._check_frozen()
        self._relax_optimizer_checks = relax
        return self

    def sourceLocationExcludes(self, excludes: Sequence[str]) -> Self:
        """Set which files are no user's code.

        Args:
            excludes: Parts of their paths, instead of those of now.
        """
        self._check_frozen()
        self._source_location_excludes = list(excludes)
        return self

    def appendToLocationExcludes(self, *excludes: str) -> Self:
        """Add to the files that are no user's code.

        Args:
            *excludes: Parts of their paths.
        """
        self._check_frozen()
        self._source_location_excludes += excludes
        return self

    # ------------------------------------------------------------------ files and copies
    def loadFromFile(self, filepath: str | os.PathLike[str]) -> Self:
        """Apply a file of setters, one a line, as in ``Training.gradientAccumulation(4)``.

        The file is read and not executed: it can set options and do nothing else.

        Args:
            filepath: The file.

        Raises:
            ConfigFileError: A line is no call of a setter with constants.
        """
        self._check_frozen()
        load_file(self, Path(filepath))
        return self

    def from_json(self, string: str) -> Self:
        """Apply a JSON object of setters, as in ``{"Training.gradientAccumulation": 4}``.

        Args:
            string: The JSON. A list gives several arguments, a text such as ``OutputMode.All`` a member.
        """
        self._check_frozen()
        apply_json(self, string)
        return self

    def clone(self) -> Self:
        """Return a copy that can be changed."""
        return copy.deepcopy(self)

    def toDict(self) -> dict[str, Any]:
        """Return all options by name, those of the groups too.

        Raises:
            AssertionError: The output mode is still to be chosen.
        """
        if self.defaultOutputMode():
            raise AssertionError("An output mode must be picked before trying to serialise the options")
        merged = super().toDict()
        for part in (*(group.toDict() for group in self._groups()), self._execution_strategy.backendOptions()):
            if merged.keys() & part.keys():
                raise AssertionError(f"Several options are named {sorted(merged.keys() & part.keys())}")
            merged |= part
        return merged

    def _facts(self) -> list[str]:
        groups = ("Distributed", "Jit", "Precision", "TensorLocations", "Training", "_Popart")
        return [
            *super()._facts(),
            f"execution_strategy={self._execution_strategy!r}",
            *(f"{name}={getattr(self, name)!r}" for name in groups),
        ]


def engine_options_of_environment() -> dict[str, str]:
    """Return the options of the engine that the environment sets; none where it holds no JSON object."""
    try:
        options = json.loads(os.environ.get(ENGINE_OPTIONS_VARIABLE) or "{}")
    except json.JSONDecodeError as error:
        logger.warning("%s is not valid JSON and is ignored: %s", ENGINE_OPTIONS_VARIABLE, error)
        return {}
    if not isinstance(options, dict):
        logger.warning("%s is no JSON object and is ignored", ENGINE_OPTIONS_VARIABLE)
        return {}
    return options


def _check_mode(setter: str, mode: OutputMode, period: int | None) -> None:
    if not isinstance(mode, OutputMode):
        raise AssertionError(f"{setter} takes a poptorch.OutputMode, not {mode!r}")
    if mode is OutputMode.EveryN and not (period and period > 0):
        raise AssertionError("EveryN anchor must have output_return_period set to a positive number")
