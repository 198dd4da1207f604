"""A model of which each of two processes has half; run by ``tests.parts.over_processes``."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn

import torchipu
from tests.parts.cases import SIZE, Stack, digest, samples


def step_of(model: nn.Module, **more: Any) -> torchipu.TrainStep:
    options = torchipu.Options(host_threads=1, execution="sharded", gradient_accumulation=4, **more)
    return torchipu.TrainStep(model, torch.optim.AdamW(model.parameters(), lr=0.01), options)


def half_a_model(rank: int) -> Stack:
    """Build a model with memory for the blocks of one process alone."""
    with torch.device("meta"):
        model = Stack()
    own = [*model.blocks[2 * rank : 2 * rank + 2], *([model.head] if rank else [])]
    for module in own:
        module.to_empty(device="cpu")
    return model


def states(step: torchipu.TrainStep) -> dict[str, str]:
    return {name: digest(value) for name, value in step.gather().items()}


def share(rank: int) -> dict[str, Any]:
    """Go on from the checkpoint ``of_one`` in this folder as one of two processes, and save ``of_two``."""
    inputs = samples(32)
    model = half_a_model(rank)
    step = step_of(model, pipeline_group=dist.group.WORLD)
    step.compile(*inputs)
    dcp.load(step.part_state(), checkpoint_id="of_one")
    losses = [step(*inputs)[-1].item() for _ in range(2)]
    dcp.save(step.part_state(), checkpoint_id="of_two")
    found = {
        "losses": losses, "states": states(step), "names": sorted(step.part_state()),
        "bare": sorted(name for name, value in model.named_parameters() if value.is_meta),
        "bare_states": sum(v.is_meta for entry in step.optimizer.state.values() for v in entry.values()),
        "state_bytes": step._bound.state.numel(), "width": SIZE,
    }
    onto = step.gather(onto=1)
    found["gathered_onto_1"] = len(onto)
    # Where everything has memory, gathering fills in the user's own tensors.
    torch.manual_seed(1)
    whole = Stack()
    step = step_of(whole, pipeline_group=dist.group.WORLD)
    step(*inputs)
    step.gather()
    found["whole"] = {name: digest(value) for name, value in whole.state_dict().items()}
    return found
