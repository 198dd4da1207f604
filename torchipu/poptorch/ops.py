"""PopTorch's operators by the module in which programs look for them."""

from __future__ import annotations

from torchipu.poptorch.beam_search import ctc_beam_search_decoder
from torchipu.poptorch.blocks import BeginBlock, Block, BlockFunction, removeBlocks
from torchipu.poptorch.control import cond, for_loop
from torchipu.poptorch.cpu import CPU
from torchipu.poptorch.custom_ops import custom_op
from torchipu.poptorch.dynamic_slices import dynamic_slice, dynamic_update
from torchipu.poptorch.hints import (
    Attribute,
    NameScope,
    getIpuTensorId,
    ipu_print_tensor,
    nop,
    recomputationCheckpoint,
    set_available_memory,
)
from torchipu.poptorch.loss import identity_loss
from torchipu.poptorch.multi_conv import MultiConv
from torchipu.poptorch.overlap import set_overlap_for_input, set_overlap_for_output
from torchipu.poptorch.points import fps, nearest
from torchipu.poptorch.serialised_matmul import serializedMatMul

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
