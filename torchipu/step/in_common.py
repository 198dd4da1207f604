"""What the processes of a training step tell each other of themselves, as text that is the same where they agree."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch

from torchipu.options import Options

OWN_AFFAIRS = ("process_group", "pipeline_group", "host_threads", "host_times", "dump", "verify")
"""Options that each process may have for itself."""


def described(leaves: Sequence[Any]) -> str:
    """Return the types and shapes of inputs, and the values of those that are no tensors."""
    return ", ".join(
        f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}" if isinstance(leaf, torch.Tensor) else repr(leaf)
        for leaf in leaves
    )


def options_in_common(options: Options) -> str:
    """Return the options that are not the defaults, less those that each process may have for itself."""
    changed = {name: value for name, value in options.changed().items() if name not in OWN_AFFAIRS}
    return ", ".join(f"{name}={value!r}" for name, value in changed.items()) or "all default"


def without_sources(text: str) -> str:
    """Return the text of a graph without the lines of the user's program, whose files may lie elsewhere."""
    return re.sub(r"  # .*$", "", text, flags=re.MULTILINE)


def described_optimiser(optimizer: torch.optim.Optimizer) -> str:
    """Return the kind of an optimiser and its hyper-parameters, group by group."""
    groups = [
        ", ".join(f"{name}={_plain(value)}" for name, value in group.items() if name != "params")
        for group in optimizer.param_groups
    ]
    return f"{type(optimizer).__name__}({'; '.join(groups)})"


def _plain(value: Any) -> str:
    return repr(value.item()) if isinstance(value, torch.Tensor) and value.numel() == 1 else repr(value)
