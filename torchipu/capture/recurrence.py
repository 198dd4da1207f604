"""Recurrent layers as one op for each layer and direction, in place of torch's unrolling of the time steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, library

STEPS: dict[str, int] = {"tanh": 1, "relu": 1, "lstm": 4, "gru": 3}
"""Gates of each cell."""
KEPT: dict[str, int] = {"tanh": 0, "relu": 0, "lstm": 5, "gru": 4}
"""Values of each unit that the backward needs: for LSTM gates i, f, g, o and the cell, for GRU r, z, n and the
recurrent half of n."""

_FORWARD = (
    "(Tensor projected, Tensor h0, Tensor? c0, Tensor weight, Tensor? bias, Tensor? projection, str cell, bool reverse)"
    " -> (Tensor, Tensor, Tensor)"
)
_BACKWARD = (
    "(Tensor grad_outputs, Tensor grad_cell, Tensor kept, Tensor outputs, Tensor h0, Tensor? c0, Tensor weight,"
    " Tensor? projection, str cell, bool reverse) -> (Tensor, Tensor, Tensor, Tensor)"
)


# --------------------------------------------------------------------------- what the ops mean
def unrolled(
    projected: Tensor, h0: Tensor, c0: Tensor | None, weight: Tensor, bias: Tensor | None, projection: Tensor | None,
    cell: str, reverse: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run a layer over time.

    Args:
        projected: Products of the inputs with their weights, biases added, ``[T, B, gates]``.
        h0: State before the first step, ``[B, P]``.
        c0: Cell before the first step, ``[B, H]``; LSTM only.
        weight: Recurrent weights, ``[gates, P]``.
        bias: Recurrent bias, ``[gates]``; GRU only, where it is not simply added to the input's.
        projection: Weights of the projection, ``[P, H]``, or None.
        cell: ``tanh``, ``relu``, ``lstm`` or ``gru``.
        reverse: Whether to run from the last step to the first.

    Returns:
        States ``[T, B, P]``, the last cell ``[B, H]`` (``[B, 0]`` without one), and what the backward needs.
    """
    h, c = h0, c0
    states, kept = [], []
    steps = projected.flip(0) if reverse else projected
    for x in steps:
        recurrent = F.linear(h, weight, bias)
        if cell == "lstm":
            assert c is not None
            i, f, g, o = (x + recurrent).chunk(4, 1)
            i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
            c = f * c + i * g
            h = o * c.tanh()
            kept.append(torch.cat([i, f, g, o, c], 1))
        elif cell == "gru":
            (xr, xz, xn), (hr, hz, hn) = x.chunk(3, 1), recurrent.chunk(3, 1)
            r, z = (xr + hr).sigmoid(), (xz + hz).sigmoid()
            n = (xn + r * hn).tanh()
            h = n + z * (h - n)
            kept.append(torch.cat([r, z, n, hn], 1))
        else:
            h = torch.tanh(x + recurrent) if cell == "tanh" else torch.relu(x + recurrent)
            kept.append(x[:, :0])
        h = h if projection is None else F.linear(h, projection)
        states.append(h)
    order = slice(None, None, -1) if reverse else slice(None)
    last = projected.new_empty(h0.shape[0], 0) if c is None else c.clone()
    return torch.stack(states[order]), last, torch.stack(kept[order])


recurrence = library.custom_op("ipu::recurrence", unrolled, mutates_args=(), schema=_FORWARD)


def unrolled_backward(
    grad_outputs: Tensor, grad_cell: Tensor, kept: Tensor, outputs: Tensor, h0: Tensor, c0: Tensor | None,
    weight: Tensor, projection: Tensor | None, cell: str, reverse: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Run a layer backwards.

    Returns:
        Gradients of ``projected``; of its recurrent half (GRU), or of all states (with a projection), or nothing
        ``[T, B, 0]``; of ``h0``; of ``c0``.
    """
    hidden = weight.shape[0] // STEPS[cell]
    turned = (lambda t: t.flip(0)) if reverse else (lambda t: t)
    before = torch.cat([h0[None], turned(outputs)[:-1]])
    dh, dc, gates, inner = torch.zeros_like(h0), grad_cell, [], []
    cells = turned(kept)[..., 4 * hidden :] if cell == "lstm" else kept
    steps = list(zip(turned(grad_outputs), turned(outputs), turned(kept), before, strict=True))
    for t in range(len(steps) - 1, -1, -1):
        dy, y, k, previous = steps[t]
        dh = total = dh + dy
        direct = None
        full = total if projection is None else total @ projection
        if cell == "lstm":
            assert c0 is not None
            i, f, g, o, c = k.split(hidden, 1)
            dc = dc + full * o * (1 - c.tanh() ** 2)
            c_before = cells[t - 1] if t else c0
            d = torch.cat([
                dc * g * i * (1 - i), dc * c_before * f * (1 - f), dc * i * (1 - g * g), full * c.tanh() * o * (1 - o),
            ], 1)
            dc, recurrent = dc * f, d
        elif cell == "gru":
            r, z, n, hn = k.split(hidden, 1)
            dn = full * (1 - z) * (1 - n * n)
            dr, dz = dn * hn * r * (1 - r), full * (previous - n) * z * (1 - z)
            d, recurrent, direct = torch.cat([dr, dz, dn], 1), torch.cat([dr, dz, dn * r], 1), full * z
        else:
            d = recurrent = full * (1 - y * y) if cell == "tanh" else full * (y > 0)
        dh = recurrent @ weight if direct is None else recurrent @ weight + direct
        gates.append(d)
        inner.append(recurrent if cell == "gru" else total if projection is not None else total[:, :0])
    gates, inner = ([*values] if reverse else values[::-1] for values in (gates, inner))
    return torch.stack(gates), torch.stack(inner), dh.clone(), dc.clone()


recurrence_backward = library.custom_op(
    "ipu::recurrence_backward", unrolled_backward, mutates_args=(), schema=_BACKWARD,
)


@recurrence.register_fake
def _(
    projected: Tensor, h0: Tensor, c0: Tensor | None, weight: Tensor, bias: Tensor | None, projection: Tensor | None,
    cell: str, reverse: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    time, batch = projected.shape[:2]
    hidden = weight.shape[0] // STEPS[cell]
    last = projected.new_empty(batch, hidden if cell == "lstm" else 0)
    return projected.new_empty(time, batch, h0.shape[1]), last, projected.new_empty(time, batch, KEPT[cell] * hidden)


@recurrence_backward.register_fake
def _(
    grad_outputs: Tensor, grad_cell: Tensor, kept: Tensor, outputs: Tensor, h0: Tensor, c0: Tensor | None,
    weight: Tensor, projection: Tensor | None, cell: str, reverse: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    time, batch, state = outputs.shape
    gates = outputs.new_empty(time, batch, weight.shape[0])
    width = weight.shape[0] if cell == "gru" else 0 if projection is None else state
    return gates, outputs.new_empty(time, batch, width), torch.empty_like(h0), torch.empty_like(grad_cell)


# --------------------------------------------------------------------------- gradient
def _gradients(
    function: Callable[..., tuple[Tensor, ...]], tensors: Sequence[Tensor | None], settings: Sequence[object],
    gradients: Sequence[Tensor | None],
) -> tuple[Tensor | None, ...]:
    """Return gradients by operands through a function of torch's operators, step by step.

    Args:
        function: Takes the operands and the settings.
        tensors: Operands, or None.
        settings: What else it takes.
        gradients: Of its results, or None.
    """
    with torch.enable_grad():
        leaves = [None if one is None else one.detach().requires_grad_() for one in tensors]
        results = function(*leaves, *settings)
        pairs = [
            (result, gradient) for result, gradient in zip(results, gradients, strict=True)
            if gradient is not None and result.requires_grad
        ]
        found = iter(torch.autograd.grad(
            [result for result, _ in pairs], [one for one in leaves if one is not None],
            [gradient for _, gradient in pairs], allow_unused=True,
        ))
    return tuple(None if one is None else next(found) for one in leaves)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    projected, h0, c0, weight, bias, projection, ctx.cell, ctx.reverse = inputs
    outputs, _, kept = output
    ctx.set_materialize_grads(False)  # what is kept has a gradient in second derivatives alone
    ctx.save_for_backward(kept, outputs, h0, c0, weight, projection, projected, bias)


def _backward(
    ctx: Any, grad_outputs: Tensor | None, grad_cell: Tensor | None, grad_kept: Tensor | None,
) -> tuple[Any, ...]:
    kept, outputs, h0, c0, weight, projection, projected, bias = ctx.saved_tensors
    cell, reverse = ctx.cell, ctx.reverse
    if grad_kept is not None:  # a gradient of a gradient, which was made of what is kept
        operands = (projected, h0, c0, weight, bias, projection)
        found = _gradients(unrolled, operands, (cell, reverse), (grad_outputs, grad_cell, grad_kept))
        return (*found, None, None)
    hidden = weight.shape[0] // STEPS[cell]
    grad_outputs = torch.zeros_like(outputs) if grad_outputs is None else grad_outputs
    if grad_cell is None:
        grad_cell = outputs.new_zeros(outputs.shape[1], hidden if cell == "lstm" else 0)
    gates, inner, dh0, dc0 = torch.ops.ipu.recurrence_backward(
        grad_outputs, grad_cell, kept, outputs, h0, c0, weight, projection, cell, reverse,
    )
    recurrent = (inner if cell == "gru" else gates).flatten(0, 1)
    ends = (outputs[1:], h0[None]) if reverse else (h0[None], outputs[:-1])
    dweight = recurrent.t() @ torch.cat(ends).flatten(0, 1)
    dbias = recurrent.sum(0) if bias is not None else None
    dprojection = None
    if projection is not None:
        full = kept[..., 3 * hidden : 4 * hidden] * kept[..., 4 * hidden :].tanh()
        dprojection = inner.flatten(0, 1).t() @ full.flatten(0, 1)
    return gates, dh0, dc0 if cell == "lstm" else None, dweight, dbias, dprojection, None, None


def _setup_second(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.cell, ctx.reverse = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors)


def _second(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
    found = _gradients(unrolled_backward, ctx.saved_tensors, (ctx.cell, ctx.reverse), gradients)
    return (*found, None, None)


recurrence.register_autograd(_backward, setup_context=_setup)
recurrence_backward.register_autograd(_second, setup_context=_setup_second)


# --------------------------------------------------------------------------- layers
def _run(
    cell: str, x: Tensor, h0: Tensor, c0: Tensor | None, weights: Sequence[Tensor], biased: bool, reverse: bool,
) -> Any:
    """Run one layer in one direction; the weights come in torch's order."""
    w_ih, w_hh, *rest = weights
    b_ih, b_hh = (rest[0], rest[1]) if biased else (None, None)
    projection = rest[-1] if len(rest) % 2 else None
    added = b_ih if cell == "gru" or not biased else b_ih + b_hh  # type: ignore[operator]
    # All steps are rows of one product, which takes the bias along however the sequence lies.
    projected = F.linear(x.flatten(0, 1), w_ih, added).unflatten(0, x.shape[:2])
    if cell == "gru":  # the state keeps its type, which autocast makes narrower within a step alone
        projected = projected.to(torch.promote_types(projected.dtype, h0.dtype))
    # Transformations of torch.func are of torch's operators.
    is_transformed = torch._C._are_functorch_transforms_active()
    outputs, cell_state, _ = (unrolled if is_transformed else torch.ops.ipu.recurrence)(
        projected, h0, c0, w_hh, b_hh if cell == "gru" else None, projection, cell, reverse,
    )
    return outputs, outputs[0] if reverse else outputs[-1], cell_state


def _stack(
    cell: str, x: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor], biased: bool, num_layers: int,
    dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Run all layers; returns the outputs, and the last state and cell of each layer and direction."""
    directions = 2 if bidirectional else 1
    each = len(weights) // (num_layers * directions)
    x = x.transpose(0, 1) if batch_first else x
    last: list[Tensor] = []
    cells: list[Tensor] = []
    for layer in range(num_layers):
        results = []
        for direction in range(directions):
            number = layer * directions + direction
            c0 = states[1][number] if cell == "lstm" else None
            mine = weights[number * each : (number + 1) * each]
            outputs, h, c = _run(cell, x, states[0][number], c0, mine, biased, direction == 1)
            results.append(outputs)
            last.append(h)
            cells.append(c)
        x = torch.cat(results, -1) if bidirectional else results[0]
        if dropout and train and layer < num_layers - 1:
            x = F.dropout(x, dropout)
    return (x.transpose(0, 1) if batch_first else x), last, cells


def lstm(x: Tensor, hx: Sequence[Tensor], params: Sequence[Tensor], *settings: Any) -> Any:
    """Stand in for ``torch.lstm`` over padded inputs."""
    outputs, last, cells = _stack("lstm", x, hx, params, *settings)
    return outputs, torch.stack(last), torch.stack(cells)


def _single_state(cell: str) -> Callable[..., Any]:
    def layers(x: Tensor, hx: Tensor, params: Sequence[Tensor], *settings: Any) -> Any:
        outputs, last, _ = _stack(cell, x, [hx], params, *settings)
        return outputs, torch.stack(last)

    return layers


gru, rnn_tanh, rnn_relu = (_single_state(cell) for cell in ("gru", "tanh", "relu"))
