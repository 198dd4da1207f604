"""From the values of an `IPUConfig` to ``poptorch.Options``."""

from __future__ import annotations

import torch

from torchipu import poptorch
from torchipu.transformers.settings import Settings
from torchipu.transformers.speech import logger

OUTPUT_MODES = {
    "all": poptorch.OutputMode.All, "final": poptorch.OutputMode.Final, "sum": poptorch.OutputMode.Sum,
    "default": poptorch.OutputMode.Default,
}


def options_of(config: Settings, *, for_inference: bool, compile_only: bool = False) -> poptorch.Options:
    """Return the options of a training or an inference model.

    Args:
        config: What they say.
        for_inference: Which of the two.
        compile_only: Compile for a machine that is not there.
    """
    options = poptorch.Options()
    options.autoRoundNumIPUs(True)
    replicas = config.inference_replication_factor if for_inference else config.replication_factor
    options.replicationFactor(replicas)
    options.deviceIterations(config.inference_device_iterations if for_inference else config.device_iterations)
    if for_inference:
        options.outputMode(poptorch.OutputMode.All)
    else:
        options.outputMode(OUTPUT_MODES[config.output_mode])
        options.Training.gradientAccumulation(config.gradient_accumulation_steps)
        options.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Mean)
        options.Training.setAutomaticLossScaling(config.auto_loss_scaling)
        _place_states(options, config)
    is_sharded = for_inference and config.sharded_execution_for_inference
    options.setExecutionStrategy(
        poptorch.ShardedExecution() if is_sharded else poptorch.PipelinedExecution(poptorch.AutoStage.SameAsIpu)
    )
    if config.seed is not None:
        options.randomSeed(config.seed)
    options.Precision.enableStochasticRounding(not for_inference)
    options.Precision.setPartialsType(torch.float16 if config.enable_half_partials else torch.float32)
    options.setAvailableMemoryProportion(_proportions(config, for_inference=for_inference))
    if config.executable_cache_dir:
        options.enableExecutableCaching(config.executable_cache_dir)
    if config.profile_dir:
        options.enableProfiling(config.profile_dir)
    if config.synthetic_data:
        options.enableSyntheticData(True)
    if compile_only:
        options.useOfflineIpuTarget()
    return options


def _place_states(options: poptorch.Options, config: Settings) -> None:
    """Say where the states of the optimiser are."""
    is_sharded = config.replicated_tensor_sharding
    if is_sharded and config.replication_factor == 1:
        logger.info("replicated_tensor_sharding is of no use with a replication_factor of 1, and left out")
        is_sharded = False
    location = poptorch.TensorLocationSettings().useOnChipStorage(not config.optimizer_state_offchip)
    options.TensorLocations.setOptimizerLocation(location.useReplicatedTensorSharding(is_sharded))


def _proportions(config: Settings, *, for_inference: bool) -> dict[str, float]:
    """Return the part of the tile memory for temporary values, by IPU."""
    chosen = config.inference_matmul_proportion if for_inference else None
    given = config.matmul_proportion if chosen is None else chosen
    num_ipus = config.num_ipus(for_inference=for_inference)
    if isinstance(given, (int, float)):
        return {f"IPU{ipu}": float(given) for ipu in range(num_ipus)}
    if len(given) != num_ipus:
        # That of inference may have fewer IPUs than the numbers of training are for.
        logger.info("matmul_proportion names %d IPUs and a replica has %d: the last holds on", len(given), num_ipus)
    return {f"IPU{ipu}": float(given[min(ipu, len(given) - 1)]) for ipu in range(num_ipus)}
