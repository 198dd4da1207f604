"""Options passed on to the graph compiler by name: which names there are, what values they take, and the log of them.

All names are accepted and kept. Those that the emulator acts on are read in `executor.translation`; the others change
how PopART compiles and not what a model computes. A warning tells of a name that PopART is not known to have: it
refuses one, but the list here is no copy of its own.
"""

from __future__ import annotations

import logging
import numbers
from collections.abc import Mapping
from typing import Any

from torchipu.errors import nearest
from torchipu.poptorch._logging import logger
from torchipu.poptorch.options.options import Options
from torchipu.poptorch.poptorch_core import createPoptorchError

_SESSION_OPTIONS = """
    accumulateOuterFragmentSettings accumulationAndReplicationReductionType accumulationFactor
    accumulatorTensorLocationSettings activationTensorLocationSettings aliasZeroCopy autodiffSettings
    automaticLossScalingSettings autoRecomputation batchSerializationFactor batchSerializationSettings
    bufferingDepthMap cachePath compilationProgressTotal compileEngine constantWeights convolutionOptions
    createImplicitPipeliningFwdOnlyProgram customCodeletCompileFlags customCodelets decomposeGradSum
    defaultBufferingDepth defaultPrefetchBufferingDepth delayVarUpdates disableGradAccumulationTensorStreams
    disableOptimizerStateTensorStreams dotChecks dotOpNames enableConstantFoldingOfMultipleConsumers
    enableDistributedReplicatedGraphs enableEngineCaching enableExplicitIR enableExplicitMainLoops
    enableFloatingPointChecks enableFullyConnectedPass enableGradientAccumulation enableInplaceAmbiguityChecking
    enableLoadAndOffloadRNGState enableMergeExchange enableNonStableSoftmax enableOutlining
    enableOutliningCopyCostPruning enablePipelining enablePrefetchDatastreams enableReplicatedGraphs
    enableStableNorm enableStochasticRounding enableSupportedDataTypeCasting enableVariablesCaching engineOptions
    ensureFp32LossScaleTensor executionPhaseSettings experimentalSettings explicitRecomputation
    exportPoplarComputationGraph exportPoplarVertexGraph finalDotOp firstDotOp gclOptions globalReplicaOffset
    globalReplicationFactor groupHostSync groupNormStridedChannelGrouping hardwareInstrumentations
    instrumentWithHardwareCycleCounter kahnTieBreaker logDir looseThresholdAtPeak lstmOptions matmulOptions
    meanAccumulationAndReplicationReductionStrategy mergeVarUpdate mergeVarUpdateMemThreshold numIOTiles
    optimizerStateTensorLocationSettings opxAliasChecking opxModifyChecking outlineSequenceBreakCost
    outlineThreshold partialsTypeMatMuls patterns patterns_level prefetchBufferingDepthMap rearrangeAnchorsOnHost
    rearrangeStreamsOnHost replicatedCollectivesSettings replicatedGraphCount reportOptions rnnOptions
    saveInitializersToFile scheduleNonWeightUpdateGradientConsumersEarly separateCallOpPdfs
    serializedPoprithmsShiftGraphsDir strictOpVersions subgraphCopyingStrategy swapLimitScheduler syntheticDataMode
    tensorLocationSettingsOverride throwIfLog2ScaleTensorNotInRange timeLimitScheduler
    transitiveClosureOptimizationThreshold updatableNamedBuffers useHostCopyOps useLoopCandidateCreator
    virtualGraphMode weightTensorLocationSettings
"""
_OF_EARLIER_RELEASES = """
    enableRngStateManagement enableVirtualGraphs hostAllReduce hostAllReduceRemoteBuffer hostWeightUpdate ignoreData
    minimumVirtualGraphCount pingPongPhases
"""
OF_OURS = ("enableNanoo", "torchipu.host_times", "torchipu.statistics", "torchipu.target")
"""Names that PopART lacks: what becomes of an overflow of halves, and what this package can do besides."""
NAMES = frozenset((*_SESSION_OPTIONS.split(), *_OF_EARLIER_RELEASES.split(), *OF_OURS))
"""PopART's session options and ours; of settings with members, such as ``autodiffSettings``, without these."""
_GROUP = "Settings"
"""How names end that have members behind a dot."""

_NO_CODELETS = (
    "codelets in C++ (vertex sources, or .gp files of popc) are out of scope. Give the ops that use it in torch, by "
    "poptorch.registerCustomOp"
)
_SWITCHES = ("enable", "disable")
"""How names of options begin that are True or False."""
_WARNED: set[str] = set()


def check_popart(options: Options) -> None:
    """Refuse values that the graph compiler could not be given, and warn once of each unknown name and of codelets.

    Args:
        options: The executor's.

    Raises:
        Error: A value is neither bool, number or text, nor a list, set or dict of these, or what switches something on
            or off has another one than a bool.
    """
    for name, value in options._popart.options.items():
        if not _is_known(name) and name not in _WARNED:
            _WARNED.add(name)
            logger.warning(_unknown(name))
        if not _is_passable(value):
            raise createPoptorchError(
                f"Unsupported value of type {type(value).__name__} for the option {name} of _Popart: it takes a bool, "
                "an int, a float or a str, a list or set of these, or a dict of them by str"
            )
        if name.startswith(_SWITCHES) and name in NAMES and not isinstance(value, (bool, numbers.Integral)):
            raise createPoptorchError(
                f"Wrong value {value!r} of type {type(value).__name__} for the option {name} of _Popart: it takes a "
                "bool"
            )
        if name == "customCodelets" and value and name not in _WARNED:
            _WARNED.add(name)
            logger.warning("customCodelets of _Popart: %s is not loaded, since %s", value, _NO_CODELETS)


def _is_known(name: str) -> bool:
    group, dot, member = name.partition(".")
    if name in NAMES:
        return True
    return bool(dot and member) and group in NAMES and group.endswith(_GROUP)


def _unknown(name: str) -> str:
    """Return what is said of a name that PopART is not known to have."""
    if "codelet" in name.lower():
        return f"Unknown option {name} of _Popart: {_NO_CODELETS}"
    group, dot, _ = name.partition(".")
    if dot and group in NAMES and not group.endswith(_GROUP):
        return f"Unknown option {name} of _Popart: {group} has no members, so that nothing changes. Set {group} itself"
    return f"Unknown option {name} of _Popart: it is kept, and changes nothing{nearest(name, NAMES)}"


def _is_passable(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_passable(member) for key, member in value.items())
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(_is_passable(member) for member in value)
    return isinstance(value, (str, numbers.Real))


def log_options(options: Options) -> None:
    """Write every option to the debug log as ``set NAME to value VALUE``, as the native layer of PopTorch does.

    Args:
        options: The executor's.
    """
    if not logger.isEnabledFor(logging.DEBUG):
        return
    for name, value in options.toDict().items():
        members = value.items() if isinstance(value, Mapping) and value else [(None, value)]
        for member, content in members:
            shown = str(content).lower() if isinstance(content, bool) else content
            logger.debug("set %s to value %s", name if member is None else f"{name}[{member}]", shown)
