"""Random values: published Philox answers, distributions, and independence of threads."""

from __future__ import annotations

import math

import pytest
import torch

from tests.kernels.elem_planner import MiniPlanner, run_op
from torchipu._kernels.abi import philox, run_kernel
from torchipu._kernels.table.random import RANDOM_WORDS, RandomInts

N = 400_003


@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_answers(
    counter: tuple[int, ...], key: tuple[int, ...], answer: tuple[int, ...]
) -> None:
    assert philox(counter, key) == answer


def test_element_is_a_function_of_seed_replica_op_and_micro_batch() -> None:
    seed, replica, op, micro_batch = 0x123456789ABCDEF, 3, 17, 5
    state = torch.tensor([seed, replica, op, micro_batch])
    out = torch.empty(200, dtype=torch.int32)
    run_kernel(RANDOM_WORDS, [out.data_ptr(), state.data_ptr()], RandomInts(200), items=4)
    for element in (0, 1, 15, 16, 63, 64, 130, 199):
        item, inside = divmod(element, 64)
        word, lane = divmod(inside, 16)
        block = philox((16 * item + lane, micro_batch, op, replica), (seed & 0xFFFFFFFF, seed >> 32))
        assert int(out[element]) & 0xFFFFFFFF == block[word]


def draw(
    target: str, *args: object, state: tuple[int, int, int, int] = (1234, 0, 7, 0), **kwargs: object
) -> tuple[torch.Tensor, ...]:
    """Run a random op for 1, 2 and 4 threads, which must agree."""
    results = []
    for threads in (1, 2, 4):
        planner = MiniPlanner(threads)
        planner.random = torch.tensor(state)
        results.append(run_op(f"aten.{target}", *args, planner=planner, **kwargs)[0])
    assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other, strict=True))
    return results[0]


def assert_mean(values: torch.Tensor, mean: float, deviation: float) -> None:
    """Five standard errors: one test in two million would fail by chance; the seed is fixed anyway."""
    assert abs(values.double().mean().item() - mean) < 5 * deviation / math.sqrt(values.numel())


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_keeps_the_right_share_scales_it_and_says_which(p: float) -> None:
    x = torch.randn(N)
    out, mask = draw("native_dropout.default", x, p, True)
    assert_mean(mask, 1 - p, math.sqrt(p * (1 - p)))
    torch.testing.assert_close(out, x * mask / (1 - p))


def test_dropout_at_its_limits() -> None:
    x = torch.randn(77)
    out, mask = draw("native_dropout.default", x, 0.0, True)
    assert torch.equal(out, x)
    assert mask.all()
    out, mask = draw("native_dropout.default", x, 1.0, True)
    assert not out.any()
    assert not mask.any()
    out, mask = draw("native_dropout.default", x, 0.5, False)
    assert torch.equal(out, x)
    assert mask.all()
    (half,) = draw("dropout.default", x.half(), 0.5, True)
    assert half.dtype is torch.float16
    assert set((half / x.half()).tolist()) == {0.0, 2.0}


def test_uniform_has_the_moments_of_its_distribution() -> None:
    (u,) = draw("rand.default", [N])
    assert u.min() >= 0
    assert u.max() < 1
    assert_mean(u, 0.5, math.sqrt(1 / 12))
    assert_mean((u.double() - 0.5) ** 2, 1 / 12, math.sqrt(1 / 180))
    counts = torch.histc(u, 100, 0, 1)
    chi_squared = ((counts - N / 100) ** 2 / (N / 100)).sum()
    assert abs(chi_squared - 99) < 5 * math.sqrt(2 * 99)
    (v,) = draw("uniform.default", torch.empty(N), -2.0, 3.0)
    assert_mean(v, 0.5, 5 * math.sqrt(1 / 12))


def test_normal_has_the_moments_and_the_tails_of_its_distribution() -> None:
    (z,) = draw("randn.default", [N])
    assert_mean(z, 0, 1)
    assert_mean(z.double() ** 2, 1, math.sqrt(2))
    assert_mean(z.double() ** 3, 0, math.sqrt(15))
    assert_mean(z.double() ** 4, 3, math.sqrt(96))
    assert_mean((z.abs() > 3).float(), math.erfc(3 / math.sqrt(2)), math.sqrt(0.0027))
    pairs = z[: N // 64 * 64].view(-1, 2, 2, 16)
    assert_mean(pairs[:, :, 0] * pairs[:, :, 1], 0, 1)  # cosine and sine of one angle
    assert_mean(z[:-1] * z[1:], 0, 1)
    (w,) = draw("normal_functional.default", torch.empty(N), 2.0, 3.0)
    assert_mean(w, 2, 3)


def test_bernoulli_and_integers_have_the_right_frequencies() -> None:
    (b,) = draw("bernoulli.p", torch.empty(N), 0.25)
    assert set(b.tolist()) == {0.0, 1.0}
    assert_mean(b, 0.25, math.sqrt(0.25 * 0.75))
    p = torch.linspace(0, 1, N)
    (c,) = draw("bernoulli.default", p)
    assert_mean(c - p, 0, math.sqrt(1 / 6))
    (i,) = draw("randint.low", -3, 7, [N])
    assert i.dtype is torch.int64
    assert i.min() == -3
    assert i.max() == 6
    assert_mean(i, 1.5, math.sqrt(99 / 12))


def test_streams_of_other_seeds_replicas_ops_and_micro_batches_are_independent() -> None:
    (base,) = draw("randn.default", [10_000])
    for state in ((1235, 0, 7, 0), (1234, 1, 7, 0), (1234, 0, 8, 0), (1234, 0, 7, 1), (1234 + (1 << 32), 0, 7, 0)):
        (other,) = draw("randn.default", [10_000], state=state)
        assert abs(float((base * other).mean())) < 0.05


def test_empty_and_odd_sizes_are_filled() -> None:
    for shape in ([0], [1], [63], [65], [3, 0, 2], [7, 11]):
        (z,) = draw("randn.default", shape)
        assert list(z.shape) == shape
        assert z.unique().numel() == z.numel()
