"""Operators that mark, in a step with updates of its own, where gradients are reduced and weights change.

They stand in a captured graph for what a program does between micro-batches; `torchipu.capture.segments` cuts the graph
there. Called on real tensors they do what one replica by itself would see of them.
"""

from __future__ import annotations

import torch
from torch import library

library.define("torchipu::reduce_gradient", "(Tensor gradient, Tensor? held, str name) -> Tensor")
library.define(
    "torchipu::optimiser_step",
    "(Tensor parameter, Tensor gradient, int step, int optimiser, str name) -> Tensor",
)
library.define("torchipu::keep", "(Tensor value, str kind, str name) -> Tensor")

REDUCE = "torchipu.reduce_gradient.default"
STEP = "torchipu.optimiser_step.default"
KEEP = "torchipu.keep.default"
MARKS = frozenset({REDUCE, STEP, KEEP})


@library.impl("torchipu::reduce_gradient", "CompositeExplicitAutograd")
def _reduce(gradient: torch.Tensor, held: torch.Tensor | None, name: str) -> torch.Tensor:
    return gradient.clone() if held is None else held + gradient


@library.impl("torchipu::optimiser_step", "CompositeExplicitAutograd")
def _step(parameter: torch.Tensor, gradient: torch.Tensor, step: int, optimiser: int, name: str) -> torch.Tensor:
    return parameter.clone()


@library.impl("torchipu::keep", "CompositeExplicitAutograd")
def _keep(value: torch.Tensor, kind: str, name: str) -> torch.Tensor:
    return value.clone()


def _like_the_first(first: torch.Tensor, *others: object) -> torch.Tensor:
    return torch.empty_like(first)


for _name in ("reduce_gradient", "optimiser_step", "keep"):
    library.register_fake(f"torchipu::{_name}", _like_the_first)


def reduced(gradient: torch.Tensor, held: torch.Tensor | None, name: str) -> torch.Tensor:
    """Mark a gradient that replicas add up, onto what the parameter's ``grad`` holds already.

    Args:
        gradient: Of one replica, divided by their number.
        held: What it is added to, or None.
        name: Of the parameter.
    """
    result: torch.Tensor = torch.ops.torchipu.reduce_gradient.default(gradient, held, name)
    return result


def stepped(parameter: torch.Tensor, gradient: torch.Tensor, step: int, optimiser: int, name: str) -> torch.Tensor:
    """Mark an update of a parameter; return what stands for its next value.

    Args:
        parameter: As it is.
        gradient: What the optimiser is given.
        step: Number of the call of ``optimizer.step()``, which all parameters of the call share.
        optimiser: Number of the optimiser.
        name: Of the parameter.
    """
    result: torch.Tensor = torch.ops.torchipu.optimiser_step.default(parameter, gradient, step, optimiser, name)
    return result


def kept(value: torch.Tensor, kind: str, name: str) -> torch.Tensor:
    """Mark what is there when the step has ended.

    Args:
        value: The value.
        kind: ``parameter`` or ``gradient``.
        name: Of the parameter.
    """
    result: torch.Tensor = torch.ops.torchipu.keep.default(value, kind, name)
    return result
