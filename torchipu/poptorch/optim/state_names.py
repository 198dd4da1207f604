"""PopART's names of the states of optimisers, and those that are there whether an update reads them or not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

OF_SGD = {"momentum_buffer": "Accl1"}
OF_ADAM = {"exp_avg": "Accl1", "exp_avg_sq": "Accl2", "step": "Step"}
OF_RMSPROP = {"grad_avg": "Accl1", "square_avg": "Accl2", "momentum_buffer": "Accl3", "step": "Step"}
"""Of RMSprop the first moment is the mean gradient, which is there even if it is not taken off; it is zero then."""


def names_of(optimizer: object) -> Mapping[str, str]:
    """Return PopART's names of an optimiser's states by torch's; LAMB has those of Adam.

    Args:
        optimizer: Of torch.optim or of this package.
    """
    if isinstance(optimizer, torch.optim.SGD):
        return OF_SGD
    return OF_RMSPROP if isinstance(optimizer, torch.optim.RMSprop) else OF_ADAM


def is_read(name: str, group: Mapping[str, Any]) -> bool:
    """Whether an update with the numbers of a group reads a state.

    Args:
        name: Torch's.
        group: Of the optimiser.
    """
    switches = {"momentum_buffer": "momentum", "grad_avg": "centered"}
    return name not in switches or bool(group.get(switches[name]))


def moments(
    optimizer: Any, names: Mapping[torch.Tensor, str],
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the states of an optimiser by PopART's names.

    Args:
        optimizer: Of this package.
        names: Name of each parameter.
    """
    known = names_of(optimizer)
    for parameter, state in optimizer.state.items():
        name = names.get(parameter)
        if name is None:
            continue
        for key, value in state.items():
            if isinstance(value, torch.Tensor):
                yield f"{known.get(key, key)}___{name}", value.detach().clone()
        if known is OF_RMSPROP and state and "grad_avg" not in state:
            yield f"Accl1___{name}", torch.zeros_like(parameter)


def expected(optimizer: Any, names: Mapping[torch.Tensor, str]) -> Iterator[str]:
    """Yield PopART's names of all states that the updates of an optimiser read.

    Args:
        optimizer: Of this package.
        names: Name of each parameter.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter in names and parameter.requires_grad:
                for key, known in names_of(optimizer).items():
                    if is_read(key, group):
                        yield f"{known}___{names[parameter]}"
