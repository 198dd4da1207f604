"""From PopTorch's options to those of the core."""

from __future__ import annotations

import math
from typing import Any

import torch

from torchipu.host.resident import Returned
from torchipu.options import Options as CoreOptions
from torchipu.options import Stage as CoreStage
from torchipu.poptorch.enums import (
    CommGroupType,
    Liveness,
    MeanReductionStrategy,
    OutputMode,
    ReductionType,
)
from torchipu.poptorch.executor import processes
from torchipu.poptorch.executor.machine import target_of
from torchipu.poptorch.operators.placing import BEFORE_ALL_BLOCKS
from torchipu.poptorch.options import Options
from torchipu.poptorch.options.automatic_scale import automatic_scale
from torchipu.poptorch.options.engine import engine_options, is_on
from torchipu.poptorch.options.locations import core_locations
from torchipu.poptorch.options.strategies import (
    PipelinedExecution,
    SerialPhasedExecution,
    _IExecutionStrategy,
    _PhasedExecution,
)
from torchipu.poptorch.reports.anchors import Anchor
from torchipu.poptorch.reports.profile import is_reported

MODES = {
    OutputMode.Final: "final", OutputMode.All: "all", OutputMode.Sum: "sum", OutputMode.EveryN: "every_n",
}
TYPES = {torch.float16: "half", torch.float32: "float"}
STRATEGIES = {
    MeanReductionStrategy.Running: "running", MeanReductionStrategy.Post: "post",
    MeanReductionStrategy.PostAndLoss: "post_and_loss",
}


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
        "target": target_of(options),
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
        "host_times": bool(options._popart.options.get("torchipu.host_times", is_reported(options))),
        "partials_type": _partials_type(options),
        "available_memory": options.available_memory_proportion or None,
        "offload_optimiser_state": _is_off_chip(options.TensorLocations.location_optimizer),
        "replicas": options.replication_factor,
        "process_group": group,
        "input_group_size": options.input_group_size,
        "input_grouping": "orthogonal" if options.input_cgt == CommGroupType.Orthogonal else "consecutive",
        "broadcast_buffers": options.broadcast_buffers,
        "prefetch_depth": _prefetch_depth(options),
        "outlining": bool(options._popart.options.get("enableOutlining", True)),
        **core_locations(options),
    }
    return CoreOptions(**values)


def _prefetch_depth(options: Options) -> Any:
    """Return how many buffers of each input the host fills ahead.

    PopART has one of a stream that it lays out anew on the host, whatever else is asked for; its older name of the
    depth is taken too.
    """
    given = options._popart.options
    if not given.get("enablePrefetchDatastreams", True):
        return 0
    if given.get("rearrangeStreamsOnHost", False):
        return 1
    return given.get("defaultBufferingDepth", given.get("defaultPrefetchBufferingDepth", 1))


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


def _recomputation(options: Options) -> str:
    """Return which stages run their forward again, if the program says so by PopART's option."""
    level = options._popart.options.get("autoRecomputation")
    if level is None:
        return "auto"
    return "stage" if int(level) else "none"


def _is_off_chip(location: Any) -> bool:
    return location.exists("onChip") and not location.onChip


def anchors(options: Options) -> dict[str, Anchor]:
    """Return what `Options.anchorTensor` asks for."""
    found = {}
    for short_name, (long_name, mode, period) in options.anchored_tensors.items():
        is_usual = mode == OutputMode.Default
        returned = None if is_usual else Returned(MODES[OutputMode(mode)], period)
        found[short_name] = Anchor(long_name, returned)
    return found
