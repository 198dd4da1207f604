"""Options passed on to the graph compiler by name: which names there are, what values they take, and the log of them.

All names are accepted and kept. Those that the emulator acts on are read in `executor.translation`; the others change
how PopART compiles and not what a model computes.
"""

from __future__ import annotations

import logging
import numbers
from collections.abc import Mapping
from typing import Any

from torchipu.poptorch._logging import logger
from torchipu.poptorch.options.options import Options
from torchipu.poptorch.poptorch_core import createPoptorchError

_SESSION_OPTIONS = """
    accumulateOuterFragmentSettings accumulationAndReplicationReductionType accumulationFactor aliasZeroCopy
    autoRecomputation autodiffSettings automaticLossScalingSettings batchSerializationFactor batchSerializationSettings
    cachePath compileEngine constantWeights convolutionOptions createImplicitPipeliningFwdOnlyProgram customCodelets
    customCodeletCompileFlags decomposeGradSum defaultBufferingDepth defaultPrefetchBufferingDepth delayVarUpdates
    disableGradAccumulationTensorStreams disableOptimizerStateTensorStreams dotChecks dotOpNames
    enableDistributedReplicatedGraphs enableEngineCaching enableExplicitIR enableExplicitMainLoops
    enableFloatingPointChecks enableFullyConnectedPass enableGradientAccumulation enableInplaceAmbiguityChecking
    enableLoadAndOffloadRNGState enableMergeExchange enableNonStableSoftmax enableOutlining
    enableOutliningCopyCostPruning enablePipelining enablePrefetchDatastreams enableReplicatedGraphs enableStableNorm
    enableStochasticRounding enableSupportedDataTypeCasting enableVariablesCaching engineOptions executionPhaseSettings
    explicitRecomputation exportPoplarComputationGraph exportPoplarVertexGraph finalDotOp firstDotOp gclOptions
    globalReplicaOffset globalReplicationFactor groupHostSync groupNormStridedChannelGrouping hardwareInstrumentations
    instrumentWithHardwareCycleCounter kahnTieBreaker logDir looseThresholdAtPeak lstmOptions matmulOptions
    mergeVarUpdate mergeVarUpdateMemThreshold numIOTiles opxAliasChecking opxModifyChecking outlineSequenceBreakCost
    outlineThreshold partialsTypeMatMuls patterns patterns_level prefetchBufferingDepthMap rearrangeAnchorsOnHost
    rearrangeStreamsOnHost replicatedCollectivesSettings replicatedGraphCount reportOptions rnnOptions
    saveInitializersToFile scheduleNonWeightUpdateGradientConsumersEarly separateCallOpPdfs
    serializedPoprithmsShiftGraphsDir strictOpVersions subgraphCopyingStrategy swapLimitScheduler syntheticDataMode
    tensorLocationSettingsOverride throwIfLog2ScaleTensorNotInRange timeLimitScheduler
    transitiveClosureOptimizationThreshold updatableNamedBuffers useHostCopyOps useLoopCandidateCreator virtualGraphMode
"""
OF_OURS = ("enableNanoo", "torchipu")
"""Names that PopART lacks: what becomes of an overflow of halves, and what this package can do besides."""
NAMES = frozenset((*_SESSION_OPTIONS.split(), *OF_OURS))
"""PopART's session options and ours; of a name with dots, the part before the first."""

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
            logger.warning(
                "customCodelets of _Popart: %s is not loaded, since codelets in C++ (vertex sources, or .gp files of "
                "popc) are out of scope. Give the ops that use it in torch, by poptorch.registerCustomOp", value,
            )
        if name.partition(".")[0] not in NAMES and name not in _WARNED:
            _WARNED.add(name)
            logger.warning("Unknown option %s of _Popart: it is kept, and changes nothing", name)


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
