"""Softmax kernels against float64 and eager mode."""

import pytest
import torch

from tests.kernels.record_runner import run_record

aten = torch.ops.aten
INF = float("inf")
SHAPES = [((5, 7), 1), ((3, 1), 1), ((2, 130), -1), ((7, 5), 0), ((2, 9, 40), 1), ((4, 3, 2, 2), 1), ((), 0), ((6,), 0),
          ((200, 128), 1), ((9, 300), 0), ((2, 5, 131), 1)]  # the last two: more columns than a block has


def normal(*shape):
    return 3 * torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


@pytest.mark.parametrize(("shape", "dim"), SHAPES)
@pytest.mark.parametrize("name", ["_softmax", "_log_softmax"])
def test_forward_and_gradient_agree_with_float64(shape, dim, name):
    x, dy = normal(*shape), normal(*shape) + 0.3
    attrs = {"dim": dim, "half_to_float": False}
    wanted = getattr(aten, name)(x.double(), dim, False)
    found, = run_record(f"aten.{name}.default", {"self": x}, attrs, [x])
    torch.testing.assert_close(found.double(), wanted, rtol=2e-6, atol=2e-6)
    wanted_grad = getattr(aten, f"{name}_backward_data")(dy.double(), wanted, dim, torch.float64)
    grad, = run_record(f"aten.{name}_backward_data.default", {"grad_output": dy, "output": found},
                       {"dim": dim, "input_dtype": None}, [x])
    torch.testing.assert_close(grad.double(), wanted_grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("name", ["_softmax", "_log_softmax", "_safe_softmax"])
def test_extremes_come_out_as_in_eager_mode(dim, name):
    nan = float("nan")
    rows = torch.tensor([[1.0, 2, 3], [-INF, 0, 1], [-INF, -INF, -INF], [INF, 0, 0], [nan, 0, 0], [nan, -INF, -INF],
                         [1e38, -1e38, 0], [-INF, nan, -INF], [3e38, 3e38, 3e38]])
    x = (rows if dim == 1 else rows.T).contiguous()
    wanted = getattr(aten, name)(x, dim, None if name == "_safe_softmax" else False)
    found, = run_record(f"aten.{name}.default", {"self": x}, {"dim": dim}, [x])
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-7, equal_nan=True)


@pytest.mark.parametrize(("shape", "dim"), [((400, 65), 1), ((400, 65), 0), ((8, 33, 100), 1)])
@pytest.mark.parametrize("name", ["_softmax", "_log_softmax"])
def test_bits_do_not_depend_on_threads(shape, dim, name):
    x = normal(*shape)
    runs = [run_record(f"aten.{name}.default", {"self": x}, {"dim": dim}, [x], threads)[0] for threads in (1, 2, 4)]
    assert torch.equal(runs[0], runs[1])
    assert torch.equal(runs[0], runs[2])


@pytest.mark.parametrize("shape", [(9, 30), (5, 16), (3, 1), (4, 203)])
@pytest.mark.parametrize("name", ["_softmax", "_log_softmax", "_safe_softmax"])
def test_halves_are_computed_in_float_and_rounded_once(shape, name):
    x, dy = normal(*shape).half(), normal(*shape).half()
    attrs = {"dim": 1} if name == "_safe_softmax" else {"dim": 1, "half_to_float": False}
    wanted = getattr(aten, name)(x.double(), 1, *([] if name == "_safe_softmax" else [False]))
    for threads in (1, 3):
        found, = run_record(f"aten.{name}.default", {"self": x}, attrs, [x], threads)
        torch.testing.assert_close(found, wanted.half(), rtol=1e-3, atol=1e-6)
        if name == "_safe_softmax":
            continue
        exact = getattr(aten, f"{name}_backward_data")(dy.double(), found.double(), 1, torch.float64)
        grad, = run_record(f"aten.{name}_backward_data.default", {"grad_output": dy, "output": found},
                           {"dim": 1, "input_dtype": None}, [x], threads)
        torch.testing.assert_close(grad, exact.half(), rtol=2e-3, atol=2e-5)


def test_exponential_is_within_two_units_in_the_last_place_over_its_range():
    x = torch.cat([torch.zeros(1), torch.linspace(-86, 0, 100_001)])[None]
    dy = torch.zeros_like(x)
    dy[0, 0] = -1.0
    # dx = dy - exp(y) sum(dy): beyond the first element, the exponential itself
    found, = run_record("aten._log_softmax_backward_data.default", {"grad_output": dy, "output": x}, {"dim": 1}, [x])
    wanted = x[0, 1:].double().exp()
    assert ((found[0, 1:].double() - wanted).abs() / wanted).max() < 2.4e-7
