"""How near a step comes to what the machine can do, and which of its kernels take longest."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count

from contenders import whole_step
from workloads import Step, Workload

PEAK_SIZE = 1024
"""Of the square matrices whose product by ``torch.mm`` stands for the peak: 12 MiB, 2.1 GFLOP."""
TIMED_CALLS = 5


def peak_step() -> Step:
    """Return the product whose rate is the peak."""
    a, b = (torch.randn(PEAK_SIZE, PEAK_SIZE) for _ in range(2))
    return lambda: torch.mm(a, b)


PEAK_FLOPS = 2 * PEAK_SIZE**3


def _recurrent_flops(x: Any, weight: Any, recurrent: Any, *_: Any, **__: Any) -> int:
    """Return those of one recurrent layer, which torch does not count: two products for each word."""
    words = x[0] * x[1]
    return 2 * words * (weight[0] * weight[1] + recurrent[0] * recurrent[1])


def _recurrent_backward_flops(*shapes: Any, **named: Any) -> int:
    return 2 * _recurrent_flops(*shapes, **named)


def _convolution_backward_flops(
    grad: Any, x: Any, weight: Any, _bias: Any, _stride: Any, _padding: Any, _dilation: Any, transposed: bool,
    _output_padding: Any, _groups: int, output_mask: Any, **_: Any,
) -> int:
    """Return those of a convolution's gradients, each of them as many as forward: torch counts a weight's ungrouped."""
    wanted = sum(map(bool, output_mask[:2]))
    return wanted * int(conv_flop_count(list(x), list(weight), list(grad), transposed=transposed))


COUNTED = {
    torch.ops.aten.convolution_backward: _convolution_backward_flops,
    torch.ops.aten.mkldnn_rnn_layer: _recurrent_flops,
    torch.ops.aten.mkldnn_rnn_layer_backward: _recurrent_backward_flops,
}


def flops_of(step: Step) -> int:
    """Return the floating-point operations of a step of eager PyTorch, in its products and convolutions."""
    with FlopCounterMode(display=False, custom_mapping=COUNTED) as counter:
        step()
    return int(counter.get_total_flops())


def costliest(workload: Workload, num_threads: int, count: int = 3) -> list[tuple[str, float]]:
    """Return which kernels of torchipu's whole step take longest, and their share of the time of all.

    Args:
        workload: A model that torchipu captures whole.
        num_threads: Of the host.
        count: How many.
    """
    step, call = whole_step(workload, num_threads, host_times=True)
    for _ in range(1 + TIMED_CALLS):
        call()
    spent: dict[str, float] = defaultdict(float)
    for timed in step.observed().steps:
        spent[timed.name] += timed.seconds
    total = sum(spent.values())
    first = sorted(spent, key=lambda name: -spent[name])[:count]
    return [(name, spent[name] / total) for name in first]
