"""From PopTorch's options to those of the core, and the checks that PopTorch makes of both."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

import torch

from torchipu.host.resident import Returned
from torchipu.options import Options as CoreOptions
from torchipu.options import Stage as CoreStage
from torchipu.poptorch import processes
from torchipu.poptorch._args_parser import Arguments
from torchipu.poptorch._impl import createPoptorchError
from torchipu.poptorch._logging import logger
from torchipu.poptorch.anchors import UPDATED, Anchor
from torchipu.poptorch.automatic_scale import automatic_scale
from torchipu.poptorch.blocks import BEFORE_ALL_BLOCKS
from torchipu.poptorch.engine_options import engine_options, is_on
from torchipu.poptorch.enums import (
    CommGroupType,
    ConnectionType,
    Liveness,
    MeanReductionStrategy,
    OutputMode,
    ReductionType,
)
from torchipu.poptorch.locations import core_locations
from torchipu.poptorch.options import Options
from torchipu.poptorch.strategies import (
    PipelinedExecution,
    SerialPhasedExecution,
    _IExecutionStrategy,
    _PhasedExecution,
)

MODES = {
    OutputMode.Final: "final", OutputMode.All: "all", OutputMode.Sum: "sum", OutputMode.EveryN: "every_n",
}
TARGETS = {1: "mk1", 2: "mk2", 21: "c600"}
TYPES = {torch.float16: "half", torch.float32: "float"}
STRATEGIES = {
    MeanReductionStrategy.Running: "running", MeanReductionStrategy.Post: "post",
    MeanReductionStrategy.PostAndLoss: "post_and_loss",
}
MAX_IPUS = 64
SYNTHETIC_NORMAL = 2


def core_options(options: Options, optimizer: torch.optim.Optimizer | None) -> CoreOptions:
    """Return the core's options.

    Args:
        options: The executor's.
        optimizer: For training.

    Raises:
        RendezvousError: There are several processes, and they do not come together.
        Error: They shuffle with different seeds, or share out data of different lengths.
    """
    accumulation = options.Training
    mean = accumulation.accumulation_and_replication_reduction_type != ReductionType.Sum
    group, seed = processes.group_and_seed(options, is_training=optimizer is not None)
    allows_overflow = is_on(engine_options(options).get("debug.allowOutOfMemory", "false"))
    values: dict[str, Any] = {
        "target": TARGETS[device_version(options)],
        **_execution(options._execution_strategy),
        "gradient_accumulation": accumulation.gradient_accumulation,
        "accumulation_reduction": "mean" if mean else "sum",
        "device_iterations": options.device_iterations,
        "output_mode": MODES[OutputMode(options.output_mode)],
        "output_period": options.output_return_period,
        **_training_precision(options, optimizer),
        "seed": seed & (2**62 - 1),
        "allow_out_of_memory": allows_overflow,
        "recompute": _recomputation(options),
        "stochastic_rounding": bool(options._popart.options.get("enableStochasticRounding", False)),
        "floating_point_exceptions": bool(options._popart.options.get("enableFloatingPointChecks", False)),
        "half_overflow": _half_overflow(options),
        "statistics": bool(options._popart.options.get("torchipu.statistics", False)),
        "partials_type": _partials_type(options),
        "available_memory": options.available_memory_proportion or None,
        "offload_optimiser_state": _is_off_chip(options.TensorLocations.location_optimizer),
        "replicas": options.replication_factor,
        "process_group": group,
        "input_group_size": options.input_group_size,
        "input_grouping": "orthogonal" if options.input_cgt == CommGroupType.Orthogonal else "consecutive",
        "broadcast_buffers": options.broadcast_buffers,
        **core_locations(options),
    }
    return CoreOptions(**values)


def _half_overflow(options: Options) -> str:
    """Return what becomes of a half beyond 65504, which is infinity unless the bit of the machine is set or cleared."""
    nanoo = options._popart.options.get("enableNanoo")
    return "infinity" if nanoo is None else "nan" if nanoo else "saturate"


def _partials_type(options: Options) -> str:
    """Return the type of partials; one that only convolutions are given holds for products too."""
    convolutions = options._popart.options.get("convolutionOptions", {}).get("partialsType")
    return str(options._popart.options.get("partialsTypeMatMuls") or convolutions or "float")


def _training_precision(options: Options, optimizer: torch.optim.Optimizer | None) -> dict[str, Any]:
    """Return what an optimiser and the options of training say of scales, bounds and types of gradients and states."""
    if optimizer is None:
        return {}
    norm = getattr(optimizer, "max_grad_norm", math.inf)
    loss_scaling = getattr(optimizer, "loss_scaling", None)
    strategy = options.Training.meanAccumulationAndReplicationReductionStrategy
    # The velocity is the accumulator, and its type that of the weights.
    is_combined = bool(getattr(optimizer, "use_combined_accum", False))

    def named(attribute: str, otherwise: str) -> str:
        # Optimisers of torch do not say: PopTorch keeps theirs in float32.
        return otherwise if is_combined else TYPES[getattr(optimizer, attribute, None) or torch.float32]

    first = "velocity_accum_type" if hasattr(optimizer, "velocity_accum_type") else "first_order_momentum_accum_type"
    return {
        "loss_scaling": 1.0 if loss_scaling is None else float(loss_scaling),
        **automatic_scale(options._popart.options),
        "max_grad_norm": float(norm) if math.isfinite(norm) else None,
        "mean_reduction": STRATEGIES[MeanReductionStrategy(strategy)],
        "accumulator_type": named("accum_type", "gradient"),
        "first_moment_type": named(first, "weight"),
        "second_moment_type": named("second_order_momentum_accum_type", "weight"),
    }


LIVENESS = {
    Liveness.AlwaysLive: "always_live", Liveness.OffChipAfterFwd: "off_chip_after_forward",
    Liveness.OffChipAfterFwdNoOverlap: "off_chip_after_forward_no_overlap",
    Liveness.OffChipAfterEachPhase: "off_chip_after_each_phase",
}


def _execution(strategy: _IExecutionStrategy) -> dict[str, Any]:
    """Return what the core is told of a strategy."""
    if isinstance(strategy, PipelinedExecution):
        return {"execution": "pipelined"}
    if not isinstance(strategy, _PhasedExecution):
        return {"execution": "sharded"}
    # The stages of a phase over several IPUs may need one another: the core runs each as a phase. It cannot see then
    # which halves of the machine the phases use; the strategy has looked at that when the blocks began.
    stages = [stage for phase in strategy._phases for stage in phase.stages]
    is_parallel = strategy.has_one_stage_each and not isinstance(strategy, SerialPhasedExecution)
    before = (BEFORE_ALL_BLOCKS,)
    return {
        "execution": "parallel_phased" if is_parallel else "serial_phased",
        "separate_backward_phase": strategy._separate_backward,
        "liveness": LIVENESS[strategy._tensors_liveness],
        "stages": tuple(
            CoreStage((() if number else before) + stage.blocks, stage._ipu_id) for number, stage in enumerate(stages)
        ),
    }


def device_version(options: Options) -> int:
    """Return which generation of the IPU is emulated: 1, 2 or 21.

    Raises:
        Error: ``POPTORCH_IPU_MODEL_VERSION`` names none, or options exclude each other.
    """
    if options.connection_type == ConnectionType.Never and is_ipu_model(options):
        what = "useOfflineIpuTarget" if options.exists("ipu_version") else "ConnectionType.Never"
        raise createPoptorchError(f"{what} is not supported for the IPU model")
    if options.exists("ipu_version"):
        if options.exists("ipu_id"):
            raise createPoptorchError("useIpuId is not supported by useOfflineIpuTarget: no device is attached to")
        return _known_version(f"ipu{options.ipu_version}")
    named = os.environ.get("POPTORCH_IPU_MODEL_VERSION", "")
    if not named or not is_ipu_model(options):
        return 2
    return _known_version(named.partition(":")[0] if "ipu:" not in named else "ipu2")


def _known_version(name: str) -> int:
    versions = {f"ipu{version}": version for version in TARGETS}
    if name not in versions:
        raise createPoptorchError(f"Invalid IPU model version {name!r}. Known versions: {', '.join(versions)}")
    return versions[name]


def _recomputation(options: Options) -> str:
    """Return which stages run their forward again, if the program says so by PopART's option."""
    level = options._popart.options.get("autoRecomputation")
    if level is None:
        return "auto"
    return "stage" if int(level) else "none"


def _is_off_chip(location: Any) -> bool:
    return location.exists("onChip") and not location.onChip


def _last_of(blocks: Sequence[tuple[str, int]], num_ipus: int, replicas: int) -> str:
    """Say where so many IPUs come from."""
    furthest = [name for name, ipu in blocks if ipu == num_ipus - 1][:1]
    block = "".join(f": Block '{name}' is on IPU {num_ipus - 1}" for name in furthest)
    return f" The model needs {num_ipus} in each of {replicas} replica{'s' if replicas > 1 else ''}{block}."


def check_ipus(num_ipus: int, options: Options, blocks: Sequence[tuple[str, int]] = ()) -> None:
    """Refuse numbers of IPUs that machines do not come in.

    Args:
        num_ipus: What a replica uses.
        options: The executor's.
        blocks: Name and IPU of each block.

    Raises:
        Error: No power of two, and not to be rounded; or more than a process may have.
    """
    needed = num_ipus * options.replication_factor
    reserved = 1 << (needed - 1).bit_length()
    if needed > MAX_IPUS:
        raise createPoptorchError(
            f"Too many IPUs requested ({needed}). Experiments that need more than {MAX_IPUS} IPUs require distributed "
            "execution." + _last_of(blocks, num_ipus, options.replication_factor)
        )
    if needed == reserved or is_ipu_model(options):
        return
    if not options.auto_round_num_ipus:
        raise createPoptorchError(
            f"The model specifies the use of {needed} IPUs, however PopTorch must reserve a minimum of {reserved} in "
            "order to allow the model to run, because PopTorch must reserve a power of 2 or a multiple of 64 IPUs. "
            "Please reconfigure your model to use a different number of IPUs or set "
            "poptorch.Options().autoRoundNumIPUs(True)."
        )
    logger.warning("Reserving %d IPUs when the model specifices the use of only %d.", reserved, needed)


def is_ipu_model(options: Options) -> bool:
    """Whether the program asks for an emulated machine of any size."""
    if options.exists("use_model"):
        return bool(options.use_model)
    return any(os.environ.get(name) == "1" for name in ("POPTORCH_IPU_MODEL", "POPTORCH_SMALL_IPU_MODEL"))


def synthetic(tensors: list[torch.Tensor], options: Options) -> list[torch.Tensor]:
    """Return what the device computes with in place of the inputs, where `Options.enableSyntheticData` says so.

    Args:
        tensors: The inputs of a call.
        options: The executor's.

    Returns:
        The inputs themselves, or tensors of their sizes and types: zeros, or normal values where numbers are real.
    """
    mode = int(options._popart.options.get("syntheticDataMode", 0))
    if not mode:
        return tensors
    made = [torch.zeros_like(tensor) for tensor in tensors]
    for tensor in made:
        if mode == SYNTHETIC_NORMAL and tensor.is_floating_point():
            tensor.normal_()
    return made


def anchors(options: Options) -> dict[str, Anchor]:
    """Return what `Options.anchorTensor` asks for; updated weights are read from the device instead."""
    found = {}
    for short_name, (long_name, mode, period) in options.anchored_tensors.items():
        is_usual = mode == OutputMode.Default
        returned = None if is_usual else Returned(MODES[OutputMode(mode)], period)
        if not long_name.startswith(UPDATED):
            found[short_name] = Anchor(long_name, returned)
    return found


def check_inference(options: Options) -> None:
    """Refuse options that only training can have.

    Raises:
        Error: Gradients are to be accumulated.
    """
    if options.Training.gradient_accumulation == 1:
        return
    message = "You must set poptorch.Options().Training.gradientAccumulation to 1 or leave it as its default value (1)"
    if isinstance(options._execution_strategy, PipelinedExecution):
        message += " when running a poptorch.inferenceModel(). Use poptorch.Options().deviceIterations to process a " \
                   "sufficient number of batches each run for pipelined execution instead"
    raise createPoptorchError(message + ".")


def adapt_options(options: Options, optimizer: torch.optim.Optimizer) -> None:
    """Choose the mean over half accumulators that cannot overflow, as PopTorch does."""
    if _has_half_accumulators(optimizer):
        options.Training.setMeanAccumulationAndReplicationReductionStrategy(MeanReductionStrategy.Running)


def check_strategy(options: Options, optimizer: torch.optim.Optimizer, *, is_compiled: bool) -> None:
    """Refuse an optimiser whose accumulators need another mean than the one that was chosen.

    Args:
        options: The executor's.
        optimizer: The one to be used from now on.
        is_compiled: Whether there is a program; until then the mean can be chosen anew.

    Raises:
        ValueError: The model is compiled with another strategy.
    """
    strategy = options.Training.meanAccumulationAndReplicationReductionStrategy
    if not _has_half_accumulators(optimizer) or strategy == MeanReductionStrategy.Running:
        return
    if is_compiled:
        raise ValueError(
            "An optimizer with accum_type=torch.float16 needs MeanReductionStrategy.Running, but the model is already "
            f"compiled with {strategy!r}: destroy() it first, or use an accum_type of torch.float32."
        )
    options._unfreeze()
    adapt_options(options, optimizer)
    options._freeze()


def _has_half_accumulators(optimizer: torch.optim.Optimizer) -> bool:
    is_combined = getattr(optimizer, "use_combined_accum", False)
    return getattr(optimizer, "accum_type", None) == torch.float16 and not is_combined


def check_batch(arguments: Arguments, options: Options) -> None:
    """Refuse batches that cannot be cut.

    Raises:
        AssertionError: The first size of a tensor is no multiple of the micro-batches of a call.
    """
    groups = options.replication_factor // options.input_group_size
    accumulation = options.Training.gradient_accumulation
    pieces = options.device_iterations * groups * accumulation
    for name, tensor in arguments.named_tensors():
        size = tensor.shape[0] if tensor.dim() else 1
        assert size % pieces == 0, (
            f"Invalid batch dimension: In the input {name}, the batch dimension ({size}) must be a multiple of "
            f"poptorch.Options.deviceIterations ({options.device_iterations}) * "
            f"(poptorch.Options.replicationFactor ({options.replication_factor}) / input group size "
            f"({options.input_group_size})) * poptorch.Options.Training.gradientAccumulation ({accumulation}) = "
            f"{pieces} because it is used to calculate the batch size which will be executed on the device in any "
            "given iteration. For a full explanation see the batching semantics page of the documentation."
        )
