"""Which attributes of an optimiser may change after compilation, and which the device does not know at all."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from torchipu import optim as core
from torchipu.poptorch._logging import logger
from torchipu.poptorch.poptorch_core import Error, createPoptorchError

DEFAULTS: Mapping[str, float] = {"momentum": 0.0, "dampening": 0.0, "eps": 1e-8, "loss_scaling": 1.0}
"""What makes an attribute of an optimiser of torch a constant: that it has the value that torch gives it."""
ALWAYS_VARIABLE, ALWAYS_CONSTANT = frozenset({"lr"}), frozenset({"betas", "alpha", "nesterov", "centered"})
NUMBERS = (
    "lr", "momentum", "dampening", "weight_decay", "nesterov", "betas", "eps", "alpha", "max_weight_norm",
)
"""Attributes of groups that an update reads."""
BUILT_IN: Mapping[str, Any] = {
    "max_grad_norm": math.inf, "bias_correction": True, "use_combined_accum": False, "use_tf_variant": False,
}
"""Attributes of an optimiser that choose the ops of a program, and what they are where an optimiser lacks them."""
TYPES = ("accum_type", "velocity_accum_type", "first_order_momentum_accum_type", "second_order_momentum_accum_type")
"""Attributes that choose the types of the states of a program; float32 where an optimiser lacks them."""
WRAPPED = frozenset({"step", "zero_grad"})
"""Methods that schedulers and hooks put on any optimiser; one that cannot be called is the user's."""
OURS = "ipu_state_is_dirty"
"""An attribute that PopTorch keeps itself."""


class VariableAttributes:
    """Which attributes may change after compilation without another one.

    Args:
        variable: Those that may, at first.
        allowed: All there are.
    """

    def __init__(self, variable: Sequence[str], allowed: Sequence[str]) -> None:
        self._allowed_attributes = list(allowed)  # PopTorch's name, which programs read
        self._variable = {name for name in variable if name in self._allowed_attributes}

    def isConstant(self, name: str) -> bool:
        """Return whether an attribute is fixed.

        Raises:
            AssertionError: There is none of this name; so with the other methods.
        """
        self._check(name)
        return name not in self._variable

    def markAsConstant(self, name: str) -> None:
        """Fix an attribute."""
        self._check(name)
        self._variable.discard(name)

    def markAsVariable(self, name: str) -> None:
        """Let an attribute change."""
        self._check(name)
        self._variable.add(name)

    def _check(self, name: str) -> None:
        allowed = self._allowed_attributes
        if name not in allowed:
            raise AssertionError(f"Unknown attribute {name}, allowed values: {allowed}")


class FixedValues:
    """What of an optimiser a program was compiled with and cannot change.

    Args:
        optimizer: As it was compiled.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.groups = [
            {name: value for name, value in group.items() if name in NUMBERS and _is_constant(optimizer, name, value)}
            for group in optimizer.param_groups
        ]
        scaling = getattr(optimizer, "loss_scaling", 1.0)
        self.loss_scaling = scaling if _is_constant(optimizer, "loss_scaling", scaling) else None
        self.built_in = {name: getattr(optimizer, name, default) for name, default in BUILT_IN.items()}
        self.types = {name: getattr(optimizer, name, torch.float32) for name in TYPES}

    def check(self, optimizer: torch.optim.Optimizer) -> None:
        """Refuse other values.

        Args:
            optimizer: To be used from now on.

        Raises:
            Error: One of them is another now.
            ValueError: The type of one of its states is.
        """
        for name, dtype in self.types.items():
            if getattr(optimizer, name, torch.float32) != dtype:
                raise ValueError(
                    f"An optimizer with {name}={getattr(optimizer, name, torch.float32)} cannot be set: the model is "
                    f"already compiled with {name}={dtype}. destroy() it first, or use {name}={dtype}."
                )
        for name, value in self.built_in.items():
            if _differ(getattr(optimizer, name, BUILT_IN[name]), value):
                raise _refusal(name, value, getattr(optimizer, name, BUILT_IN[name]), may_vary=False)
        for number, (fixed, group) in enumerate(zip(self.groups, optimizer.param_groups, strict=False)):
            for name, value in fixed.items():
                if name in group and _differ(group[name], value):
                    raise _refusal(f"{name} of group {number}", value, group[name])
        scaling = getattr(optimizer, "loss_scaling", 1.0)
        if self.loss_scaling is not None and _differ(scaling, self.loss_scaling):
            raise _refusal("loss_scaling", self.loss_scaling, scaling)


def _is_constant(optimizer: torch.optim.Optimizer, name: str, value: Any) -> bool:
    attributes = getattr(optimizer, "variable_attrs", None)
    if isinstance(attributes, VariableAttributes):
        return name in attributes._allowed_attributes and attributes.isConstant(name)
    if name in ALWAYS_VARIABLE or name in ALWAYS_CONSTANT:
        return name in ALWAYS_CONSTANT
    default = DEFAULTS.get(name, 0.0)
    if name == "weight_decay" and isinstance(optimizer, torch.optim.AdamW):
        default = 1e-2
    return not _differ(value, default)


def _differ(one: Any, other: Any) -> bool:
    if isinstance(one, (tuple, list)):
        return any(_differ(first, second) for first, second in zip(one, other, strict=True))
    return float(one) != float(other)


def _refusal(what: str, before: Any, now: Any, *, may_vary: bool = True) -> Error:
    advice = (
        "An attribute may change if it was given to the constructor of a poptorch.optim optimizer, or marked with "
        "optimizer.variable_attrs.markAsVariable() before the compilation; or destroy() the model to compile it anew."
    ) if may_vary else "It chooses how the program is built: destroy() the model to compile it anew."
    return createPoptorchError(
        f"Trying to update a constant optimizer value: {what} was {before} when the model was compiled and is {now}. "
        f"{advice}"
    )


# ---------------------------------------------------------------------- attributes nobody reads
class AttributeTracker:
    """Says once of each attribute that came to an optimiser later that it does nothing.

    Args:
        optimizer: What it has at first is taken as it is.
        is_relaxed: Say so at the level of debug messages.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, is_relaxed: bool) -> None:
        self.level = logging.DEBUG if is_relaxed else logging.WARNING
        self.seen = {what: set(names) for what, names in _attributes(optimizer)}

    def check(self, optimizer: torch.optim.Optimizer) -> None:
        """Look for attributes that were not there before.

        Args:
            optimizer: As it is now.
        """
        kind = kind_of(optimizer)
        for what, names in _attributes(optimizer):
            seen = self.seen.setdefault(what, set())
            new = sorted(set(names) - seen)
            seen.update(new)
            if new:
                logger.log(self.level, "Ignoring unexpected %s in %s optimizer: %s", what, kind, new)


def _attributes(optimizer: torch.optim.Optimizer) -> list[tuple[str, Iterable[str]]]:
    own = [
        name for name, value in vars(optimizer).items()
        if not name.startswith("_") and name != OURS and not (name in WRAPPED and callable(value))
    ]
    groups = [(f"group {number} attribute", group) for number, group in enumerate(optimizer.param_groups)]
    return [("optimizer attribute", own), ("default group variable", optimizer.defaults), *groups]


def kind_of(optimizer: torch.optim.Optimizer) -> str:
    """Return PopART's name of the variant of an optimiser."""
    uncorrected = "" if getattr(optimizer, "bias_correction", True) else "_NO_BIAS"
    is_centered = any(group.get("centered") for group in optimizer.param_groups)
    kinds: tuple[tuple[type, Callable[[], str]], ...] = (
        (torch.optim.SGD, lambda: "SGD1" if getattr(optimizer, "use_combined_accum", False) else "SGD2"),
        (torch.optim.AdamW, lambda: f"ADAMW{uncorrected}"),
        (torch.optim.Adam, lambda: "ADAM"),
        (torch.optim.RMSprop, lambda: "RMSPROP_CENTERED" if is_centered else "RMSPROP"),
        (core.LAMB, lambda: f"LAMB{uncorrected}"),
    )
    return next((name() for kind, name in kinds if isinstance(optimizer, kind)), type(optimizer).__name__)
