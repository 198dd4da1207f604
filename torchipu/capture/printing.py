"""An operator that prints a tensor when the program runs, and its gradient in the backward."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import library
from torch.fx.node import has_side_effect

FORMATS = ("auto", "fixed", "scientific", "none")


@dataclass(frozen=True, slots=True)
class Layout:
    """How a tensor is written.

    Attributes:
        summarise_threshold: Tensors of more elements are shortened.
        edge_items: Elements at either end of a dimension of a shortened tensor.
        max_line_width: Characters of a line.
        digits: Digits behind the point.
        float_format: One of `FORMATS`: as suits the values, always fixed, always scientific, or all that there are.
        separator: Between elements.
        open_bracket: Before the elements of a dimension.
        close_bracket: Behind them.
    """

    summarise_threshold: int = 1000
    edge_items: int = 3
    max_line_width: int = 80
    digits: int = 4
    float_format: str = "auto"
    separator: str = ", "
    open_bracket: str = "("
    close_bracket: str = ")"

    def text(self, tensor: torch.Tensor, title: str) -> str:
        """Return a tensor as text.

        Args:
            tensor: On the host.
            title: What it begins with.
        """
        values = tensor.detach().cpu().numpy()
        written = np.array2string(
            values, max_line_width=self.max_line_width, precision=self.digits, separator=self.separator,
            prefix=f"{title}: ", threshold=self.summarise_threshold, edgeitems=self.edge_items, floatmode="fixed",
            formatter=self._formatter(),
        )
        # Brackets are put in last: no number holds one, and numpy knows its own alone.
        brackets = {ord("["): self.open_bracket, ord("]"): self.close_bracket}
        return f"{title}: {written.translate(brackets)}"

    def _formatter(self) -> Any:
        formats: dict[str, Callable[[Any], str]] = {
            "fixed": lambda value: f"{value:.{self.digits}f}",
            "scientific": lambda value: f"{value:.{self.digits}e}",
            "none": str,
        }
        chosen = formats.get(self.float_format)
        return None if chosen is None else {"float_kind": chosen}


library.define("torchipu::print_tensor", "(Tensor self, str title, str gradient_title, str style) -> Tensor")
PRINT = torch.ops.torchipu.print_tensor.default
has_side_effect(PRINT)


@library.impl("torchipu::print_tensor", "CompositeExplicitAutograd")
def _print(value: torch.Tensor, title: str, gradient_title: str, style: str) -> torch.Tensor:
    print(Layout(**json.loads(style)).text(value, title), file=sys.stderr, flush=True)
    return value.clone()  # a result of an operator of torch's may not share its argument's storage


@library.register_fake("torchipu::print_tensor")  # type: ignore[untyped-decorator]
def _like(value: torch.Tensor, title: str, gradient_title: str, style: str) -> torch.Tensor:
    return torch.empty_like(value)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    _, _, ctx.title, ctx.style = inputs


def _print_gradient(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
    if context.title:
        gradient = torch.ops.torchipu.print_tensor(gradient, context.title, "", context.style)
    return gradient, None, None, None


library.register_autograd("torchipu::print_tensor", _print_gradient, setup_context=_remember)


def print_tensor(value: torch.Tensor, title: str, gradient_title: str, layout: Layout) -> torch.Tensor:
    """Print a tensor each time that the program comes here.

    Args:
        value: The tensor.
        title: Stands before it.
        gradient_title: Stands before its gradient; empty to print none.
        layout: How they are written.

    Returns:
        The same value.
    """
    result: torch.Tensor = torch.ops.torchipu.print_tensor(value, title, gradient_title, json.dumps(asdict(layout)))
    return result
