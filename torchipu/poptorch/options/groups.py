"""The groups of options: Training, Precision, TensorLocations, Distributed, Jit and _Popart."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import torch

from torchipu.distributed.launcher import launched
from torchipu.poptorch._logging import logger
from torchipu.poptorch.enums import HalfFloatCastingBehavior, MeanReductionStrategy, ReductionType
from torchipu.poptorch.options.values import OptionsDict
from torchipu.poptorch.poptorch_core import createPoptorchError

MIN_IO_TILES = 32
MAX_IO_TILES = 192


class _PopartOptions(OptionsDict):
    """Options of the graph compiler, passed on by name without a check of their own.

    Attributes:
        options: The values by name.
    """

    _private: ClassVar[frozenset[str]] = frozenset({"options"})

    def __init__(self) -> None:
        super().__init__()
        self.options: dict[str, Any] = {
            "instrumentWithHardwareCycleCounter": False,
            "rearrangeAnchorsOnHost": False,
        }

    # Two arguments, as PopTorch has it; keywords would not do for names such as "a.b".
    def set(self, key: str, value: Any) -> Self:  # type: ignore[override]
        """Set an option.

        Args:
            key: Its name, such as ``accumulateOuterFragmentSettings.schedule``.
            value: A bool, number or text, a list or set of texts, or a dict of texts.
        """
        self._check_frozen()
        self.options[key] = value
        return self

    def createOrSet(self, **values: Any) -> Self:
        """Set options by keyword; names with dots take `set`."""
        for name, value in values.items():
            self.set(name, value)
        return self

    def deleteIfExists(self, name: str) -> Self:
        """Remove an option, if there is one of this name."""
        self._check_frozen()
        self.options.pop(name, None)
        return self

    def exists(self, name: str) -> bool:
        """Return whether there is an option of this name."""
        return name in self.options

    def __call__(self, name: str) -> Any:
        """Return the value of an option."""
        assert self.exists(name), f"Invalid option {name}, valid options are {sorted(self.options)}"
        return self.options[name]

    def setEngineOptions(self, engine_options: Mapping[str, str]) -> Self:
        """Set the options of the engine, as ``POPLAR_ENGINE_OPTIONS`` does.

        Args:
            engine_options: Values by name.
        """
        return self.set("engineOptions", dict(engine_options))

    def setPatterns(self, patterns: Mapping[str, bool], level: int = 2) -> Self:
        """Choose rewriting patterns of the graph compiler.

        Args:
            patterns: Whether to use each, by name.
            level: The set to begin from.
        """
        return self.set("patterns", dict(patterns)).set("patterns_level", level)

    def toDict(self) -> dict[str, Any]:
        """Return all options by name."""
        return dict(self.options)

    def _facts(self) -> list[str]:
        return [f"options={self.options!r}"]


class _PopartUser(OptionsDict):
    """A group some of whose options are the graph compiler's.

    Args:
        popart: Options of the graph compiler, shared with the other groups.
        **values: Own options.
    """

    _private: ClassVar[frozenset[str]] = frozenset({"_popart"})

    def __init__(self, popart: _PopartOptions, **values: Any) -> None:
        super().__init__(**values)
        self._popart = popart


class _TrainingOptions(_PopartUser):
    """Options of training alone."""

    def __init__(self, popart: _PopartOptions) -> None:
        super().__init__(
            popart,
            gradient_accumulation=1,
            accumulation_and_replication_reduction_type=ReductionType.Mean,
            meanAccumulationAndReplicationReductionStrategy=MeanReductionStrategy.Post,
        )

    def gradientAccumulation(self, gradient_accumulation: int) -> Self:
        """Set how many micro-batches make one weight update.

        Args:
            gradient_accumulation: The number.
        """
        return self.set(gradient_accumulation=gradient_accumulation)

    def accumulationAndReplicationReductionType(self, reduction_type: ReductionType) -> Self:
        """Set how gradients of micro-batches, replicas and processes are combined.

        Args:
            reduction_type: Mean or Sum.

        Raises:
            ValueError: It is something else.
        """
        if reduction_type not in (ReductionType.Mean, ReductionType.Sum) or not isinstance(
            reduction_type, ReductionType
        ):
            raise ValueError(
                "poptorch.Options().Training.accumulationAndReplicationReductionType must be set to "
                f"poptorch.ReductionType.Mean or poptorch.ReductionType.Sum, not {reduction_type!r}"
            )
        return self.set(accumulation_and_replication_reduction_type=reduction_type)

    def accumulationReductionType(self, reduction_type: ReductionType) -> Self:
        """Set the same under the name that it had before PopTorch 2.1."""
        return self.accumulationAndReplicationReductionType(reduction_type)

    def setMeanAccumulationAndReplicationReductionStrategy(
        self, mean_reduction_strategy: MeanReductionStrategy
    ) -> Self:
        """Set when a mean of gradients is divided.

        Args:
            mean_reduction_strategy: With each gradient, or after the sum.
        """
        return self.set(meanAccumulationAndReplicationReductionStrategy=mean_reduction_strategy)

    def setAutomaticLossScaling(self, enabled: bool) -> Self:
        """Let the loss scale follow the gradients; it begins from the optimiser's ``loss_scaling``.

        Args:
            enabled: Whether to.
        """
        self._popart.set("automaticLossScalingSettings.enabled", enabled)
        return self

    def setConvolutionDithering(self, enabled: bool) -> Self:
        """Begin each convolution on another tile; memory alone is concerned.

        Args:
            enabled: Whether to.
        """
        self._popart.set("convolutionOptions", {"startTileMultiplier": "2" if enabled else "0"})
        return self


class _PrecisionOptions(_PopartUser):
    """Options of number formats and rounding."""

    def setPartialsType(self, dtype: torch.dtype) -> Self:
        """Set the type in which products and convolutions are summed.

        Args:
            dtype: ``torch.float`` or ``torch.half``.

        Raises:
            ValueError: It is something else.
        """
        names = {torch.float32: "float", torch.float16: "half"}
        if dtype not in names:
            raise ValueError(f"setPartialsType takes torch.float or torch.half, not {dtype!r}")
        self._popart.set("partialsTypeMatMuls", names[dtype])
        self._popart.set("convolutionOptions", {"partialsType": names[dtype]})
        return self

    def enableStochasticRounding(self, enabled: bool) -> Self:
        """Round half results up or down by chance, with the true value as the mean.

        Args:
            enabled: Whether to.
        """
        self._popart.set("enableStochasticRounding", enabled)
        return self

    def enableFloatingPointExceptions(self, enabled: bool) -> Self:
        """Stop at divisions by zero, invalid operations and overflow.

        Args:
            enabled: Whether to.

        Raises:
            AssertionError: It is no bool.
        """
        assert isinstance(enabled, bool), "enableFloatingPointExceptions needs to be set to a bool"
        self._popart.set("enableFloatingPointChecks", enabled)
        return self

    def halfFloatCasting(self, half_float_casting: HalfFloatCastingBehavior) -> Self:
        """Do nothing: mixed types follow PyTorch's rules since PopTorch 3.1."""
        self._check_frozen()
        logger.warning("halfFloatCasting is deprecated and has no effect: mixed types follow PyTorch's rules")
        return self

    def runningStatisticsAlwaysFloat(self, value: bool) -> Self:
        """Do nothing: running statistics keep the type that they have since PopTorch 3.1.

        Raises:
            ValueError: The argument is no bool.
        """
        self._check_frozen()
        if not isinstance(value, bool):
            raise ValueError("runningStatisticsAlwaysFloat needs to be set to a bool")
        logger.warning("runningStatisticsAlwaysFloat is deprecated and has no effect: statistics keep their type")
        return self

    def autocastEnabled(self, autocast_enabled: bool) -> Self:
        """Switch `poptorch.autocast`, of PopTorch 2.1 to 3.0, on or off for the model.

        Args:
            autocast_enabled: Whether its regions take effect.
        """
        return self.createOrSet(autocast_enabled=autocast_enabled)

    def autocastPolicy(self, autocast_policy: Any) -> Self:
        """Set which ops `poptorch.autocast` computes in which type.

        Args:
            autocast_policy: A `poptorch.operators.autocasting.Policy`.
        """
        self._check_frozen()
        self._values["autocast_policy"] = autocast_policy
        return self


class _JitOptions(OptionsDict):
    """Options of the front end that PopTorch had before 3.1."""

    def traceModel(self, trace_model: bool) -> Self:
        """Refuse the front end that is gone.

        Args:
            trace_model: False, which changes nothing.

        Raises:
            ValueError: It is True.
        """
        self._check_frozen()
        if trace_model:
            raise ValueError("options.Jit.traceModel(True) is no longer supported")
        logger.warning("options.Jit.traceModel is deprecated and has no effect")
        return self


class _DistributedOptions(OptionsDict):
    """Which of how many processes this one is.

    Starts from what a launcher says: ``mpirun``, as in PopTorch, or ``poprun``, ``torchrun`` or ``srun``.
    """

    def __init__(self) -> None:
        super().__init__(num_distributed_processes=1, distributed_process_id=0, ipuof_configs={})
        self.setEnvVarNames("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")
        if "OMPI_COMM_WORLD_SIZE" not in os.environ and (place := launched()) is not None:
            self.configureProcessId(place.rank, place.size)

    def disable(self) -> Self:
        """Make this process the only one."""
        return self.configureProcessId(0, 1)

    def setEnvVarNames(self, var_num_processes: str, var_process_id: str) -> Self:
        """Read the number of processes and the number of this one from the environment.

        Args:
            var_num_processes: Variable with the number of processes; one if it is not set.
            var_process_id: Variable with the number of this one; zero if it is not set.
        """
        return self.configureProcessId(_number(var_process_id, default=0), _number(var_num_processes, default=1))

    def configureProcessId(self, process_id: int, num_processes: int) -> Self:
        """Set the number of processes and the number of this one.

        Args:
            process_id: Number of this process, from 0.
            num_processes: Number of processes.

        Raises:
            Error: There is no such process.
        """
        if isinstance(process_id, int) and isinstance(num_processes, int) and not 0 <= process_id < num_processes:
            raise createPoptorchError(
                f"Process {process_id} of {num_processes} cannot be: configureProcessId takes the number of this "
                "process, from 0, and then how many there are"
            )
        return self.set(distributed_process_id=process_id, num_distributed_processes=num_processes)

    def setFileStore(self, path: str | os.PathLike[str]) -> Self:
        """Let the processes of a training find each other through a file instead of ``MASTER_ADDR``.

        It is none of PopTorch's options.

        Args:
            path: A file that all processes see, in a folder that is there; process 0 makes and removes it.
        """
        return self.createOrSet(file_store=os.path.abspath(path))

    @property
    def processId(self) -> int:
        """Number of this process, from 0."""
        return int(self.distributed_process_id)

    @property
    def numProcesses(self) -> int:
        """Number of processes."""
        return int(self.num_distributed_processes)


def _number(variable: str, *, default: int) -> int:
    """Return the number that a variable of the environment holds, or the default where it is not set."""
    text = os.environ.get(variable, str(default))
    try:
        return int(text)
    except ValueError:
        raise createPoptorchError(f"The variable {variable} must hold a whole number, got {text!r}") from None


class TensorLocationSettings(OptionsDict):
    """Where tensors of one kind are kept; each method returns the object, so calls can be chained."""

    def useOnChipStorage(self, use: bool | None = True) -> Self:
        """Keep them in tile memory, or in Streaming Memory.

        Args:
            use: True for tile memory; None for the default.
        """
        if use is None:
            return self.deleteIfExists("onChip")
        assert isinstance(use, bool), f"useOnChipStorage takes a bool, not {type(use)}"
        return self.createOrSet(onChip=use)

    def useReplicatedTensorSharding(self, use: bool = True) -> Self:
        """Give each replica a part of them.

        Args:
            use: Whether to.
        """
        assert isinstance(use, bool), f"useReplicatedTensorSharding takes a bool, not {type(use)}"
        return self.createOrSet(useReplicatedTensorSharding=use)

    def minElementsForOffChip(self, min_elements: int) -> Self:
        """Keep smaller tensors in tile memory in any case.

        Args:
            min_elements: From how many elements on a tensor may leave it.
        """
        assert isinstance(min_elements, int), f"minElementsForOffChip takes an int, not {type(min_elements)}"
        return self.createOrSet(minElementsForOffChip=min_elements)

    def minElementsForReplicatedTensorSharding(self, min_elements: int) -> Self:
        """Leave smaller tensors whole.

        Args:
            min_elements: From how many elements on a tensor is cut.
        """
        assert isinstance(min_elements, int), (
            f"minElementsForReplicatedTensorSharding takes an int, not {type(min_elements)}"
        )
        return self.createOrSet(minElementsForReplicatedTensorSharding=min_elements)

    def useIOTilesToLoad(self, use: bool = True) -> Self:
        """Load them through the tiles set apart for transfers.

        Args:
            use: Whether to.
        """
        assert isinstance(use, bool), f"useIOTilesToLoad takes a bool, not {type(use)}"
        return self.createOrSet(useIOTilesToLoad=use)

    def useIOTilesToStore(self, use: bool = True) -> Self:
        """Store them through the tiles set apart for transfers.

        Args:
            use: Whether to.
        """
        assert isinstance(use, bool), f"useIOTilesToStore takes a bool, not {type(use)}"
        return self.createOrSet(useIOTilesToStore=use)


class _TensorLocationOptions(OptionsDict):
    """Where weights, activations, optimiser states and accumulators are kept."""

    def __init__(self) -> None:
        super().__init__(
            location_activation=TensorLocationSettings(),
            location_weight=TensorLocationSettings(),
            location_optimizer=TensorLocationSettings(),
            location_accumulator=TensorLocationSettings(),
        )

    def setActivationLocation(self, location: TensorLocationSettings) -> Self:
        """Set where activations are kept.

        Args:
            location: The place.
        """
        return self._place(location_activation=location)

    def setWeightLocation(self, location: TensorLocationSettings) -> Self:
        """Set where weights are kept.

        Args:
            location: The place.
        """
        return self._place(location_weight=location)

    def setOptimizerLocation(self, location: TensorLocationSettings) -> Self:
        """Set where the states of the optimiser are kept.

        Args:
            location: The place.
        """
        return self._place(location_optimizer=location)

    def setAccumulatorLocation(self, location: TensorLocationSettings) -> Self:
        """Set where the accumulators of gradients are kept.

        Args:
            location: The place.
        """
        return self._place(location_accumulator=location)

    def numIOTiles(self, num_tiles: int) -> Self:
        """Set tiles apart for transfers.

        Args:
            num_tiles: Even, 32 to 192.

        Raises:
            AssertionError: It is not.
        """
        assert isinstance(num_tiles, int), f"numIOTiles takes an int, not {type(num_tiles)}"
        assert MIN_IO_TILES <= num_tiles <= MAX_IO_TILES and num_tiles % 2 == 0, (
            f"numIOTiles must be an even number between {MIN_IO_TILES} and {MAX_IO_TILES}."
        )
        return self.createOrSet(numIOTiles=num_tiles)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an option; the number of tiles by way of its setter, which is an attribute of the same name."""
        if name == "numIOTiles":
            self.numIOTiles(value)
        else:
            super().__setattr__(name, value)

    def toDict(self) -> dict[str, Any]:
        """Return all options by name, places as dictionaries too."""
        return {
            name: value.toDict() if isinstance(value, TensorLocationSettings) else value
            for name, value in self._values.items()
        }

    def _place(self, **location: TensorLocationSettings) -> Self:
        return self.set(**location)
