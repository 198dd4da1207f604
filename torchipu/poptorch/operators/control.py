"""`for_loop` and `cond`: control flow that the program itself runs; for inference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

from torchipu.capture.bodies import Enclosed, choice, enclosed, loop
from torchipu.capture.reachable import Kept, Reachable
from torchipu.poptorch._logging import logger
from torchipu.poptorch.capturing import in_body, is_news, is_training_on_ipu, model_on_ipu
from torchipu.poptorch.operators.constants import refuse_write
from torchipu.poptorch.poptorch_core import createPoptorchError

Body = Callable[..., Any]


def for_loop(count: int, body: Body, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Run a function again and again on what it returned before, as one loop of the program.

    Without a wrapper it runs as often too; PopTorch ran it once there.

    Args:
        count: How often.
        body: Takes and returns as many tensors as there are inputs, of the same shapes and types. It may use other
            tensors and weights of the model. What it writes into buffers and weights of the model is seen by the next
            trip and after the loop; what it writes into other tensors, or into its inputs, stays within the trip. Of
            all else that it changes, such as a counter, every trip finds what there was before the loop.
        inputs: What it is given first.

    Returns:
        What it returned last; the inputs if ``count`` is 0.

    Raises:
        ValueError: ``inputs`` is no list of tensors.
        Error: The model is wrapped for training, or shapes or types change.
    """
    _refuse_training("for_loop")
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise createPoptorchError(f"poptorch.for_loop(): count must be an integer from 0, not {count!r}")
    _check_list("for_loop", "inputs", inputs)
    listed = _listing("for_loop", "body", body)
    if count == 0:
        return [tensor.clone() for tensor in inputs]
    if not _is_captured(inputs):
        carried = [tensor.clone() for tensor in inputs]
        for _ in range(count):
            results = listed(*carried)
            _check_like("for_loop", "what the body returned", results, "the inputs", inputs)
            carried = [tensor.clone() for tensor in results]
        return carried
    kept = Kept(Reachable(model_on_ipu(), [body]))
    with in_body() as check:
        does = _enclosed(listed, inputs, kept)
        check(does.taken, does.written)
        _check_like("for_loop", "what the body returned", does.results, "the inputs", inputs)
        results = loop(count, does, inputs)
    _warn_of_changes(kept, "for_loop: every trip begins with what it was before the loop. Let the loop carry it")
    return results


def cond(
    condition: torch.Tensor, then_body: Body, then_inps: list[torch.Tensor], else_body: Body,
    else_inps: list[torch.Tensor],
) -> list[torch.Tensor]:
    """Run one of two functions, as a tensor says when the program runs.

    Args:
        condition: One element; 0 and False choose ``else_body``.
        then_body: Runs where the condition is true. It may use other tensors and weights of the model; what it writes
            into buffers and weights is kept, what it writes into others, or into its inputs, stays within.
        then_inps: What it is given.
        else_body: Runs otherwise; it returns as many tensors as the other, of the same shapes and types.
        else_inps: What it is given.

    Returns:
        What the chosen function returned.

    Raises:
        ValueError: The inputs are no lists of tensors.
        Error: The model is wrapped for training, the condition is no single element, or the results differ.
    """
    _refuse_training("cond")
    if not isinstance(condition, torch.Tensor) or condition.numel() != 1:
        raise createPoptorchError("poptorch.cond(): the condition must be a tensor of one element")
    _check_list("cond", "then_inps", then_inps)
    _check_list("cond", "else_inps", else_inps)
    then, otherwise = _listing("cond", "then_body", then_body), _listing("cond", "else_body", else_body)
    if torch.compiler.is_dynamo_compiling():
        return _by_torch(condition, then, then_inps, otherwise, else_inps)
    if not _is_captured([condition, *then_inps, *else_inps]):
        chosen, given = (then, then_inps) if bool(condition) else (otherwise, else_inps)
        return [tensor.clone() for tensor in chosen(*(tensor.clone() for tensor in given))]
    kept = Kept(Reachable(model_on_ipu(), [then_body, else_body]))
    with in_body() as check:
        first, second = _enclosed(then, then_inps, kept), _enclosed(otherwise, else_inps, kept)
        for side in (first, second):
            check(side.taken, side.written)
        _check_like("cond", "what else_body returned", second.results, "what then_body returned", first.results)
        results = choice(condition.reshape(()).bool(), first, then_inps, second, else_inps)
    _warn_of_changes(kept, "cond: what it is afterwards is the same whichever body runs. Return it from both")
    return results


def _by_torch(
    condition: torch.Tensor, then: Body, then_inps: list[torch.Tensor], otherwise: Body, else_inps: list[torch.Tensor],
) -> list[torch.Tensor]:
    """Choose by `torch.cond`, which torch.compile can trace."""
    count = len(then_inps)
    return list(torch.cond(
        condition.reshape(()).bool(), lambda *given: tuple(tensor.clone() for tensor in then(*given[:count])),
        lambda *given: tuple(tensor.clone() for tensor in otherwise(*given[count:])), (*then_inps, *else_inps),
    ))


def _enclosed(body: Callable[..., list[torch.Tensor]], inputs: list[torch.Tensor], kept: Kept) -> Enclosed:
    """Return what a body does, which runs several times for that: each time it finds what there was before."""
    model = model_on_ipu()
    state = [] if model is None else [*model.parameters(), *model.buffers()]

    def begun(*given: torch.Tensor) -> list[torch.Tensor]:
        kept.restore()
        return body(*given)

    return enclosed(begun, inputs, state, lambda constant: refuse_write(model, constant))


def _warn_of_changes(kept: Kept, words: str) -> None:
    """Warn, once for each, of what bodies change beside buffers and what they return."""
    for what in kept.changes():
        told = f"{what} is changed in a body of poptorch.{words} as one of its tensors, or write into a buffer."
        if is_news(told):
            logger.warning("%s", told)


def _refuse_training(name: str) -> None:
    if is_training_on_ipu():
        raise createPoptorchError(f"poptorch.{name}() is only supported in inference.")


def _check_list(name: str, argument: str, inputs: Any) -> None:
    told = f"poptorch.{name}() expects {argument} to be a list of tensors"
    if not isinstance(inputs, list):
        raise ValueError(f"{told} (Object is not list), but got {type(inputs)}")
    for index, value in enumerate(inputs):
        if not isinstance(value, torch.Tensor):
            raise ValueError(
                f"{told} (Object contained in list at index {index} is not torch.tensor), but got {type(value)}"
            )


def _listing(name: str, argument: str, body: Any) -> Callable[..., list[torch.Tensor]]:
    """Return a body that returns a list, whether it returned a lone tensor or several."""
    if not callable(body):
        raise createPoptorchError(f"poptorch.{name}(): {argument} must be a function, not {type(body).__name__}")

    def listed(*given: torch.Tensor) -> list[torch.Tensor]:
        returned = body(*given)
        results = list(returned) if isinstance(returned, (list, tuple)) else [returned]
        for index, value in enumerate(results):
            if not isinstance(value, torch.Tensor):
                raise createPoptorchError(
                    f"poptorch.{name}(): {argument} must return tensors, but result {index} is a {type(value).__name__}"
                )
        return results

    return listed


def _check_like(
    name: str, what: str, results: Sequence[torch.Tensor], like: str, expected: Sequence[torch.Tensor],
) -> None:
    """Raise Error unless tensors have the number, shapes and types of others."""
    if len(results) != len(expected):
        raise createPoptorchError(
            f"poptorch.{name}(): {what} and {like} must be as many tensors, but they are {len(results)} and "
            f"{len(expected)}"
        )
    for index, (result, wanted) in enumerate(zip(results, expected, strict=True)):
        if result.shape != wanted.shape or result.dtype != wanted.dtype:
            raise createPoptorchError(
                f"poptorch.{name}(): {what} must have the shapes and types of {like}, but tensor {index} is "
                f"{list(result.shape)} of {result.dtype} and not {list(wanted.shape)} of {wanted.dtype}"
            )


def _is_captured(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether these are tensors without values; without any, whether tensors made now are."""
    return any(isinstance(tensor, (FakeTensor, FunctionalTensor)) for tensor in tensors or [torch.empty(0)])
