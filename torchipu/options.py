"""Every option of a compilation: type, default, range and the PopTorch name it answers to."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from numbers import Integral, Real
from typing import Any

from torchipu.errors import OptionsError, nearest


def _option(
    default: object, text: str, *, kind: type, optional: bool = False, allowed: tuple[str, ...] = (),
    least: int | None = None, above: float | None = None, unit: str = "", poptorch: str = "", names_of: str = "block",
) -> Any:
    """Declare an option.

    Args:
        default: Value when the user says nothing.
        text: What it does, one line.
        kind: ``bool``, ``int``, ``float``, ``str``, or ``tuple`` for a list of names.
        optional: Whether None is a value too.
        allowed: Words accepted; a ``tuple`` option takes them besides a list of names.
        least: Smallest value.
        above: Value that must be exceeded.
        unit: Unit of a number.
        poptorch: Name of the PopTorch setting, if it has one.
        names_of: What the names of a ``tuple`` option are names of.
    """
    return field(
        default=default,
        metadata={
            "help": text, "kind": kind, "optional": optional, "allowed": allowed, "least": least, "above": above,
            "unit": unit, "poptorch": poptorch, "names_of": names_of,
        },
    )


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of the model, or a phase in phased execution.

    Attributes:
        blocks: Names of the blocks that run in it.
        ipu: IPU that computes it; None for what its blocks ask, else for the stage's own number.
    """

    blocks: tuple[str, ...]
    ipu: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorLocation:
    """Where tensors of one kind are kept.

    Attributes:
        on_chip: In tile memory; else in Streaming Memory, brought in where a function of the program needs them.
        min_elements_off_chip: Elements from which on a tensor may leave the chip.
        replicated_sharding: Each replica keeps a share of what an update changes: of optimiser states, accumulators; of
            weights, which forwards and backwards then gather before they use them.
        min_elements_sharding: Elements from which on a tensor is shared out.
        io_tiles_to_load: Loads from Streaming Memory go through the IO tiles, beside computation.
        io_tiles_to_store: So do stores.

    Source: the defaults of PopTorch's TensorLocationSettings.
    """

    on_chip: bool = True
    min_elements_off_chip: int = 2
    replicated_sharding: bool = False
    min_elements_sharding: int = 8192
    io_tiles_to_load: bool = False
    io_tiles_to_store: bool = False


class ProcessGroupLike:
    """What the core takes for a process group: torch.distributed's, which it does not import, or one like it."""

    @staticmethod
    def is_one(value: object) -> bool:
        """Whether a value answers what a process group is asked."""
        return all(callable(getattr(value, name, None)) for name in ("rank", "size"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of one compilation; immutable and checked when made.

    Raises:
        OptionsError: A value has the wrong type or is out of range.
    """

    target: str = _option("mk2", "machine to emulate, a name in torchipu.target.TARGETS", kind=str,
                          poptorch="useOfflineIpuTarget")
    num_ipus: int | None = _option(
        None, "IPUs that the model may use; None for as many as its blocks ask", kind=int, optional=True, least=1,
        unit="IPUs",
    )
    blocks: tuple[str, ...] | None = _option(
        None, "names of all blocks in pipeline order; None for the order in which they first run", kind=tuple,
        optional=True, poptorch="setExecutionStrategy",
    )
    stages: tuple[Stage, ...] | None = _option(
        None, "the stages in order: of each a torchipu.options.Stage, a block or a list of blocks; None for a stage "
        "wherever the blocks change from one IPU to another", kind=tuple, optional=True,
        poptorch="setExecutionStrategy",
    )
    execution: str = _option(
        "pipelined", "pipelined: micro-batches overlap on several IPUs; sharded: they run one after another; "
        "serial_phased, parallel_phased: each stage is a phase, and phases run one after another; 1f1b, interleaved: "
        "pipelines that PopTorch does not have", kind=str,
        allowed=("pipelined", "sharded", "serial_phased", "parallel_phased", "1f1b", "interleaved"),
        poptorch="setExecutionStrategy",
    )
    separate_backward_phase: bool = _option(
        False, "in phased execution, run the first backward in a phase after that of the last forward", kind=bool,
        poptorch="useSeparateBackwardPhase",
    )
    liveness: str = _option(
        "off_chip_after_each_phase", "where activations are between phases, unless activation_location says so: "
        "always_live, in tile memory; off_chip_after_forward, what the backward needs in Streaming Memory until then; "
        "off_chip_after_forward_no_overlap, the same without transfers beside computation; off_chip_after_each_phase, "
        "all that another phase needs", kind=str,
        allowed=(
            "always_live", "off_chip_after_forward", "off_chip_after_forward_no_overlap", "off_chip_after_each_phase",
        ),
        poptorch="SerialPhasedExecution.setTensorsLiveness",
    )
    gradient_accumulation: int = _option(
        1, "micro-batches whose gradients make one weight update", kind=int, least=1, unit="micro-batches",
        poptorch="Training.gradientAccumulation",
    )
    accumulation_reduction: str = _option(
        "mean", "how the gradients of these micro-batches, and of the replicas, are combined", kind=str,
        allowed=("mean", "sum"),
        poptorch="Training.accumulationAndReplicationReductionType",
    )
    replicas: int = _option(
        1, "copies of the model, each on IPUs of its own, that share the micro-batches of an update", kind=int, least=1,
        unit="replicas", poptorch="replicationFactor",
    )
    process_group: object | str | None = _option(
        None, "processes that train together, each with its own replicas: a group of torch.distributed; None for the "
        "default group where there is one; alone for this process by itself", kind=ProcessGroupLike, optional=True,
        allowed=("alone",), poptorch="Distributed",
    )
    pipeline_group: object | None = _option(
        None, "processes that run one pipeline together, process k its IPUs from k x ipus_per_process on: a group of "
        "torch.distributed; None for all IPUs in this process", kind=ProcessGroupLike, optional=True,
    )
    ipus_per_process: int | None = _option(
        None, "IPUs of a replica that each process of pipeline_group has; None for an even share", kind=int,
        optional=True, least=1, unit="IPUs",
    )
    input_group_size: int = _option(
        1, "replicas that are given the same inputs; it divides the replicas", kind=int, least=1, unit="replicas",
        poptorch="inputReplicaGrouping",
    )
    input_grouping: str = _option(
        "consecutive", "whether replicas with the same inputs are neighbours or lie a group's number apart", kind=str,
        allowed=("consecutive", "orthogonal"), poptorch="inputReplicaGrouping",
    )
    broadcast_buffers: bool = _option(
        True, "all replicas have the same buffers, so the model may not write any; False gives each its own", kind=bool,
        poptorch="broadcastBuffers",
    )
    batch_norm_group_size: int = _option(
        1, "neighbouring replicas over whose micro-batches together batch normalisations take mean and variance; it "
        "divides the replicas", kind=int, least=1, unit="replicas",
    )
    device_iterations: int = _option(
        1, "weight updates (training) or micro-batches (inference) in one call", kind=int, least=1,
        unit="device iterations", poptorch="deviceIterations",
    )
    output_mode: str | None = _option(
        None, "results handed back: of all micro-batches, of the final one, their sum, or of every n-th device "
        "iteration; None for 'final' in training and 'all' in inference", kind=str, optional=True,
        allowed=("all", "final", "sum", "every_n"), poptorch="outputMode",
    )
    output_period: int = _option(
        1, "the n of output_mode 'every_n'", kind=int, least=1, unit="device iterations",
        poptorch="outputMode(..., output_return_period)",
    )
    recompute: str | tuple[str, ...] = _option(
        "auto", "forward ops run again in the backward leg instead of being stored: none, those of every stage but "
        "the last, or those of the blocks named; auto for 'stage' in a training pipeline, else 'none'. "
        "torch.utils.checkpoint holds beside all of these", kind=tuple, allowed=("auto", "none", "stage"),
        poptorch="_Popart.set('autoRecomputation')",
    )
    loss_scaling: float = _option(
        1.0, "factor on the loss before the backward leg, divided out before the update", kind=float, above=0.0,
        poptorch="optim.loss_scaling",
    )
    automatic_loss_scaling: bool = _option(
        False, "double the loss scale after each weight update, or halve it where too many elements of half gradients "
        "were near the end of their range, so that it falls before they overflow; no update is skipped, as in PopART. "
        "It begins with loss_scaling", kind=bool,
        poptorch="Training.setAutomaticLossScaling",
    )
    loss_scale_gradients: str = _option(
        "all", "whose elements automatic_loss_scaling counts: gradients of weights, all that the backward leg "
        "computes, or those that products and convolutions give", kind=str, allowed=("weights", "all", "products"),
        poptorch="_Popart.set('automaticLossScalingSettings.gradientTensorTrackingMethod')",
    )
    loss_scale_tensors: tuple[str, ...] | None = _option(
        None, "parameters, modules or tensors of the graph whose gradients automatic_loss_scaling counts instead",
        kind=tuple, optional=True, names_of="tensor", poptorch="_Popart.set('automaticLossScalingSettings"
        ".toTrackTensors')",
    )
    loss_scale_bin_edge: float = _option(
        0.125, "share of the range of a half beyond which automatic_loss_scaling calls an element large", kind=float,
        above=0.0, poptorch="_Popart.set('automaticLossScalingSettings.binEdgeLocation')",
    )
    loss_scale_threshold: float = _option(
        1e-7, "share of large elements above which automatic_loss_scaling lowers the scale", kind=float, above=0.0,
        poptorch="_Popart.set('automaticLossScalingSettings.thresholdUpperCountProportion')",
    )
    loss_scale_period: int = _option(
        1, "weight updates over which automatic_loss_scaling counts before it changes the scale", kind=int, least=1,
        unit="updates", poptorch="_Popart.set('automaticLossScalingSettings.updatePeriod')",
    )
    max_grad_norm: float | None = _option(
        None, "norm of all gradients together to which they are clipped before an update, as by "
        "torch.nn.utils.clip_grad_norm_; None not to clip", kind=float, optional=True, above=0.0,
        poptorch="optim.max_grad_norm",
    )
    max_grad_value: float | None = _option(
        None, "largest magnitude of an element of a gradient, to which larger ones are clipped before an update, as by "
        "torch.nn.utils.clip_grad_value_, and before a norm is taken; None not to clip", kind=float, optional=True,
        above=0.0,
    )
    accumulator_type: str = _option(
        "gradient", "type in which gradients are accumulated over micro-batches; gradient for that of each gradient",
        kind=str, allowed=("gradient", "half", "float"), poptorch="optim.accum_type",
    )
    mean_reduction: str = _option(
        "post", "when a mean of gradients is divided: post, after their sum; running, with each gradient, so that a "
        "half accumulator does not overflow; post_and_loss, by the micro-batches before the backward leg and by the "
        "replicas after the sum", kind=str, allowed=("post", "running", "post_and_loss"),
        poptorch="Training.setMeanAccumulationAndReplicationReductionStrategy",
    )
    first_moment_type: str = _option(
        "weight", "type of momentum and of mean gradients that the optimiser keeps; weight for that of each weight",
        kind=str, allowed=("weight", "half", "float"), poptorch="optim.first_order_momentum_accum_type",
    )
    second_moment_type: str = _option(
        "weight", "type of mean squares of gradients that the optimiser keeps; weight for that of each weight",
        kind=str, allowed=("weight", "half", "float"), poptorch="optim.second_order_momentum_accum_type",
    )
    stochastic_rounding: bool = _option(
        False, "round half results up or down at random, in proportion to what is discarded; otherwise to nearest",
        kind=bool, poptorch="Precision.enableStochasticRounding",
    )
    partials_type: str = _option(
        "float", "type in which products and convolutions of halves are summed; half rounds after every 16 channels",
        kind=str, allowed=("float", "half"), poptorch="Precision.setPartialsType",
    )
    available_memory: Mapping[int, float] | None = _option(
        None, "part of a tile's memory that a product or convolution may use for temporary values, by IPU; less makes "
        "them smaller and slower. 0.6 for IPUs that are left out", kind=dict, optional=True,
        poptorch="setAvailableMemoryProportion",
    )
    floating_point_exceptions: bool = _option(
        False, "stop at an overflow, an invalid operation or a division by zero, and name the op; each op then runs by "
        "itself on the host, which takes longer and changes no value", kind=bool,
        poptorch="Precision.enableFloatingPointExceptions",
    )
    executor: str = _option(
        "host", "what computes a call: a plan of the host, or the tiles of an emulated machine, each vertex on the "
        "bytes of its own tile, which is slow and strict; for TrainStep and InferenceStep", kind=str,
        allowed=("host", "tiles"),
    )
    statistics: bool = _option(
        False, "count the magnitudes of all results, for torchipu.statistics() and the report; each op then runs by "
        "itself on the host, which takes longer and changes no value", kind=bool,
        poptorch="_Popart.set('torchipu.statistics')",
    )
    half_overflow: str = _option(
        "infinity", "what a half result beyond 65504 becomes: infinity as in PyTorch, NaN as on an IPU with NANOO set, "
        "or the largest half as on one with NANOO clear", kind=str, allowed=("infinity", "nan", "saturate"),
        poptorch="_Popart.set('enableNanoo')",
    )
    offload_optimiser_state: bool = _option(
        False, "short for an optimiser_state_location off chip: states in Streaming Memory between updates", kind=bool,
    )
    weight_location: TensorLocation | None = _option(
        None, "where weights are kept; None for tile memory, or for Streaming Memory in phased execution",
        kind=TensorLocation, optional=True, poptorch="TensorLocations.setWeightLocation",
    )
    activation_location: TensorLocation | None = _option(
        None, "where activations are kept between forward and backward; None as for weights", kind=TensorLocation,
        optional=True, poptorch="TensorLocations.setActivationLocation",
    )
    accumulator_location: TensorLocation | None = _option(
        None, "where accumulators are kept; None as for weights", kind=TensorLocation, optional=True,
        poptorch="TensorLocations.setAccumulatorLocation",
    )
    optimiser_state_location: TensorLocation | None = _option(
        None, "where the states of the optimiser are kept; None as for weights", kind=TensorLocation, optional=True,
        poptorch="TensorLocations.setOptimizerLocation",
    )
    io_tiles: int = _option(
        0, "tiles of each IPU that transfer data while the others compute; an even number from 32 to 192, or 0",
        kind=int, least=0, unit="tiles", poptorch="TensorLocations.numIOTiles",
    )
    overlap_inputs: str = _option(
        "none", "whether inputs are streamed in beside computation: accumulation_loop, but for those of the first "
        "micro-batch of an update; device_iteration_loop, those too", kind=str,
        allowed=("none", "accumulation_loop", "device_iteration_loop"), poptorch="set_overlap_for_input",
    )
    overlap_outputs: str = _option(
        "none", "the same for results", kind=str, allowed=("none", "accumulation_loop", "device_iteration_loop"),
        poptorch="set_overlap_for_output",
    )
    sync_pattern: str = _option(
        "full", "full: all IPUs of a pipeline wait while one of them exchanges data with the host; single_pipeline, "
        "replica_and_ladder: the others compute", kind=str, allowed=("full", "single_pipeline", "replica_and_ladder"),
        poptorch="syncPattern",
    )
    allow_out_of_memory: bool = _option(
        False, "run although a tile overflows; the report shows by how much", kind=bool,
    )
    seed: int | None = _option(
        None, "seed of the random bits on the device; None to draw one from torch's generator", kind=int,
        optional=True, least=0, poptorch="randomSeed",
    )
    strict: bool = _option(False, "refuse graph breaks and recompilations that would leave code to eager", kind=bool)
    strict_ops: bool = _option(False, "refuse ops that have no record of their own", kind=bool)
    verify: bool | None = _option(
        None, "check the IR before and after each pass; None leaves it to the compiler", kind=bool, optional=True,
    )
    dump: str | None = _option(
        None, "directory that receives the IR after each pass", kind=str, optional=True, poptorch="logDir",
    )
    frozen_weights: bool = _option(
        False, "torch.compile, inference: prepare weights at the first call, and again only after a change that torch "
        "counts (Tensor._version), which writes through .data are not; without effect on results otherwise", kind=bool,
    )
    host_threads: int | None = _option(
        None, "host threads that run the kernels, without effect on results; None for one a core", kind=int,
        optional=True, least=1, unit="threads",
    )

    def __post_init__(self) -> None:
        for option in fields(self):
            given = getattr(self, option.name)
            value = _stages(given) if option.name == "stages" else _checked(option.name, given, option.metadata)
            object.__setattr__(self, option.name, value)
        if self.stages is not None and self.blocks is not None:
            raise OptionsError(
                "stages and blocks both give the order of the blocks", option="blocks", value=self.blocks,
                allowed="None beside stages", remedy="leave blocks out",
            )
        _check_io_tiles(self)
        _check_pipeline_group(self)
        for name in ("input_group_size", "batch_norm_group_size"):
            size = getattr(self, name)
            if self.replicas % size:
                raise OptionsError(
                    f"{name}={size} does not divide replicas={self.replicas}", option=name, value=size,
                    allowed=", ".join(str(size) for size in range(1, self.replicas + 1) if self.replicas % size == 0),
                )

    @property
    def divides_loss(self) -> bool:
        """Whether the backward leg begins from a share of the loss, one for each micro-batch of an update.

        Where the loss scale follows the gradients, it is the scale of the whole loss, which is divided after the sum.
        """
        is_asked = self.mean_reduction == "post_and_loss" and self.accumulation_reduction == "mean"
        return is_asked and not self.automatic_loss_scaling

    @property
    def backward_scale(self) -> float:
        """Factor on the loss from which the backward leg begins."""
        return self.loss_scaling / (self.gradient_accumulation if self.divides_loss else 1)

    @property
    def input_groups(self) -> int:
        """Groups of replicas with inputs of their own."""
        return self.replicas // self.input_group_size

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object]) -> Options:
        """Make options from ``torch.compile(..., options={...})``.

        Args:
            mapping: Values by option name.

        Returns:
            The options, defaults filled in.

        Raises:
            OptionsError: A name is unknown, or a value has the wrong type or is out of range.
        """
        known = [option.name for option in fields(cls)]
        for name in mapping:
            if name not in known:
                raise OptionsError(
                    f"unknown option {name!r}{nearest(str(name), known)}", option=str(name), value=mapping[name],
                    allowed=", ".join(known),
                )
        return cls(**mapping)  # type: ignore[arg-type]

    @classmethod
    def describe(cls) -> str:
        """Return a listing of every option: name, default, expectation, PopTorch name and what it does."""
        lines = []
        for option in fields(cls):
            facts = [f"{option.name} = {option.default!r}", f"expects {_expectation(option.metadata)}"]
            if option.metadata["unit"]:
                facts.append(f"unit: {option.metadata['unit']}")
            if option.metadata["poptorch"]:
                facts.append(f"poptorch: {option.metadata['poptorch']}")
            lines += ["; ".join(facts), f"    {option.metadata['help']}"]
        return "\n".join(lines)

    def changed(self) -> dict[str, object]:
        """Return the values that differ from their defaults."""
        values = {option.name: getattr(self, option.name) for option in fields(self)}
        defaults = {option.name: option.default for option in fields(self) if option.default is not MISSING}
        return {name: value for name, value in values.items() if value != defaults[name]}

    def __str__(self) -> str:
        changed = self.changed()
        width = max(len(option.name) for option in fields(self))
        return "\n".join(
            f"{option.name:<{width}} = {getattr(self, option.name)!r}{'' if option.name in changed else '  (default)'}"
            for option in fields(self)
        )


MIN_IO_TILES, MAX_IO_TILES = 32, 192  # PopTorch's bounds


def _check_io_tiles(options: Options) -> None:
    """Refuse a number of IO tiles that machines do not take, and overlaps without them."""
    count = options.io_tiles
    if count and not (MIN_IO_TILES <= count <= MAX_IO_TILES and count % 2 == 0):
        raise OptionsError(
            f"io_tiles={count} is no even number from {MIN_IO_TILES} to {MAX_IO_TILES}", option="io_tiles", value=count,
            allowed=f"0, or an even number from {MIN_IO_TILES} to {MAX_IO_TILES}",
        )
    if count:
        return
    locations = {
        "weight_location": options.weight_location, "activation_location": options.activation_location,
        "accumulator_location": options.accumulator_location,
        "optimiser_state_location": options.optimiser_state_location,
    }
    asking = [name for name in ("overlap_inputs", "overlap_outputs") if getattr(options, name) != "none"]
    asking += [n for n, place in locations.items() if place and (place.io_tiles_to_load or place.io_tiles_to_store)]
    if asking:
        raise OptionsError(
            f"{asking[0]} needs IO tiles, but io_tiles is 0", option=asking[0], value=getattr(options, asking[0]),
            remedy=f"set io_tiles to {MIN_IO_TILES} or more: these tiles then do not compute",
        )


def _check_pipeline_group(options: Options) -> None:
    """Refuse what a pipeline over processes cannot do."""
    if options.ipus_per_process is not None and options.pipeline_group is None:
        raise OptionsError(
            f"ipus_per_process={options.ipus_per_process}, but there is no pipeline_group", option="ipus_per_process",
            value=options.ipus_per_process, remedy="give the processes as pipeline_group, or leave it out",
        )
    if options.pipeline_group is not None and options.batch_norm_group_size > 1:
        raise OptionsError(
            "batch normalisations over several replicas do not go with a pipeline over several processes",
            option="batch_norm_group_size", value=options.batch_norm_group_size, allowed="1 beside pipeline_group",
            remedy="set batch_norm_group_size=1",
        )


_ARTICLES = {bool: "a bool", int: "an int", float: "a float", str: "a str", tuple: "a list of {} names",
             TensorLocation: "a torchipu.TensorLocation", ProcessGroupLike: "a process group of torch.distributed",
             dict: "a dict of numbers above 0 and at most 1 by IPU"}


def _checked(name: str, value: object, rules: Mapping[str, Any]) -> object:
    """Return a value in its normal type, or refuse it."""
    if value is None and rules["optional"]:
        return None
    if rules["allowed"] and isinstance(value, str):
        if value in rules["allowed"]:
            return value
        raise _refusal(name, value, rules, nearest(value, rules["allowed"]))
    number = _normal(value, rules["kind"])
    if number is None:
        raise _refusal(name, value, rules)
    if isinstance(number, tuple):
        _check_names(name, number, rules["names_of"])
    elif rules["allowed"] and rules["kind"] is not ProcessGroupLike:
        raise _refusal(name, value, rules)
    if rules["least"] is not None and number < rules["least"]:
        raise _refusal(name, value, rules)
    # Written so that a NaN is refused too.
    if rules["above"] is not None and not rules["above"] < number < float("inf"):
        raise _refusal(name, value, rules)
    return number


def _normal(value: object, kind: type) -> Any:
    """Return a value as ``kind`` where that loses nothing, else None; a bool is no number here."""
    if isinstance(value, bool):
        return value if kind is bool else None
    if kind is int and isinstance(value, Integral):
        return int(value)
    if kind is float and isinstance(value, Real):
        return float(value)
    if kind is TensorLocation and isinstance(value, Mapping) and set(value) <= {f.name for f in fields(TensorLocation)}:
        value = TensorLocation(**value)
    if kind is TensorLocation and isinstance(value, TensorLocation):
        flags = (value.on_chip, value.replicated_sharding, value.io_tiles_to_load, value.io_tiles_to_store)
        sizes = (value.min_elements_off_chip, value.min_elements_sharding)
        is_valid = all(isinstance(flag, bool) for flag in flags) and all(
            _normal(size, int) is not None and size >= 0 for size in sizes
        )
        return value if is_valid else None
    if kind is ProcessGroupLike and not isinstance(value, str) and ProcessGroupLike.is_one(value):
        return value
    if kind is str and isinstance(value, (str, os.PathLike)):
        return os.fspath(value)
    if kind is dict and isinstance(value, Mapping):
        parts = {_normal(ipu, int): _normal(part, float) for ipu, part in value.items()}
        is_valid = all(ipu is not None and ipu >= 0 and part and 0 < part <= 1 for ipu, part in parts.items())
        return parts if is_valid else None
    if kind is tuple and isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
        return tuple(value)
    return None


def _stages(given: object) -> tuple[Stage, ...] | None:
    """Return the stages that a list of blocks, of lists of blocks, or of stages describes."""
    if given is None:
        return None
    rule = "a list of stages, each a Stage, a block name or a list of block names"
    if not isinstance(given, (list, tuple)) or not given:
        raise OptionsError(f"option 'stages' expects {rule}, got {given!r}", option="stages", value=given, allowed=rule)
    stages = []
    for position, item in enumerate(given):
        stage = item if isinstance(item, Stage) else Stage((item,) if isinstance(item, str) else item)
        names = _normal(stage.blocks, tuple)
        ipu = None if stage.ipu is None else _normal(stage.ipu, int)
        if not names or not all(names) or (stage.ipu is not None and (ipu is None or ipu < 0)):
            raise OptionsError(
                f"stage {position} is {item!r}, which is no stage", option="stages", value=item, allowed=rule,
            )
        stages.append(Stage(names, ipu))
    _check_stages(stages)
    return tuple(stages)


def _check_stages(stages: list[Stage]) -> None:
    """Refuse a block that is in two stages, or twice in one."""
    found: dict[str, int] = {}
    for number, stage in enumerate(stages):
        for block in stage.blocks:
            if block in found:
                first = found[block]
                where = f"stage {number} twice" if first == number else f"stage {first} and in stage {number}"
                raise OptionsError(
                    f"block {block!r} is in {where}", option="stages", value=block,
                    allowed="every block once\n" + format_stages(stages, number, f"{block!r} again"),
                    remedy="name the block in the stage where it belongs only",
                )
            found[block] = number


def format_stages(stages: Iterable[Stage], arrow_at: int | None = None, note: str = "") -> str:
    """Return stages as a table: number, blocks and, where it is given, the IPU."""
    lines = [
        f"stage {number}: {', '.join(stage.blocks)}" + ("" if stage.ipu is None else f"  (ipu {stage.ipu})")
        for number, stage in enumerate(stages)
    ]
    if arrow_at is not None:
        lines[arrow_at] += f"   <-- {note}"
    return "\n".join(lines)


def _check_names(name: str, names: tuple[str, ...], noun: str) -> None:
    """Refuse a list of names that is empty or says one twice."""
    if not names:
        raise OptionsError(f"option {name!r} got an empty list of {noun} names", option=name, value=names)
    for named in names:
        if names.count(named) > 1:
            raise OptionsError(f"option {name!r} lists {noun} {named!r} more than once", option=name, value=names)


_REMEDIES: Mapping[str, str] = {
    "loss_scaling": "use a power of two such as 1024.0, or automatic_loss_scaling=True, which finds one",
    "partials_type": "use 'float' or 'half', the types in which the matrix unit accumulates",
}


def _refusal(name: str, value: object, rules: Mapping[str, Any], hint: str = "") -> OptionsError:
    got = f"{value!r} ({type(value).__name__})"
    return OptionsError(
        f"option {name!r} expects {_expectation(rules)}, got {got}{hint}", option=name, value=value,
        allowed=_expectation(rules), remedy=_REMEDIES.get(name, ""),
    )


def _expectation(rules: Mapping[str, Any]) -> str:
    """Say in words what an option takes, e.g. ``an int of at least 1 or None``."""
    words = [repr(word) for word in rules["allowed"]]
    if not words or rules["kind"] in (tuple, ProcessGroupLike):
        text = _ARTICLES[rules["kind"]].format(rules["names_of"])
        if rules["least"] is not None:
            text += f" of at least {rules['least']}"
        if rules["above"] is not None:
            text += f" above {rules['above']:g}"
        words.append(text)
    if rules["optional"]:
        words.append("None")
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
