"""Metrics that Lightning has taken once: further values of theirs go where ``self.log`` would bring them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

POSITIONAL = 1
"""Arguments of ``log`` behind the value that may be given by position without being looked at."""


@dataclass(frozen=True, slots=True)
class KnownMetric:
    """A metric in Lightning's collection of results.

    Attributes:
        results: The collection; each epoch and each stage may have its own.
        metric: The metric in it.
        key: Its key there.
        hook: Name of the hook in which it was logged.
    """

    results: Any
    metric: Any
    key: str
    hook: str

    def take(self, module: Any, value: Any, batch_size: int | None) -> bool:
        """Log another value; return whether that could be done.

        Args:
            module: The Lightning module.
            value: A tensor of one element on the host, or anything that ``log`` has to look at.
            batch_size: As given to ``log``.
        """
        trainer = module._trainer
        connector, results = trainer._logger_connector, self.results
        if (
            type(value) is not torch.Tensor or value.numel() != 1 or trainer._results is not results
            or module._current_fx_name != self.hook or connector._current_fx != self.hook
            or results.dataloader_idx is not None or results.get(self.key) is not self.metric
        ):
            return False
        metric = self.metric
        size = results._extract_batch_size(metric, batch_size, metric.meta)
        metric.forward(value.detach().squeeze(), size)
        metric.has_reset = False
        return True


def known_metric(
    module: Any, name: str, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any],
) -> KnownMetric | None:
    """Return what is known of a metric that has just been logged; None where each call has to be looked at.

    Args:
        module: The Lightning module.
        name: Of the metric.
        value: What was logged.
        args: Further arguments of ``log``.
        kwargs: Those given by name.
    """
    trainer, hook = module._trainer, module._current_fx_name
    results = None if trainer is None else trainer._results
    is_own = "log" in module.__dict__ or type(module).log.__module__.partition(".")[0] not in _PACKAGES
    if results is None or is_own or type(value) is not torch.Tensor or len(args) > POSITIONAL:
        return None
    key = f"{hook}.{name}"
    metric = results.get(key)
    if metric is None or not metric.is_tensor or kwargs.get("enable_graph"):
        return None
    return KnownMetric(results, metric, key, hook)


_PACKAGES = ("lightning", "pytorch_lightning")
