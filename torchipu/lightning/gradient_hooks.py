"""Hooks between backward and update, called with the gradients that a program has handed back."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch

from torchipu.lightning.package import Package, module_of

HOOKS = ("on_before_backward", "on_after_backward", "on_before_optimizer_step")
Limits = tuple[float | None, float | None]
"""Largest norm of all gradients, and largest magnitude of an element."""


class GradientHooks:
    """Calls hooks that look at gradients, if there are any.

    Args:
        trainer: The Trainer.
        module: The Lightning module.
        package: Which of Lightning's packages.

    Attributes:
        are_wanted_by_batch: Whether gradients are wanted after every batch.
        are_wanted: Whether they are wanted before an update.
        sees_losses: Whether somebody is told of each loss.
    """

    def __init__(self, trainer: Any, module: Any, package: Package) -> None:
        self.trainer, self.module, self.package = trainer, module, package
        self.owners = {
            name: [owner for owner in (module, *trainer.callbacks) if package.is_overridden(name, owner)]
            for name in HOOKS
        }
        self.are_wanted_by_batch = bool(self.owners["on_after_backward"])
        self.are_wanted = self.are_wanted_by_batch or bool(self.owners["on_before_optimizer_step"])
        self.sees_losses = bool(self.owners["on_before_backward"])
        self._has_warned = False

    def show(self, gradients: Mapping[str, torch.Tensor]) -> None:
        """Let parameters have gradients; those without one have None."""
        for name, parameter in self.module.named_parameters():
            gradient = gradients.get(name)
            parameter.grad = None if gradient is None else gradient.to(parameter.dtype)

    def call(self, name: str, *args: Any) -> None:
        """Call a hook of callbacks and of the module, and say so if it changes gradients.

        Args:
            name: Of the hook.
            *args: What it is given.
        """
        owners = self.owners[name]
        if not owners:
            return
        before = self._seen()
        calling = module_of(self.package.name, "trainer.call")
        calling._call_callback_hooks(self.trainer, name, *args)
        calling._call_lightning_module_hook(self.trainer, name, *args)
        if not self._has_warned and self._seen() != before:
            self._has_warned = True
            warnings.warn(
                f"The `{name}` hook of `{type(owners[0]).__name__}` changes gradients, which has no effect: on IPUs it "
                "is called when the update has been made. Change the loss, or clip by `gradient_clip_val`.",
                stacklevel=2,
            )

    def _seen(self) -> list[tuple[int, int]]:
        gradients = [parameter.grad for parameter in self.module.parameters()]
        return [(0, 0) if gradient is None else (id(gradient), gradient._version) for gradient in gradients]


class ClippingHook:
    """Finds out what an overridden ``configure_gradient_clipping`` clips by.

    Args:
        trainer: The Trainer.
        module: The Lightning module.
        is_overridden: Whether it has the hook.
    """

    def __init__(self, trainer: Any, module: Any, is_overridden: bool) -> None:
        self.trainer, self.module, self.is_followed = trainer, module, is_overridden

    def limits(self, optimizer: Any) -> Limits | None:
        """Call the hook with a stand-in for ``clip_gradients``; return by what it clips, or None to clip as ever.

        A hook that does more than that is not followed, which is said once.

        Args:
            optimizer: What it is given.
        """
        if not self.is_followed:
            return None
        calls: list[Limits] = []
        trainer, held = self.trainer, self.module.__dict__

        def clip_gradients(
            optimizer: Any, gradient_clip_val: float | None = None, gradient_clip_algorithm: Any = None,
        ) -> None:
            given = trainer.gradient_clip_val if gradient_clip_val is None else gradient_clip_val
            chosen = trainer.gradient_clip_algorithm if gradient_clip_algorithm is None else gradient_clip_algorithm
            limit = float(given) if given is not None and float(given) > 0 else None
            by_value = str(getattr(chosen, "value", chosen)).lower() == "value"
            calls.append((None, limit) if by_value else (limit, None))

        before = [(id(p.grad), p._version) for p in self.module.parameters()]
        held["clip_gradients"] = clip_gradients
        try:
            self.module.configure_gradient_clipping(
                optimizer, gradient_clip_val=trainer.gradient_clip_val,
                gradient_clip_algorithm=trainer.gradient_clip_algorithm,
            )
            is_plain = len(calls) == 1 and before == [(id(p.grad), p._version) for p in self.module.parameters()]
        except Exception:  # it looks at gradients, which are not there
            is_plain = False
        finally:
            del held["clip_gradients"]
        if is_plain:
            return calls[0]
        self.is_followed = False
        warnings.warn(
            f"You have overridden the `configure_gradient_clipping` hook in `{type(self.module).__name__}`, but it "
            "will be ignored: on IPUs the backward pass and the optimizer step are part of one program. One that only "
            "calls `self.clip_gradients` once is followed.", stacklevel=2,
        )
        return None
