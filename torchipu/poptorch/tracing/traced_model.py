"""Runs a user's model while it is captured: what it is given, what it returns, which result is the loss."""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._python_dispatch import _disable_current_modes

from torchipu.capture.process_wide import replaced
from torchipu.capture.running import Running
from torchipu.poptorch._logging import logger
from torchipu.poptorch.arguments import structure
from torchipu.poptorch.arguments.parser import Arguments
from torchipu.poptorch.capturing import bodies_within, on_ipu
from torchipu.poptorch.enums import ReductionType
from torchipu.poptorch.operators import loss as losses
from torchipu.poptorch.operators.autocasting import Policy, casting
from torchipu.poptorch.operators.placing import placing
from torchipu.poptorch.options import Options
from torchipu.poptorch.poptorch_core import createPoptorchError
from torchipu.poptorch.tracing.calls import Calls
from torchipu.poptorch.tracing.devices import devices_seen
from torchipu.poptorch.tracing.grouping import Group, picked
from torchipu.poptorch.tracing.hidden_results import refuse_hidden
from torchipu.poptorch.tracing.known_values import KnownValues, undo_writes
from torchipu.poptorch.tracing.plain_state import PlainState
from torchipu.poptorch.tracing.shown_tensors import tensors_shown


class Function(torch.nn.Module):
    """A module whose forward is a user's function.

    Args:
        function: What is called.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self.function(*args, **kwargs)


class TracedModel(Running):
    """A user's model as a function from flat tensors to flat tensors.

    Args:
        model: The model.
        arguments: Those of the call that is captured.
        options: The executor's: how blocks become stages, what is cast, whether modules have names.
        is_training: Whether there must be a loss.
        loss_scale: What the backward ops begin from.
        groups: Parameters of which a replica sees one row; their numbers follow the tensors of the arguments.

    Attributes:
        ipus: IPU of each block in the order in which they began.
        blocks: Name of each.
        template: What the model returned; its tensors are empty and stand for `members`.
        members: For each tensor of the template its place among the flat results, or its value if the model does
            not compute it.
    """

    allows_writes_after_reads = True

    def __init__(
        self, model: torch.nn.Module, arguments: Arguments, options: Options, *, is_training: bool, loss_scale: float,
        groups: Sequence[Group] = (),
    ) -> None:
        super().__init__(model, loss_scale if is_training else 0.0)
        self.arguments = arguments
        self.strategy = options._execution_strategy
        self.names_modules = options._module_namescope_enabled
        self.policy = _policy(options)
        self.groups = groups
        self.averages = options.Training.accumulation_and_replication_reduction_type != ReductionType.Sum
        self.warned_factories: set[str] = set()
        self.is_training = is_training
        self.plain_state = PlainState(model)
        self.told: set[str] = set()
        self.written: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.ipus: list[int] = []
        self.blocks: list[str] = []
        self.template: Any = None
        self.members: list[int | torch.Tensor] = []

    def run(self, tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], int | None]:
        """Call the model on tensors in the places of the captured call's."""
        count = len(tensors) - len(self.groups)
        given = self.arguments.with_tensors(list(tensors[:count]))
        rows = picked(self.inner, self.groups, tensors[count:], is_mean=self.averages)
        tracker = losses.LossTracker()
        self.restore()
        made: dict[int, torch.Tensor] = {}
        known = KnownValues(self.inner, self.written, made)
        before = losses.set_tracker(tracker)
        try:
            with (
                on_ipu(self.is_training, self.inner, self.told), placing(self.strategy) as placed, rows,
                members_stay(self.inner, self.told), self._watched(tracker, known, made) as calls,
            ):
                returned = given.call(self.inner)
                calls.windows.refresh(structure.tensors_in(returned))
                self.plain_state.warn_of_changes(known.of)
        finally:
            losses.set_tracker(before)
            self.plain_state.drop_traced(known.of)
        self.ipus, self.blocks = placed.ipus, placed.names
        final = tracker.final() if self.is_training else None
        return self._flatten(returned, final)

    def restore(self) -> None:
        """Set back what an earlier run of forward has left in plain attributes and in tensors of the host."""
        self.plain_state.restore()
        undo_writes(self.written)

    @contextlib.contextmanager
    def _watched(
        self, tracker: losses.LossTracker, known: KnownValues, made: dict[int, torch.Tensor],
    ) -> Iterator[Calls]:
        """Look at what the model calls."""
        calls = Calls(tracker, known)
        with (
            devices_seen(self.inner, self.warned_factories, made), casting(self.policy), _masks_unread(),
            tensors_shown(known.of, known.on_host), calls, bodies_within(calls.windows.apart),
        ):
            yield calls

    def _flatten(self, returned: Any, final: torch.Tensor | None) -> tuple[list[torch.Tensor], int | None]:
        refuse_hidden(returned)
        results: list[torch.Tensor] = []
        self.members = []
        place: int | None = None
        for tensor in structure.tensors_in(returned):
            if not isinstance(tensor, (FunctionalTensor, FakeTensor)):
                warnings.warn(f"Output expected to be on the IPU but is on {tensor.device.type}", stacklevel=2)
                with _disable_current_modes():  # which would leave no values
                    self.members.append(tensor.detach().clone())
                continue
            known = next((index for index, result in enumerate(results) if result is tensor), None)
            if known is None:
                known = len(results)
                results.append(tensor)
            if tensor is final:
                place = known
            self.members.append(known)
        if final is not None and place is None:
            place = len(results)
            results.append(final)
        empty = iter([torch.empty(0)] * len(self.members))
        with torch._C._DisableTorchDispatch():
            self.template = structure.with_tensors(returned, empty)
        return results, place

    def rebuild(self, results: Sequence[torch.Tensor]) -> Any:
        """Return what the model returned, with the results of a call."""
        members = [results[member] if isinstance(member, int) else member for member in self.members]
        if isinstance(self.template, torch.Tensor):
            return members[0]
        return structure.with_tensors(self.template, iter(members))


def _policy(options: Options) -> Policy | None:
    """Return how regions of `autocast` cast, or None if they are switched off."""
    precision = options.Precision
    if precision.exists("autocast_enabled") and not precision.autocast_enabled:
        return None
    return precision.autocast_policy if precision.exists("autocast_policy") else Policy()


@contextlib.contextmanager
def _masks_unread() -> Iterator[None]:
    """Keep `torch.nn.Transformer` from reading a mask to see whether it is causal: it is applied in any case."""
    with replaced(
        torch.nn.modules.transformer, "_detect_is_causal_mask", lambda mask, is_causal=None, size=None: bool(is_causal),
    ):
        yield


@contextlib.contextmanager
def members_stay(model: torch.nn.Module, told: set[str]) -> Iterator[None]:
    """Refuse a forward that binds another tensor to the name of a parameter or a buffer; undo it in any case.

    Args:
        model: The model.
        told: Names of buffers that forward registers, which were warned of; added to.
    """
    before = [
        (member, kind, copy.copy(getattr(member, kind)))
        for member in model.modules() if not isinstance(member, torch.jit.ScriptModule)  # which keeps its own
        for kind in ("_parameters", "_buffers")
    ]
    plain = [(member, dict(member.__dict__)) for member in model.modules() if member._buffers or member._parameters]
    paths = {id(member): path for path, member in model.named_modules()}
    try:
        yield
        for member, kind, tensors in before:
            if not isinstance(member, _NormBase):
                _check_members(member, kind, tensors, paths[id(member)], told)
    finally:
        for member, kind, tensors in before:
            held = getattr(member, kind)
            if any(held.get(name) is not tensor for name, tensor in tensors.items()) or len(held) != len(tensors):
                held.clear()
                held.update(tensors)
        for member, attributes in plain:
            for name in set(member.__dict__) - set(attributes):
                if name in member._buffers or name in member._parameters:
                    del member.__dict__[name]


def _check_members(
    member: torch.nn.Module, kind: str, tensors: dict[str, Any], path: str, told: set[str],
) -> None:
    word = "Parameter" if kind == "_parameters" else "Buffer"
    held = getattr(member, kind)
    for name in [] if kind == "_parameters" else sorted(set(held) - set(tensors)):
        full = f"{path}.{name}" if path else name
        if full not in told:
            logger.warning(
                "Buffer %s is registered when calling the forward method: it is no state of the program, and every "
                "call begins without it. Register it in the __init__ of %s.", full, type(member).__name__,
            )
        told.add(full)
    for name, tensor in tensors.items():
        full = f"{path}.{name}" if path else name
        if name not in held and not hasattr(member, name):
            raise createPoptorchError(
                f"{word} {full} is removed from the model when calling the forward method. Keep it, or make it a "
                "plain attribute."
            )
        if held.get(name) is not tensor:
            raise createPoptorchError(
                f"{word} {full} is reassigned within the model when calling the forward method. This is not supported. "
                f"Consider using self.{full}.copy_(src) to copy data from a source tensor, where src is the name of "
                "the source tensor."
            )
