"""What a step of several processes does beside what every step does."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchipu.cache.captures import Request, fetch
from torchipu.capture.captured import Captured
from torchipu.capture.stand_ins import standing_in
from torchipu.host.bound_plan import BoundPlan
from torchipu.host.generic import TORCH_DTYPES
from torchipu.host.resident import Returned
from torchipu.ir.graph import Tensor
from torchipu.options import Options
from torchipu.parts.state import names_of
from torchipu.step.in_parts import InParts
from torchipu.step.seen import Seen


class PartedStep:
    """A step of which a process may have a part; see docs/pipeline_over_processes.md."""

    model: torch.nn.Module
    options: Options
    _built: Any
    _calls: int
    _lock: contextlib.AbstractContextManager[bool]
    _parts: InParts | None
    _seen: Seen
    _capturing: Callable[[Callable[[], Captured]], Captured] | None

    @property
    def compiled(self) -> Any:
        """What the last compilation gave."""
        raise NotImplementedError

    @property
    def micro_batches(self) -> int:
        """Micro-batches between two weight updates, or in one inference call."""
        raise NotImplementedError

    @property
    def iterations(self) -> int:
        """Weight updates in one call."""
        raise NotImplementedError

    def _returned(self) -> list[Returned]:
        raise NotImplementedError

    def _capture(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Captured:
        raise NotImplementedError

    # ------------------------------------------------------------------ states
    def gather(self, onto: int | None = None) -> dict[str, torch.Tensor]:
        """Bring the weights, buffers and optimiser states of all processes of a pipeline together.

        All of them call it. The user's tensors become those of the whole model; where a parameter is on the meta
        device it stays there, and its values are in what is returned alone.

        Args:
            onto: The process that is given them, by its rank in the group; None for all.

        Returns:
            By name, ``model.NAME``, ``optimizer.NAME.KEY`` or ``step.NAME``; empty on processes that are given none.

        Raises:
            OptionsError: Nothing was compiled yet.
            PeerError: Another process does something else, is gone or is silent.
        """
        self.compiled  # noqa: B018  # says what to do where nothing is compiled yet
        with self._lock, self._together():
            names = self._names()
            if self._parts is None:
                return {name: host.detach() for host, name in names.values()}
            self._parts.processes.meet({"call": f"gather(onto={onto})"})
            found = self._parts.gather(self._built.states, onto)
            return {names[tensor][1]: value for tensor, value in found.items()}

    def part_state(self) -> dict[str, torch.Tensor]:
        """Return the user's tensors of the weights, buffers and optimiser states that are in this process, by name.

        For torch.distributed.checkpoint, which saves what every process has, and loads into these very tensors what
        any number of processes has saved. Names are those of `gather`; without a pipeline over processes all states
        are here.

        Raises:
            OptionsError: Nothing was compiled yet.
        """
        self.compiled  # noqa: B018  # says what to do where nothing is compiled yet
        with self._lock:
            parts = self._parts
            return {
                name: host.detach() for tensor, (host, name) in self._names().items()
                if parts is None or parts.owns(tensor)
            }

    def _names(self) -> dict[Tensor, tuple[torch.Tensor, str]]:
        """Return the user's tensor of each state, and its name in a checkpoint."""
        states = self._built.states
        names = names_of(states, self.model, getattr(self, "optimizer", None))
        return {tensor: (host, names[tensor]) for tensor, host in states.items() if host is not None}

    # ------------------------------------------------------------------ a call
    def _together(self) -> contextlib.AbstractContextManager[None]:
        """Do something with the other processes of a pipeline, where there are any; signals wait."""
        return contextlib.nullcontext() if self._parts is None else self._parts.processes.signals.held()

    def _meet(self, what: str, leaves: Sequence[Any], *, is_stale: bool) -> bool:
        """Agree with the other processes of a pipeline on a call; return whether to compile."""
        assert self._parts is not None
        return self._parts.meet(f"{what} of {type(self).__name__}", {
            "calls before": str(self._calls),
            "inputs": ", ".join(_described(leaf) for leaf in leaves),
            "modules in training": "".join("ny"[module.training] for module in self.model.modules()),
            "trainable parameters": "".join("ny"[parameter.requires_grad] for parameter in self.model.parameters()),
        }, is_stale=is_stale)

    def _captured(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Captured:
        """Capture the model; weights need no memory where other processes have them, or nothing is to run."""
        if self._capturing is not None:
            with standing_in(self.model):
                return self._capturing(lambda: self._capture(arguments, keywords))
        with contextlib.nullcontext() if self._parts is None else standing_in(self.model):
            return self._capture(arguments, keywords)

    def _cached(
        self, arguments: tuple[Any, ...], keywords: dict[str, Any], facts: str, capture: Callable[[], Captured],
    ) -> Captured:
        """Return a capture from the compile cache, or make it.

        Args:
            arguments: Of one micro-batch.
            keywords: Of one micro-batch.
            facts: What the capture depends on beside model, arguments and options.
            capture: Makes it.
        """
        if self._capturing is not None or self._parts is not None:
            return capture()  # the model has no values then
        request = Request(self.model, arguments, keywords, self.options, facts)
        return fetch(request, capture, self._seen.cache_hits)

    def _everywhere(self) -> tuple[torch.Tensor, ...]:
        """Return the host's tensors of states that every process of a pipeline wants to see after a call."""
        return ()

    def _prepare_parts(self, parts: InParts) -> None:
        """Say what a call gives to the other processes."""
        replicas, wanted = self.options.replicas, self._everywhere()
        outputs = [
            (tensor.num_elements * replicas * (1 if rule.mode == "final" else self.micro_batches * self.iterations),
             TORCH_DTYPES[tensor.dtype])
            for rule, tensor in zip(self._returned(), self._built.graph.outputs, strict=True)
        ]
        states = self._built.states
        shared = {t: host for t, host in states.items() if host is not None and any(host is one for one in wanted)}
        parts.prepare(outputs, shared)

    def _shared(self, parts: InParts, bound: BoundPlan, outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Give the results of this process to the others, and return all."""
        assert parts.piece is not None
        mine = dict(zip(parts.piece.part.outputs, outputs, strict=True))
        every = []
        for index, (rule, tensor) in enumerate(zip(self._returned(), self._built.graph.outputs, strict=True)):
            is_last = rule.mode == "final"
            if index in mine:
                every.append(parts.last(mine[index], self.micro_batches) if is_last else mine[index])
                continue
            runs = self.options.replicas * (1 if is_last else self.micro_batches * self.iterations)
            every.append(torch.empty((runs, *tensor.shape), dtype=TORCH_DTYPES[tensor.dtype]))
        parts.share(every, bound)
        return every


def _described(leaf: Any) -> str:
    """Return what of an input has to be the same on all processes."""
    if isinstance(leaf, torch.Tensor):
        return f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}"
    return repr(leaf) if isinstance(leaf, (bool, int, float, str, type(None))) else type(leaf).__name__
