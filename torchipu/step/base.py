"""What training and inference share for their users: a model as one program a call."""

from __future__ import annotations

import contextlib
import inspect
import pickle
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.utils import _pytree as pytree

from torchipu.capture.captured import Captured
from torchipu.capture.tensor_classes import plain
from torchipu.errors import OptionsError
from torchipu.ir.graph import Graph, Tensor
from torchipu.step import watching
from torchipu.step.compiling import Capturing, Progress
from torchipu.step.running import RunningStep

Call = TypeVar("Call", bound=Callable[..., Any])


def _at_once(capture: Callable[[], Captured]) -> Captured:
    return capture()


def _on_its_own(call: Call) -> Call:
    """Keep Dynamo out of a call: a compiled function that makes it goes on after it; a model that does is refused."""
    apart: Call = torch.compiler.disable(
        call, reason="a step is a whole program and cannot be called within a model",
    )
    return apart


class ProgramStep(RunningStep):
    """A model as one program a call, captured at the first one, whose states lie in the program's memory.

    Weights, buffers and optimiser state live with the program while it runs and are written back to the user's
    tensors when a call has ended well; a call that fails or is interrupted leaves them as they were.
    """

    gives_zeros = True  # where calls are only estimated; else such a call ends the script
    captures_again = True  # for micro-batches of other sizes, when a report tries some

    @property
    def stochastic_rounding(self) -> bool:
        """Whether half results are rounded stochastically; may be switched between calls, without compiling again.

        Raises:
            OptionsError: It is switched on in a step whose options leave it off, so that the program lacks it.
        """
        return self._rounds_stochastically

    @stochastic_rounding.setter
    def stochastic_rounding(self, on: bool) -> None:
        if on and not self.options.stochastic_rounding:
            raise OptionsError(
                "the program has no stochastic rounding to switch on", option="stochastic_rounding", value=on,
                remedy="make the step with torchipu.Options(stochastic_rounding=True); then switch it off and on",
            )
        self._rounds_stochastically = bool(on)

    def __reduce__(self) -> Any:
        """Say what to save instead: a program has memory of its own and cannot be pickled or copied."""
        of_optimiser = " and optimizer.state_dict()" if hasattr(self, "optimizer") else ""
        raise pickle.PicklingError(
            f"a {type(self).__name__} is a compiled program and cannot be pickled or copied: save model.state_dict()"
            f"{of_optimiser}, up to date after each call, load that into a new model, and make a new "
            f"{type(self).__name__} of it"
        )

    def _in_order(
        self, arguments: tuple[Any, ...], keywords: dict[str, Any],
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return arguments in the order of forward, so that one given by its name is the same as by its place."""
        if not keywords:
            return arguments, keywords
        try:
            bound = inspect.signature(self.model.forward).bind(*arguments, **keywords)
        except (TypeError, ValueError):  # what forward raises tells more
            return arguments, keywords
        return bound.args, bound.kwargs

    def _like_captured(
        self, arguments: tuple[Any, ...], keywords: dict[str, Any],
    ) -> tuple[tuple[tuple[Any, ...], dict[str, Any]], list[Any], bool]:
        """Return arguments with the keys of dictionaries as the capture had them, their leaves, and whether to capture.

        The last is so for arguments that are nested in another way than those of the capture.
        """
        given: Any = (arguments, keywords)
        are_plain = self._built is not None and not keywords and len(arguments) == self._built.capture.num_plain
        if are_plain and all(type(argument) is torch.Tensor for argument in arguments):
            return given, list(arguments), False
        leaves, spec = pytree.tree_flatten(given)
        if self._built is None or spec == self._built.capture.in_spec:
            return given, leaves, False
        expected = self._built.capture.in_spec
        with contextlib.suppress(ValueError):  # other keys, or another number of elements
            given = pytree.tree_unflatten(expected.flatten_up_to(given), expected)
        leaves, spec = pytree.tree_flatten(given)
        return given, leaves, spec != expected

    # ------------------------------------------------------------------ what users call
    def compile(self, *arguments: Any, progress: Progress | None = None, **keywords: Any) -> None:
        """Compile for inputs of these shapes without running.

        Args:
            *arguments: Inputs as for a call: ``[batch x micro-batches x iterations, ...]``.
            progress: Called with ``(done, total)`` as stages of the compilation end.
            **keywords: Keyword inputs.

        Raises:
            CaptureError: The model cannot be captured as one graph.
            ConstraintError: The batch is not divisible by the number of micro-batches.
            OutOfTileMemoryError: The fullest tile does not hold the program.
        """
        if stand_in := watching.stand_in_for_steps():
            stand_in(self, arguments, keywords)
            return
        arguments, keywords = self._in_order(arguments, keywords)
        with self._lock, self._together():
            undo = self._keep()
            try:
                if self._parts is not None:
                    self._meet("compile", pytree.tree_leaves((arguments, keywords)), is_stale=True)
                self._compile(arguments, keywords, progress or (lambda done, total: None))
                if self._parts is not None:
                    self._parts.forget_key()
            except BaseException:
                undo()
                raise

    def graph_of(
        self, arguments: tuple[Any, ...], keywords: dict[str, Any], capturing: Capturing | None = None,
    ) -> Graph:
        """Capture for the inputs of one micro-batch, without compiling; the model and the optimiser stay as they are.

        Weights may be meta tensors or fake ones: nothing needs their values.

        Args:
            arguments: Of the model.
            keywords: Of the model.
            capturing: Is given what captures the model, and returns the capture: that one, or one made before.

        Raises:
            CaptureError: The model cannot be captured as one graph.
        """
        arguments, keywords = self._in_order(arguments, keywords)
        with self._lock:
            undo = self._keep()
            self._capturing = capturing or _at_once
            try:
                return self._build(arguments, keywords).graph
            finally:
                self._capturing = None
                undo()

    @_on_its_own
    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Run one call.

        Args:
            *arguments: Inputs, ``[batch x micro-batches x iterations, ...]``; tensors are cut along dimension 0.
            **keywords: Keyword inputs.

        Returns:
            What the model's forward returns. In output mode ``all`` (the default for inference) results of the
            micro-batches are joined along dimension 0 and a 0-d result becomes ``[micro-batches]``; in ``final``
            (the default for training) those of the last one are given; in ``sum`` they are added; in ``every_n``
            those of every ``output_period``-th device iteration are joined.
        """
        if stand_in := watching.stand_in_for_steps():
            return stand_in(self, arguments, keywords)
        arguments, keywords = self._in_order(arguments, keywords)
        with self._lock, self._together():
            self._committed = False
            undo = self._keep()
            if self._footprint is not None:
                self._footprint.fetch()
            try:
                (arguments, keywords), leaves, is_stale = self._like_captured(arguments, keywords)
                is_stale = is_stale or not self._is_as_compiled(leaves)
                if self._parts is not None:
                    is_stale = self._meet("call", leaves, is_stale=is_stale)
                if is_stale:
                    self._compile(arguments, keywords, lambda done, total: None)
                    assert self._built is not None
                    tensors = [plain(leaf) for leaf in self._built.capture.flatten(arguments, keywords)]
                else:
                    tensors = [plain(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)]
                if self._parts is None:
                    return self._run(tensors)
                self._parts.settle_key()
                with self._parts.call(self.iterations):
                    return self._run(tensors)
            except BaseException:
                # After the write-back the new values are the user's, even if Ctrl-C comes before the results do.
                if not self._committed:
                    undo()
                raise

    @property
    def is_compiled(self) -> bool:
        """Whether there is a program."""
        return self._compiled is not None

    def replica_buffers(self) -> dict[str, torch.Tensor]:
        """Return what each replica has of the buffers that it has for itself: ``[replicas, ...]`` by name.

        The module's own buffers are those of the first replica.
        """
        with self._lock:
            apart = {id(r.host): r.replicas for r in self._residents if r.replicas is not None}
            found = {name: apart.get(id(buffer)) for name, buffer in self.model.named_buffers()}
            return {name: value.clone() for name, value in found.items() if value is not None}

    def states_on_device(self) -> dict[Tensor, torch.Tensor]:
        """Return what the program's memory holds of each state after a call; of replicas that are apart, the first's.

        The user's tensors have the same, unless the door leaves them behind until they are asked for, as PopTorch does.
        """
        assert self._bound is not None
        assert self._built is not None
        bound = self._bound
        return {
            tensor: bound.state_view(tensor)[0] if bound.is_apart(tensor) else bound.state_view(tensor)
            for tensor, host in self._built.states.items() if host is not None and tensor in bound.host_plan.states
        }
