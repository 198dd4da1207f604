"""Every option of a compilation: type, default, range, the PopTorch name it answers to, and what goes together."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields

from torchipu.errors import OptionsError, nearest
from torchipu.options.declared import checked, declare, expectation
from torchipu.options.kinds import ProcessGroupLike, TensorLocation
from torchipu.options.stages import Stage, format_stages, stages_of
from torchipu.target import Target, lookup_target

TARGET_VARIABLE = "TORCHIPU_TARGET"

__all__ = ["TARGET_VARIABLE", "Options", "emulating", "ProcessGroupLike", "Stage", "TensorLocation", "format_stages"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of one compilation; immutable and checked when made.

    Raises:
        OptionsError: A name is unknown, or a value has the wrong type or is out of range.
    """

    target: str | Target = declare(
        "mk2", "machine to emulate: a name in torchipu.target.TARGETS, after which fields may be replaced "
        "('mk2,num_tiles=736'), a TOML file that does so, or a Target. The option becomes the name, which says all of "
        f"the machine. {TARGET_VARIABLE} in the environment goes before it", kind=Target,
        poptorch="useOfflineIpuTarget, _Popart.set('torchipu.target')",
    )
    num_ipus: int | None = declare(
        None, "IPUs that the model may use; None for as many as its blocks ask", kind=int, optional=True, least=1,
        unit="IPUs",
    )
    blocks: tuple[str, ...] | None = declare(
        None, "names of all blocks in pipeline order; None for the order in which they first run", kind=tuple,
        optional=True, poptorch="setExecutionStrategy",
    )
    stages: tuple[Stage, ...] | None = declare(
        None, "the stages in order: of each a torchipu.options.Stage, a block or a list of blocks; None for a stage "
        "wherever the blocks change from one IPU to another", kind=tuple, optional=True,
        poptorch="setExecutionStrategy",
    )
    execution: str = declare(
        "pipelined", "pipelined: micro-batches overlap on several IPUs; sharded: they run one after another; "
        "serial_phased, parallel_phased: each stage is a phase, and phases run one after another; 1f1b, interleaved: "
        "pipelines that PopTorch does not have", kind=str,
        allowed=("pipelined", "sharded", "serial_phased", "parallel_phased", "1f1b", "interleaved"),
        poptorch="setExecutionStrategy",
    )
    separate_backward_phase: bool = declare(
        False, "in phased execution, run the first backward in a phase after that of the last forward", kind=bool,
        poptorch="useSeparateBackwardPhase",
    )
    liveness: str = declare(
        "off_chip_after_each_phase", "where activations are between phases, unless activation_location says so: "
        "always_live, in tile memory; off_chip_after_forward, what the backward needs in Streaming Memory until then; "
        "off_chip_after_forward_no_overlap, the same without transfers beside computation; off_chip_after_each_phase, "
        "all that another phase needs", kind=str,
        allowed=(
            "always_live", "off_chip_after_forward", "off_chip_after_forward_no_overlap", "off_chip_after_each_phase",
        ),
        poptorch="SerialPhasedExecution.setTensorsLiveness",
    )
    gradient_accumulation: int = declare(
        1, "micro-batches whose gradients make one weight update", kind=int, least=1, unit="micro-batches",
        poptorch="Training.gradientAccumulation",
    )
    accumulation_reduction: str = declare(
        "mean", "how the gradients of these micro-batches, and of the replicas, are combined", kind=str,
        allowed=("mean", "sum"),
        poptorch="Training.accumulationAndReplicationReductionType",
    )
    replicas: int = declare(
        1, "copies of the model, each on IPUs of its own, that share the micro-batches of an update", kind=int, least=1,
        unit="replicas", poptorch="replicationFactor",
    )
    process_group: object | str | None = declare(
        None, "processes that train together, each with its own replicas: a group of torch.distributed; None for the "
        "default group where there is one; alone for this process by itself", kind=ProcessGroupLike, optional=True,
        allowed=("alone",), poptorch="Distributed",
    )
    pipeline_group: object | None = declare(
        None, "processes that run one pipeline together, process k its IPUs from k x ipus_per_process on: a group of "
        "torch.distributed; None for all IPUs in this process", kind=ProcessGroupLike, optional=True,
    )
    ipus_per_process: int | None = declare(
        None, "IPUs of a replica that each process of pipeline_group has; None for an even share", kind=int,
        optional=True, least=1, unit="IPUs",
    )
    input_group_size: int = declare(
        1, "replicas that are given the same inputs; it divides the replicas", kind=int, least=1, unit="replicas",
        poptorch="inputReplicaGrouping",
    )
    input_grouping: str = declare(
        "consecutive", "whether replicas with the same inputs are neighbours or lie a group's number apart", kind=str,
        allowed=("consecutive", "orthogonal"), poptorch="inputReplicaGrouping",
    )
    broadcast_buffers: bool = declare(
        True, "all replicas have the same buffers, so the model may not write any; False gives each its own", kind=bool,
        poptorch="broadcastBuffers",
    )
    batch_norm_group_size: int = declare(
        1, "neighbouring replicas over whose micro-batches together batch normalisations take mean and variance; it "
        "divides the replicas", kind=int, least=1, unit="replicas",
    )
    device_iterations: int = declare(
        1, "weight updates (training) or micro-batches (inference) in one call", kind=int, least=1,
        unit="device iterations", poptorch="deviceIterations",
    )
    output_mode: str | None = declare(
        None, "results handed back: of all micro-batches, of the final one, their sum, or of every n-th device "
        "iteration; None for 'final' in training and 'all' in inference", kind=str, optional=True,
        allowed=("all", "final", "sum", "every_n"), poptorch="outputMode",
    )
    output_period: int = declare(
        1, "the n of output_mode 'every_n'", kind=int, least=1, unit="device iterations",
        poptorch="outputMode(..., output_return_period)",
    )
    recompute: str | tuple[str, ...] = declare(
        "auto", "forward ops run again in the backward leg instead of being stored: none, those of every stage but "
        "the last, or those of the blocks named; auto for 'stage' in a training pipeline, else 'none'. "
        "torch.utils.checkpoint holds beside all of these", kind=tuple, allowed=("auto", "none", "stage"),
        poptorch="_Popart.set('autoRecomputation')",
    )
    loss_scaling: float = declare(
        1.0, "factor on the loss before the backward leg, divided out before the update", kind=float, above=0.0,
        poptorch="optim.loss_scaling",
    )
    automatic_loss_scaling: bool = declare(
        False, "double the loss scale after each weight update, or halve it where too many elements of half gradients "
        "were near the end of their range, so that it falls before they overflow; no update is skipped, as in PopART. "
        "It begins with loss_scaling", kind=bool,
        poptorch="Training.setAutomaticLossScaling",
    )
    loss_scale_gradients: str = declare(
        "all", "whose elements automatic_loss_scaling counts: gradients of weights, all that the backward leg "
        "computes, or those that products and convolutions give", kind=str, allowed=("weights", "all", "products"),
        poptorch="_Popart.set('automaticLossScalingSettings.gradientTensorTrackingMethod')",
    )
    loss_scale_tensors: tuple[str, ...] | None = declare(
        None, "parameters, modules or tensors of the graph whose gradients automatic_loss_scaling counts instead",
        kind=tuple, optional=True, names_of="tensor", poptorch="_Popart.set('automaticLossScalingSettings"
        ".toTrackTensors')",
    )
    loss_scale_bin_edge: float = declare(
        0.125, "share of the range of a half beyond which automatic_loss_scaling calls an element large", kind=float,
        above=0.0, poptorch="_Popart.set('automaticLossScalingSettings.binEdgeLocation')",
    )
    loss_scale_threshold: float = declare(
        1e-7, "share of large elements above which automatic_loss_scaling lowers the scale", kind=float, above=0.0,
        poptorch="_Popart.set('automaticLossScalingSettings.thresholdUpperCountProportion')",
    )
    loss_scale_period: int = declare(
        1, "weight updates over which automatic_loss_scaling counts before it changes the scale", kind=int, least=1,
        unit="updates", poptorch="_Popart.set('automaticLossScalingSettings.updatePeriod')",
    )
    max_grad_norm: float | None = declare(
        None, "norm of all gradients together to which they are clipped before an update, as by "
        "torch.nn.utils.clip_grad_norm_; None not to clip", kind=float, optional=True, above=0.0,
        poptorch="optim.max_grad_norm",
    )
    max_grad_value: float | None = declare(
        None, "largest magnitude of an element of a gradient, to which larger ones are clipped before an update, as by "
        "torch.nn.utils.clip_grad_value_, and before a norm is taken; None not to clip", kind=float, optional=True,
        above=0.0,
    )
    accumulator_type: str = declare(
        "gradient", "type in which gradients are accumulated over micro-batches; gradient for that of each gradient",
        kind=str, allowed=("gradient", "half", "float"), poptorch="optim.accum_type",
    )
    mean_reduction: str = declare(
        "post", "when a mean of gradients is divided: post, after their sum; running, with each gradient, so that a "
        "half accumulator does not overflow; post_and_loss, by the micro-batches before the backward leg and by the "
        "replicas after the sum", kind=str, allowed=("post", "running", "post_and_loss"),
        poptorch="Training.setMeanAccumulationAndReplicationReductionStrategy",
    )
    first_moment_type: str = declare(
        "weight", "type of momentum and of mean gradients that the optimiser keeps; weight for that of each weight",
        kind=str, allowed=("weight", "half", "float"), poptorch="optim.first_order_momentum_accum_type",
    )
    second_moment_type: str = declare(
        "weight", "type of mean squares of gradients that the optimiser keeps; weight for that of each weight",
        kind=str, allowed=("weight", "half", "float"), poptorch="optim.second_order_momentum_accum_type",
    )
    stochastic_rounding: bool = declare(
        False, "round half results up or down at random, in proportion to what is discarded; otherwise to nearest",
        kind=bool, poptorch="Precision.enableStochasticRounding",
    )
    partials_type: str = declare(
        "float", "type in which products and convolutions of halves are summed; half rounds after every 16 channels",
        kind=str, allowed=("float", "half"), poptorch="Precision.setPartialsType",
    )
    available_memory: Mapping[int, float] | None = declare(
        None, "part of a tile's memory that a product or convolution may use for temporary values, by IPU; less makes "
        "them smaller and slower. 0.6 for IPUs that are left out", kind=dict, optional=True,
        poptorch="setAvailableMemoryProportion",
    )
    indices_distribution: str = declare(
        "uniform", "which rows indices of look-ups and updates name: all of a table alike, or one_point, where all may "
        "name one; it changes which cycles are expected", kind=str, allowed=("uniform", "one_point"),
    )
    floating_point_exceptions: bool = declare(
        False, "stop at an overflow, an invalid operation or a division by zero, and name the op; each op then runs by "
        "itself on the host, which takes longer and changes no value", kind=bool,
        poptorch="Precision.enableFloatingPointExceptions",
    )
    executor: str = declare(
        "host", "what computes a call: a plan of the host, or the tiles of an emulated machine, each vertex on the "
        "bytes of its own tile, which is slow and strict; for TrainStep and InferenceStep", kind=str,
        allowed=("host", "tiles"),
    )
    statistics: bool = declare(
        False, "count the magnitudes of all results, for torchipu.statistics() and the report; each op then runs by "
        "itself on the host, which takes longer and changes no value", kind=bool,
        poptorch="_Popart.set('torchipu.statistics')",
    )
    host_times: bool = declare(
        False, "time every kernel of the host, the waits for other processes and what lies between calls, for the "
        "report of a step; changes no value", kind=bool, poptorch="_Popart.set('torchipu.host_times')",
    )
    half_overflow: str = declare(
        "infinity", "what a half result beyond 65504 becomes: infinity as in PyTorch, NaN as on an IPU with NANOO set, "
        "or the largest half as on one with NANOO clear", kind=str, allowed=("infinity", "nan", "saturate"),
        poptorch="_Popart.set('enableNanoo')",
    )
    offload_optimiser_state: bool = declare(
        False, "short for an optimiser_state_location off chip: states in Streaming Memory between updates", kind=bool,
    )
    weight_location: TensorLocation | None = declare(
        None, "where weights are kept; None for tile memory, or for Streaming Memory in phased execution",
        kind=TensorLocation, optional=True, poptorch="TensorLocations.setWeightLocation",
    )
    activation_location: TensorLocation | None = declare(
        None, "where activations are kept between forward and backward; None as for weights", kind=TensorLocation,
        optional=True, poptorch="TensorLocations.setActivationLocation",
    )
    accumulator_location: TensorLocation | None = declare(
        None, "where accumulators are kept; None as for weights", kind=TensorLocation, optional=True,
        poptorch="TensorLocations.setAccumulatorLocation",
    )
    optimiser_state_location: TensorLocation | None = declare(
        None, "where the states of the optimiser are kept; None as for weights", kind=TensorLocation, optional=True,
        poptorch="TensorLocations.setOptimizerLocation",
    )
    io_tiles: int = declare(
        0, "tiles of each IPU that transfer data while the others compute; an even number from 32 to 192, or 0",
        kind=int, least=0, unit="tiles", poptorch="TensorLocations.numIOTiles",
    )
    overlap_inputs: str = declare(
        "none", "whether inputs are streamed in beside computation: accumulation_loop, but for those of the first "
        "micro-batch of an update; device_iteration_loop, those too", kind=str,
        allowed=("none", "accumulation_loop", "device_iteration_loop"), poptorch="set_overlap_for_input",
    )
    overlap_outputs: str = declare(
        "none", "the same for results", kind=str, allowed=("none", "accumulation_loop", "device_iteration_loop"),
        poptorch="set_overlap_for_output",
    )
    prefetch_depth: int = declare(
        1, "micro-batches of each input that the host copies into the buffers of its stream before the device asks for "
        "them; more of them take more of the host's memory, and even out what the host is behind for a while; 0: the "
        "device waits while the host copies", kind=int, least=0, unit="micro-batches",
        poptorch="_Popart.set('defaultPrefetchBufferingDepth')",
    )
    outlining: bool = declare(
        True, "parts of the program that are alike, such as layers that repeat, share control code, vertex state and "
        "exchange code; without it every op has its own, which profilers ask for to tell whose they are",
        kind=bool, poptorch="_Popart.set('enableOutlining')",
    )
    sync_pattern: str = declare(
        "full", "full: all IPUs of a pipeline wait while one of them exchanges data with the host; single_pipeline, "
        "replica_and_ladder: the others compute", kind=str, allowed=("full", "single_pipeline", "replica_and_ladder"),
        poptorch="syncPattern",
    )
    allow_out_of_memory: bool = declare(
        False, "run although a tile overflows; the report shows by how much", kind=bool,
    )
    seed: int | None = declare(
        None, "seed of the random bits on the device; None to draw one from torch's generator", kind=int,
        optional=True, least=0, poptorch="randomSeed",
    )
    strict: bool = declare(
        False, "refuse graph breaks and recompilations that would leave code to eager, and inputs of types that the "
        "IPU would compute less exactly", kind=bool,
    )
    strict_ops: bool = declare(False, "refuse ops that have no record of their own", kind=bool)
    verify: bool | None = declare(
        None, "check the IR before and after each pass; None leaves it to the compiler", kind=bool, optional=True,
    )
    dump: str | None = declare(
        None, "directory that receives the IR after each pass", kind=str, optional=True, poptorch="logDir",
    )
    frozen_weights: bool = declare(
        False, "inference, by torch.compile or InferenceStep: prepare weights at the first call, and again only after "
        "a change that torch counts (Tensor._version), or that a few elements of each show, with a warning: writes "
        "through .data are not counted; convolutions then add up in another order", kind=bool,
    )
    strict_numerics: bool = declare(
        False, "convolutions and their gradients add up products as they are defined, never by Winograd's transforms, "
        "and products of bfloat16 are products of floats", kind=bool,
    )
    host_threads: int | None = declare(
        None, "host threads that run the kernels, without effect on results; None for one a core, under torch.compile "
        "for as many as torch has", kind=int, optional=True, least=1, unit="threads",
    )

    plan_cache_bytes: int = declare(
        256 << 20, "torch.compile: memory of the plans that are kept of a graph of any size, one for each set of "
        "sizes; the least recent ones are dropped, and made anew when their sizes return", kind=int, least=0,
        unit="bytes",
    )

    def __new__(cls, *_: object, **named: object) -> Options:
        """Check the names before ``__init__`` does, which would only say which one is unknown."""
        _check_options_are_known(named)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        for option in fields(self):
            given = getattr(self, option.name)
            if option.name == "target":
                given = os.environ.get(TARGET_VARIABLE) or given
            value = stages_of(given) if option.name == "stages" else checked(option.name, given, option.metadata)
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
        _check_options_are_known(mapping)
        return cls(**mapping)  # type: ignore[arg-type]

    @classmethod
    def describe(cls) -> str:
        """Return a listing of every option: name, default, expectation, PopTorch name and what it does."""
        lines = []
        for option in fields(cls):
            facts = [f"{option.name} = {option.default!r}", f"expects {expectation(option.metadata)}"]
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


@contextmanager
def emulating(target: str | None) -> Iterator[None]:
    """Let all options that are made meanwhile, here and in processes started from here, have one machine.

    Args:
        target: As `Options.target`; None for whatever the options say.

    Raises:
        OptionsError: There is no such machine.
    """
    if target is None:
        yield
        return
    before = os.environ.get(TARGET_VARIABLE)
    os.environ[TARGET_VARIABLE] = lookup_target(target).name
    try:
        yield
    finally:
        if before is None:
            del os.environ[TARGET_VARIABLE]
        else:
            os.environ[TARGET_VARIABLE] = before


MIN_IO_TILES, MAX_IO_TILES = 32, 192  # PopTorch's bounds


def _check_options_are_known(named: Mapping[str, object]) -> None:
    known = [option.name for option in fields(Options)]
    for name, value in named.items():
        if name not in known:
            raise OptionsError(
                f"unknown option {name!r}{nearest(str(name), known)}", option=str(name), value=value,
                allowed=", ".join(known),
            )


def _check_io_tiles(options: Options) -> None:
    """Refuse a number of IO tiles that machines do not take, and overlaps without them."""
    count = options.io_tiles
    if count and not (MIN_IO_TILES <= count <= MAX_IO_TILES and count % 2 == 0):
        raise OptionsError(
            f"io_tiles={count} is no even number from {MIN_IO_TILES} to {MAX_IO_TILES}", option="io_tiles", value=count,
            allowed=f"0, or an even number from {MIN_IO_TILES} to {MAX_IO_TILES}",
        )
    num_tiles = lookup_target(options.target).num_tiles
    if count >= num_tiles:
        raise OptionsError(
            f"io_tiles={count} leaves none of the {num_tiles} tiles of {options.target} to compute", option="io_tiles",
            value=count, allowed=f"less than {num_tiles}", remedy="lower io_tiles, or replace num_tiles by more",
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


def given_or_default(options: Options | None) -> Options:
    """Return options, or those that hold where none are given.

    Raises:
        OptionsError: They are something else, such as a dict.
    """
    if options is None:
        return Options()
    if not isinstance(options, Options):
        raise OptionsError(
            f"options must be torchipu.Options, got {type(options).__name__}", option="options", value=options,
            remedy="give torchipu.Options(...); a dict of names and values becomes some by "
            "torchipu.Options.from_mapping",
        )
    return options


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
