"""Elementary functions of the vector vocabulary against float64: every exponent, for both instruction sets."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.kernels.elem_planner import run_op

# How far from the exact value a function may be, in units of the last place of the float nearest to it.
BOUNDS = {
    "exp": 1, "expm1": 2, "exp2": 1, "log": 1, "log1p": 1, "log2": 1, "log10": 1, "sin": 2, "cos": 2, "tanh": 2,
    "sigmoid": 2.5, "erf": 1.5, "sqrt": 0.5, "rsqrt": 2,
}
ISAS = ("avx2", "avx512")
MANTISSAS = 257
TINY = torch.finfo(torch.float32).tiny
OTHERS = (
    "gelu", "silu", "mish", "softplus", "elu", "sinc", "gelu_backward", "silu_backward", "logaddexp", "pow",
)
"""Functions made of those above, some of two arguments."""
RUN = """
import sys, torch
from tests.kernels.test_vector_math import values
torch.save(values(torch.load(sys.argv[1])), sys.argv[2])
"""


def sample() -> torch.Tensor:
    """Return floats of both signs and of all exponents, subnormal ones too, zeros, infinities and NaN, `[n]`."""
    torch.manual_seed(5)
    exponents = torch.arange(255, dtype=torch.int32)[:, None] << 23
    mantissas = torch.randint(0, 1 << 23, (255, MANTISSAS), dtype=torch.int32)
    mantissas[:, :3] = torch.tensor([0, 1, (1 << 23) - 1], dtype=torch.int32)
    sizes = (exponents | mantissas).reshape(-1).view(torch.float32)
    # where exp is neither 0 nor infinite, and where functions pass from one formula to the other
    steps = [torch.linspace(-105, 90, 50_001), torch.linspace(-4, 4, 50_001)]
    # where sine and cosine nearly vanish
    steps.append((torch.arange(-20_000, 20_001, dtype=torch.float64) * (math.pi / 2)).float())
    return torch.cat([sizes, -sizes, *steps, torch.tensor([math.inf, -math.inf, math.nan])])


def values(x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return what all functions give; a second argument is the first in another order."""
    y = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(6))]
    found = {}
    for name in (*BOUNDS, *OTHERS):
        target = "aten.pow.Tensor_Tensor" if name == "pow" else f"aten.{name}.default"
        operands = (x, y) if name.endswith(("_backward", "pow", "logaddexp")) else (x,)
        found[name] = run_op(target, *operands)[0][0]
    return found


@pytest.fixture(scope="module")
def by_isa(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, torch.Tensor]]:
    """Run all functions in processes of their own, since kernels choose their instruction set as they are imported."""
    found = {}
    for isa in ISAS:
        folder: Path = tmp_path_factory.mktemp(isa)
        torch.save(sample(), folder / "x")
        command = [sys.executable, "-c", RUN, str(folder / "x"), str(folder / "y")]
        subprocess.run(command, check=True, env={**os.environ, "TORCHIPU_ISA": isa}, timeout=600)
        found[isa] = torch.load(folder / "y")
    return found


@pytest.fixture(scope="module", params=ISAS)
def results(request: pytest.FixtureRequest, by_isa: dict[str, dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return by_isa[request.param]


@pytest.mark.parametrize("name", [*BOUNDS, *OTHERS])
def test_function_gives_the_same_bits_for_both_instruction_sets(
    by_isa: dict[str, dict[str, torch.Tensor]], name: str,
) -> None:
    first, second = (by_isa[isa][name] for isa in ISAS)
    differs = (first.view(torch.int32) != second.view(torch.int32)) & ~(first.isnan() & second.isnan())
    assert not differs.any(), f"{name}({sample()[differs][:3]}) is {first[differs][:3]} and {second[differs][:3]}"


def flushed(x: torch.Tensor) -> torch.Tensor:
    """Return zeros for subnormal floats, of which the kernels make zeros as an IPU does."""
    return torch.where(x.abs() < TINY, x * 0, x)


def errors_in_ulp(found: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Return the distances from the exact values in units of the last place."""
    return (found.double() - exact).abs() / torch.ldexp(torch.ones_like(exact), torch.frexp(exact).exponent - 24)


@pytest.mark.parametrize("name", BOUNDS)
def test_function_is_within_its_bound_of_float64(results: dict[str, torch.Tensor], name: str) -> None:
    found = results[name]
    exact = getattr(torch, name)(flushed(sample()).double())
    rounded = exact.float()
    normal = rounded.isfinite() & (rounded.abs() >= TINY)
    errors = errors_in_ulp(found, exact)[normal]
    worst = int(errors.argmax())
    assert errors[worst] <= BOUNDS[name], f"{name}({sample()[normal][worst]!r}) is {found[normal][worst]!r}"


@pytest.mark.parametrize("name", BOUNDS)
def test_function_has_the_specials_of_the_exact_one(results: dict[str, torch.Tensor], name: str) -> None:
    """NaN, infinities and zeros are where the exact values, rounded to float, have them, with their signs."""
    found, exact = results[name], getattr(torch, name)(flushed(sample()).double())
    rounded = flushed(exact.float())
    special = ~rounded.isfinite() | (rounded == 0)
    torch.testing.assert_close(flushed(found)[special], rounded[special], rtol=0, atol=0, equal_nan=True)
    assert not found[~special].isnan().any()
    zero = exact == 0
    assert torch.equal(found.signbit()[zero], exact.signbit()[zero])


def test_gelu_is_nearer_to_float64_than_that_of_eager(results: dict[str, torch.Tensor]) -> None:
    """Errors count against the argument: where it is negative, sums of eager cancel as ours do."""
    x = flushed(sample())
    is_normal = x.isfinite() & (x.abs() >= 4 * TINY)  # and the result too
    exact = torch.nn.functional.gelu(x.double())

    def error(found: torch.Tensor) -> float:
        return float(((found.double() - exact).abs() / x.abs())[is_normal].max())

    assert error(results["gelu"]) < 0.5 * error(torch.nn.functional.gelu(x))
    assert error(results["gelu"]) < 1.2e-7


def test_gelu_has_the_specials_of_float64(results: dict[str, torch.Tensor]) -> None:
    exact = torch.nn.functional.gelu(sample()[-3:].double()).float()
    torch.testing.assert_close(results["gelu"][-3:], exact, rtol=0, atol=0, equal_nan=True)
    is_zero = flushed(sample()) == 0
    assert torch.equal(results["gelu"][is_zero].signbit(), sample()[is_zero].signbit())
    assert (results["gelu"][is_zero] == 0).all()
