"""Results in blocks that become halves, with the bits that numpy draws for their places.

Among them are normal and subnormal halves, zeros, and what is beyond the largest half.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.kernels.elem_planner import MiniPlanner
from tests.kernels.test_conv_blocked import blocked, plain
from torchipu._kernels.table.conv_blocked import Activation
from torchipu._kernels.table.round_blocks import HalfOverflow
from torchipu.emulation.drawn import rounded_to_half
from torchipu.host.emit import blocked_layout, pool_blocked
from torchipu.host.emit.conv_blocked import Ending, OpRounding
from torchipu.host.emit.vectors import vector_lanes
from torchipu.optable.host_tensor import Rounding
from torchipu.optable.random_streams import Words

SHAPES = [(2, 16, 1, 8), (1, 17, 5, 7), (3, 40, 1, 3), (1, 5, 13, 1), (2, 33, 6, 6)]
OVERFLOWS = {HalfOverflow.INFINITY: "infinity", HalfOverflow.NAN: "nan", HalfOverflow.SATURATE: "saturate"}
STATE = (1 << 40 | 1234, 3, 7, 2)  # seed, replica, stream, micro-batch


def values(shape: tuple[int, ...], name: str) -> torch.Tensor:
    """Return floats of a kind."""
    torch.manual_seed(11)
    x = torch.randn(shape)
    if name == "normal":
        return x + x.sign() * 1e-3
    if name == "some zeros":
        return torch.where(torch.rand(shape) < 0.3, 0.0 * x, x)
    if name == "subnormal":
        return x * 2.0**-17
    if name == "of all sizes":
        return x * 2.0 ** torch.randint(-28, 18, shape)
    inf = float("inf")
    special = torch.tensor([inf, -inf, float("nan"), 65504.0, -65504.0, 65519.9, 6.1035156e-05, -0.0, 0.0])
    return torch.where(torch.rand(shape) < 0.1, special[torch.randint(len(special), shape)], x)


def judged(x: torch.Tensor, state: tuple[int, ...], overflow: HalfOverflow) -> torch.Tensor:
    """Return what numpy makes of values."""
    words = Words(*state)
    return torch.from_numpy(rounded_to_half(x.numpy().astype(np.float32), words, OVERFLOWS[overflow]))


@pytest.mark.parametrize("overflow", OVERFLOWS)
@pytest.mark.parametrize("name", ["normal", "some zeros", "subnormal", "of all sizes", "special"])
@pytest.mark.parametrize("shape", SHAPES)
def test_results_have_the_bits_of_their_places(shape: tuple[int, ...], name: str, overflow: HalfOverflow) -> None:
    x, other = values(shape, name), values(shape, "normal")
    once = judged(x, STATE, overflow)
    for threads, micro_batch in ((1, STATE[3]), (3, STATE[3]), (1, STATE[3] + 1)):  # of another, no key is shared
        twice = judged(once + other, (*STATE[:2], 9, micro_batch), overflow)
        plan = MiniPlanner(threads)
        states = [plan.hold(torch.tensor(state)) for state in (STATE, (*STATE[:2], 9, micro_batch))]
        first, second = (OpRounding(Rounding(state, overflow)) for state in states)
        out = plan.scratch(blocked_layout.blocked_shape(shape))
        ending = Ending(
            addend=blocked(plan, other), activation=Activation.RELU, rounded=(first, None, second, None),
        )
        pool_blocked.emit_end(plan, shape, out, blocked(plan, x), ending)
        found = plain(plan, out, torch.Size(shape))
        torch.testing.assert_close(found, twice.relu(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("overflow", OVERFLOWS)
@pytest.mark.parametrize("name", ["normal", "some zeros", "subnormal", "of all sizes", "special"])
@pytest.mark.parametrize("activation", [each for each in Activation if each is not Activation.NONE])
def test_what_activations_make_is_rounded(activation: Activation, name: str, overflow: HalfOverflow) -> None:
    shape, second = (2, 33, 3, 5), (*STATE[:2], 9, STATE[3])
    x = values(shape, name) * (1 if name in ("subnormal", "special") else 4)  # zeros of hard gates among them
    # NaN whose bits carry beyond the sign, and one that has few.
    x[0, 0, 0, :2] = torch.tensor([-1, 0x7F800001], dtype=torch.int32).view(torch.float32)
    plan = MiniPlanner(2)
    states = [plan.hold(torch.tensor(state)) for state in (STATE, second)]
    first, last = (OpRounding(Rounding(state, overflow)) for state in states)
    found = []
    for rounded in ((first, None, None, None), (first, None, None, last)):
        out = plan.scratch(blocked_layout.blocked_shape(shape))
        pool_blocked.emit_end(plan, shape, out, blocked(plan, x), Ending(activation=activation, rounded=rounded))
        found.append(plain(plan, out, torch.Size(shape)))
    before, after = found
    torch.testing.assert_close(after, judged(before, second, overflow), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(torch.signbit(after)[~after.isnan()], torch.signbit(before)[~after.isnan()])


@pytest.mark.parametrize("name", ["normal", "some zeros", "of all sizes", "special"])
@pytest.mark.parametrize("rounded_at_random", [(0, 1, 2), (1,), (0, 2), ()])
def test_each_op_draws_where_its_result_has_its_elements(rounded_at_random: tuple[int, ...], name: str) -> None:
    shape = (2, 24, 3, 7)
    x, other = values(shape, name), values(shape, "normal")
    torch.manual_seed(3)
    plan = MiniPlanner(2)
    lanes = vector_lanes()
    first, affine = torch.zeros(2, 2, -(-shape[1] // lanes) * lanes)
    first[1, :shape[1]] = torch.randn(shape[1])
    affine[:, :shape[1]] = torch.randn(2, shape[1])
    words = [(*STATE[:2], stream, STATE[3]) for stream in (5, 6, 7)]
    states = [plan.hold(torch.tensor(state)) if op in rounded_at_random else None for op, state in enumerate(words)]
    ops = [OpRounding(Rounding(state), has_channels_last=op == 1) for op, state in enumerate(states)]
    out = plan.scratch(blocked_layout.blocked_shape(shape))
    ending = Ending(affine=(plan.hold(first), plan.hold(affine)), addend=blocked(plan, other), rounded=(*ops, None))
    pool_blocked.emit_end(plan, shape, out, blocked(plan, x), ending)
    scale, shift = (each[:shape[1], None, None].double() for each in affine)
    expected = x + first[1, :shape[1], None, None]
    for op, state in enumerate(words):
        if op == 1:
            expected = (expected.double() * scale + shift).float()
        elif op == 2:
            expected = expected + other
        if op not in rounded_at_random:
            expected = expected.half().float()
        elif op == 1:  # its elements are numbered with the channels last
            expected = judged(expected.movedim(1, -1).contiguous(), state, HalfOverflow.INFINITY).movedim(-1, 1)
        else:
            expected = judged(expected.contiguous(), state, HalfOverflow.INFINITY)
    torch.testing.assert_close(plain(plan, out, torch.Size(shape)), expected, rtol=0, atol=0, equal_nan=True)
