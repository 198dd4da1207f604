"""Optimisers whose gradients are those of all processes, and states that all take from one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from torchipu.horovod.agreement import KINDS
from torchipu.horovod.collectives import reduce_tensors
from torchipu.horovod.compression import Compression
from torchipu.horovod.exchange import broadcast_, broadcast_object, grouped_allreduce, sparse_allreduce_async
from torchipu.horovod.process_sets import check_is_process_set, global_process_set, members
from torchipu.horovod.processes import rank
from torchipu.horovod.reductions import Adasum, Average, Max, Reduction, Sum


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


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: torch.nn.Module | None = None
) -> None:
    """Give all processes the states and values of one process's optimiser.

    Args:
        optimizer: Of the same kind and parameters in each.
        root_rank: Whose.
        model: Taken and not needed: states that are not there yet come from that process.
    """
    state = broadcast_object(optimizer.state_dict() if rank() == root_rank else None, root_rank)
    if rank() != root_rank:
        optimizer.load_state_dict(state)


class _Distributed:
    """What `DistributedOptimizer` adds to the class of an optimiser."""

    _how: dict[str, Any]
    _compression: Any
    _sparse_as_dense: bool
    backward_passes_per_step: int
    param_groups: list[dict[str, Any]]

    def synchronize(self) -> None:
        """Combine the gradients of all processes of the set, in place; in a process that is not in it, do nothing.

        A parameter without a gradient counts as zero in this process, if another one has a gradient of it. A gradient
        that is sparse in one process is sparse in all. Adasum combines what `step` changes: nothing here.
        """
        process_set = self._how["process_set"]
        if self._how["op"] == Adasum:
            return
        if not process_set.included() or (where := members(process_set)).group is None:
            return
        parameters = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
        # What the gradients are in any process: none, dense, or sparse in so many dimensions.
        kinds = torch.tensor([_kind_of(p.grad) for p in parameters], dtype=torch.int8)
        reduce_tensors(KINDS, [kinds], Reduction(Max), where)
        dense = []
        for parameter, kind in zip(parameters, kinds.tolist(), strict=True):
            if kind > 1:
                parameter.grad = self._sparse_sum(parameter, kind - 1)
            elif kind:
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                dense.append(parameter.grad)
        if dense:
            combined = grouped_allreduce(dense, compression=self._compression, **self._how)
            for gradient, result in zip(dense, combined, strict=True):
                gradient.copy_(result)

    def _sparse_sum(self, parameter: torch.Tensor, num_sparse: int) -> torch.Tensor:
        own = parameter.grad
        if own is None or own.layout == torch.strided:
            own = (torch.zeros_like(parameter) if own is None else own).to_sparse(num_sparse)
        if self._sparse_as_dense:
            combined = grouped_allreduce([own.to_dense()], compression=self._compression, **self._how)
            return combined[0].to_sparse(num_sparse)
        return sparse_allreduce_async(own, op=self._how["op"], process_set=self._how["process_set"])()

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Say how many gradients are summed up in a step, as `DistributedOptimizer` does.

        Args:
            passes: How many.

        Raises:
            ValueError: It is no positive number.
        """
        self.backward_passes_per_step = _checked_passes(passes)

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy has to have, which besides torch's is how gradients are combined."""
        kept = ("_how", "_compression", "_sparse_as_dense", "backward_passes_per_step")
        state: dict[str, Any] = super().__getstate__()  # type: ignore[assignment]
        return {**state, **{name: getattr(self, name) for name in kept}}

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle by the class of the optimiser that it is like."""
        return _empty_twin, (type(self).__bases__[1],), self.__getstate__()

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Let `step` take gradients that `synchronize` has combined already, and maybe clipped since.

        Raises:
            AssertionError: It is Adasum's.
        """
        if self._how["op"] == Adasum:
            raise AssertionError("Skipping synchronization is not supported when using Adasum optimizer.")
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
        if self._how["op"] == Adasum and members(self._how["process_set"]).group is not None:
            self._step_by_adasum()
        else:
            super().step()  # type: ignore[misc]
        return loss

    @torch.no_grad()
    def _step_by_adasum(self) -> None:
        """Update the parameters by what the updates of all processes, each by its own gradients, are together."""
        parameters = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
        before = [parameter.detach().clone() for parameter in parameters]
        super().step()  # type: ignore[misc]
        changes = [parameter - old for parameter, old in zip(parameters, before, strict=True)]
        together = grouped_allreduce(changes, compression=self._compression, **self._how)
        for parameter, old, change in zip(parameters, before, together, strict=True):
            parameter.copy_(old + change)


def _kind_of(gradient: torch.Tensor | None) -> int:
    return 0 if gradient is None else 1 if gradient.layout == torch.strided else 1 + gradient.sparse_dim()


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: torch.optim.Optimizer, named_parameters: Any = None, compression: Any = Compression.none,
    backward_passes_per_step: int = 1, op: int = Average, gradient_predivide_factor: float = 1.0,
    num_groups: int = 0, groups: Any = None, sparse_as_dense: bool = False, process_set: Any = global_process_set,
) -> Any:
    """Return an optimiser like another one, which first combines the gradients of all processes in its ``step``.

    Args:
        optimizer: The other one; its states and parameters are shared.
        named_parameters: Pairs of names and parameters, such as ``model.named_parameters()``; they are checked, and
            not needed.
        compression: How gradients travel, as in `allreduce`.
        backward_passes_per_step: How many gradients are summed up in a step: not needed, since what has been summed up
            by the time of a step is combined.
        op: Average, Sum or Adasum. By the last each process takes a step of its own, and what these change is combined.
        gradient_predivide_factor: By how much gradients are divided before they are summed, and multiplied after.
        num_groups: Taken and not needed: all gradients go together.
        groups: The same.
        sparse_as_dense: Whether sparse gradients are exchanged as dense ones; they come back sparse.
        process_set: The processes whose gradients are combined; others go on by themselves.

    Raises:
        TypeError: It is no optimiser.
        ValueError: It is distributed already, ``op`` or ``process_set`` is another one, a name is missing or comes
            twice, ``backward_passes_per_step`` is no positive number, or ``gradient_predivide_factor`` is given with
            another ``op`` than Average.
        NotImplementedError: Adasum in a set of processes that is not the global one.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"DistributedOptimizer takes an optimiser of torch.optim, got a {type(optimizer).__name__}")
    if isinstance(optimizer, _Distributed):
        raise ValueError(f"{type(optimizer).__name__} is distributed already: give the optimiser that it was made from")
    if op not in (Average, Sum, Adasum):
        raise ValueError(f"DistributedOptimizer has no op {op}: use hvd.Average, hvd.Sum or hvd.Adasum")
    check_is_process_set(process_set)
    if op == Adasum and process_set is not global_process_set:
        raise NotImplementedError("Adasum does not support non-global process sets: leave process_set away")
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average: divide the gradients yourself")
    if named_parameters is not None:
        _check_names(list(named_parameters), optimizer)
    twin = _empty_twin(type(optimizer))
    twin.__dict__.update(optimizer.__dict__)
    twin.backward_passes_per_step = _checked_passes(backward_passes_per_step)
    twin._compression, twin._sparse_as_dense = compression, sparse_as_dense
    twin._how = {
        "op": op, "prescale_factor": 1 / gradient_predivide_factor, "postscale_factor": gradient_predivide_factor,
        "process_set": process_set,
    }
    return twin


def _empty_twin(kind: type[torch.optim.Optimizer]) -> Any:
    """Return an optimiser without parameters that is distributed and like those of a class."""
    return object.__new__(type(f"Distributed{kind.__name__}", (_Distributed, kind), {}))


def _checked_passes(passes: int) -> int:
    if passes <= 0:
        raise ValueError(f"backward_passes_per_step must be > 0, got {passes}")
    return passes


def _check_names(named: list[Any], optimizer: torch.optim.Optimizer) -> None:
    if any(not isinstance(entry, tuple) for entry in named):
        raise ValueError(
            "named_parameters should be a sequence of tuples (name, parameter), usually model.named_parameters()"
        )
    names = [name for name, _ in named]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"Parameter names in named_parameters must be unique. Found duplicates: {', '.join(twice)}")
    known = {id(parameter) for _, parameter in named}
    shapes = [tuple(p.shape) for group in optimizer.param_groups for p in group["params"] if id(p) not in known]
    if shapes:
        raise ValueError(
            "named_parameters was specified, but one or more model parameters were not named: the optimiser has others "
            f"of shape {', '.join(map(str, shapes))}"
        )
