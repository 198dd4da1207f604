"""What is refused of options, optimisers, batches and numbers of IPUs, in PopTorch's words."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchipu.poptorch._logging import logger
from torchipu.poptorch.arguments.parser import Arguments
from torchipu.poptorch.enums import MeanReductionStrategy
from torchipu.poptorch.executor.machine import is_ipu_model, target_of
from torchipu.poptorch.options import Options
from torchipu.poptorch.options.strategies import PipelinedExecution
from torchipu.poptorch.poptorch_core import createPoptorchError

MAX_IPUS = 64
"""What a process of PopTorch may have; a larger system may be emulated by a single one."""


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
    most = max(MAX_IPUS, target_of(options).num_ipus)
    if needed > most:
        raise createPoptorchError(
            f"Too many IPUs requested ({needed}). Experiments that need more than {most} IPUs require distributed "
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


def check_trainable(model: torch.nn.Module) -> None:
    """Refuse weights of which torch takes no gradients.

    Args:
        model: Is to be trained.

    Raises:
        Error: A weight was made in inference mode.
    """
    for name, parameter in model.named_parameters():
        if parameter.is_inference():
            raise createPoptorchError(
                f"Parameter {name} was made in torch.inference_mode(), where tensors have no gradients: make the model "
                "outside of it, or load its state_dict() into one made there"
            )


def check_inference(options: Options) -> None:
    """Refuse options that only training can have.

    Raises:
        Error: Gradients are to be accumulated.
    """
    if options.Training.gradient_accumulation == 1:
        return
    message = (
        "You must set poptorch.Options().Training.gradientAccumulation to 1 or leave it as its default value (1) when "
        "running a poptorch.inferenceModel()."
    )
    if isinstance(options._execution_strategy, PipelinedExecution):
        message += (
            " Use poptorch.Options().deviceIterations to process a sufficient number of batches each run for pipelined "
            "execution instead."
        )
    raise createPoptorchError(message)


def adapt_options(options: Options, optimizer: torch.optim.Optimizer) -> None:
    """Choose when the mean is taken, as PopTorch does: so that half accumulators cannot overflow; after the sum in SGD
    whose accumulator is its velocity, which knows no other.
    """
    training = options.Training
    if _has_half_accumulators(optimizer):
        training.setMeanAccumulationAndReplicationReductionStrategy(MeanReductionStrategy.Running)
    elif getattr(optimizer, "use_combined_accum", False) and (
        training.meanAccumulationAndReplicationReductionStrategy == MeanReductionStrategy.Running
    ):
        logger.info("MeanReductionStrategy.Post is used: use_combined_accum has no other")
        training.setMeanAccumulationAndReplicationReductionStrategy(MeanReductionStrategy.Post)


def adapt_frozen(options: Options, optimizer: torch.optim.Optimizer) -> None:
    """Choose the mean anew for an optimiser that is set before there is a program.

    Args:
        options: The executor's own, frozen.
        optimizer: The one to be used from now on.
    """
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
        if size % pieces != 0:
            raise AssertionError(
                f"Invalid batch dimension: In the input {name}, the batch dimension ({size}) must be a multiple of "
                f"poptorch.Options.deviceIterations ({options.device_iterations}) * "
                f"(poptorch.Options.replicationFactor ({options.replication_factor}) / input group size "
                f"({options.input_group_size})) * poptorch.Options.Training.gradientAccumulation ({accumulation}) = "
                f"{pieces} because it is used to calculate the batch size which will be executed on the device in any "
                "given iteration. For a full explanation see the batching semantics page of the documentation."
            )


def check_buffer_names(options: Options, module: torch.nn.Module) -> None:
    """Refuse names of buffers that a model does not have.

    Args:
        options: The executor's.
        module: Owner of the buffers.

    Raises:
        Error: `Options.updatableNamedBuffers` has such a name.
    """
    known = [name for name, _ in module.named_buffers()]
    unknown = [n for n in options._popart.options.get("updatableNamedBuffers", ()) if n not in known]
    if unknown:
        raise createPoptorchError(
            f"poptorch.Options().updatableNamedBuffers names {', '.join(unknown)}, which the model does not have. "
            f"Its buffers: {', '.join(known) or 'none'}"
        )
