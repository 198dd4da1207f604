"""PopTorch's operators by the module in which programs look for them."""

from __future__ import annotations

from torchipu.poptorch.operators.beam_search import ctc_beam_search_decoder
from torchipu.poptorch.operators.blocks import BeginBlock, Block, BlockFunction, removeBlocks
from torchipu.poptorch.operators.control import cond, for_loop
from torchipu.poptorch.operators.cpu import CPU
from torchipu.poptorch.operators.custom_ops import custom_op
from torchipu.poptorch.operators.dynamic_slices import dynamic_slice, dynamic_update
from torchipu.poptorch.operators.hints import (
    Attribute,
    NameScope,
    getIpuTensorId,
    ipu_print_tensor,
    nop,
    recomputationCheckpoint,
    set_available_memory,
)
from torchipu.poptorch.operators.loss import identity_loss
from torchipu.poptorch.operators.multi_conv import MultiConv
from torchipu.poptorch.operators.overlap import set_overlap_for_input, set_overlap_for_output
from torchipu.poptorch.operators.points import fps, nearest
from torchipu.poptorch.operators.serialised_matmul import serializedMatMul

__all__ = [
    "CPU",
    "Attribute",
    "BeginBlock",
    "Block",
    "BlockFunction",
    "MultiConv",
    "NameScope",
    "cond",
    "ctc_beam_search_decoder",
    "custom_op",
    "dynamic_slice",
    "dynamic_update",
    "for_loop",
    "fps",
    "getIpuTensorId",
    "identity_loss",
    "ipu_print_tensor",
    "nearest",
    "nop",
    "recomputationCheckpoint",
    "removeBlocks",
    "serializedMatMul",
    "set_available_memory",
    "set_overlap_for_input",
    "set_overlap_for_output",
]
