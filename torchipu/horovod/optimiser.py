"""Optimisers whose gradients are those of all processes, and states that all take from one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from torchipu.horovod.exchange import Average, Compression, broadcast_, broadcast_object, grouped_allreduce_
from torchipu.horovod.processes import place, rank


def broadcast_parameters(params: Mapping[str, Any] | Iterable[tuple[str, Any]], root_rank: int) -> None:
    """Give all processes the parameters of one.

    Args:
        params: A ``state_dict()`` or ``named_parameters()``.
        root_rank: Whose.

    Raises:
        ValueError: It is neither.
    """
    if isinstance(params, Mapping):
        named = list(params.items())
    elif isinstance(params, Iterable):
        named = [entry if isinstance(entry, tuple) else (str(number), entry) for number, entry in enumerate(params)]
    else:
        raise ValueError(f"invalid params of type: {type(params)}")
    for _, value in named:
        if isinstance(value, torch.Tensor):
            broadcast_(value.detach(), root_rank)


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int) -> None:
    """Give all processes the states and values of one process's optimiser.

    Args:
        optimizer: Of the same kind and parameters in each.
        root_rank: Whose.
    """
    state = broadcast_object(optimizer.state_dict() if rank() == root_rank else None, root_rank)
    if rank() != root_rank:
        optimizer.load_state_dict(state)


class _Distributed:
    """What `DistributedOptimizer` adds to the class of an optimiser."""

    _how: dict[str, Any]
    param_groups: list[dict[str, Any]]

    def synchronize(self) -> None:
        """Combine the gradients of all processes, in place.

        A parameter without a gradient counts as zero in this process, if another one has a gradient of it.
        """
        if place().group is not None:
            parameters = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
            has = torch.tensor([p.grad is not None for p in parameters], dtype=torch.int32)
            grouped_allreduce_([has], op=1)
            chosen = [p for p, count in zip(parameters, has.tolist(), strict=True) if count]
            for parameter in chosen:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                elif parameter.grad.is_sparse:
                    parameter.grad = parameter.grad.to_dense()
            if chosen:
                grouped_allreduce_([p.grad for p in chosen], **self._how)

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Let `step` take gradients that `synchronize` has combined already, and maybe clipped since."""
        self._skips = True
        try:
            yield
        finally:
            self._skips = False

    def step(self, closure: Any = None) -> Any:
        """Combine gradients and update the parameters.

        Args:
            closure: Computes the gradients and returns the loss; called once.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if not getattr(self, "_skips", False):
            self.synchronize()
        super().step()  # type: ignore[misc]
        return loss


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: torch.optim.Optimizer, named_parameters: Any = None, compression: Any = Compression.none,
    backward_passes_per_step: int = 1, op: int = Average, gradient_predivide_factor: float = 1.0,
    num_groups: int = 0, groups: Any = None, sparse_as_dense: bool = False,
) -> Any:
    """Return an optimiser like another one, which first combines the gradients of all processes in its ``step``.

    Args:
        optimizer: The other one; its states and parameters are shared.
        named_parameters: Taken and not needed.
        compression: How gradients travel.
        backward_passes_per_step: Taken and not needed: what has been summed up by the time of a step is combined.
        op: Average or Sum.
        gradient_predivide_factor: By how much gradients are divided before they are summed, and multiplied after.
        num_groups: Taken and not needed: all gradients go together.
        groups: The same.
        sparse_as_dense: Whether gradients may be sparse, which are exchanged as dense ones.
    """
    kind = type(f"Distributed{type(optimizer).__name__}", (_Distributed, type(optimizer)), {})
    twin: Any = object.__new__(kind)
    twin.__dict__.update(optimizer.__dict__)
    twin._how = {
        "op": op, "compression": compression, "prescale_factor": 1 / gradient_predivide_factor,
        "postscale_factor": gradient_predivide_factor,
    }
    return twin
