"""Normalisation kernels against float64."""

import pytest
import torch

from tests.kernels.elem_planner import MiniPlanner
from tests.kernels.record_runner import run_record
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.ops.norm import emit_batch_norm

aten = torch.ops.aten


def normal(*shape, offset=0.0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape) + 1)) + offset


def as_double(values):
    return [v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for v in values]


def assert_near(found, wanted, scale=1.0):
    for f, w in zip(found, wanted, strict=True):
        torch.testing.assert_close(f.double(), w.double(), rtol=2e-5 * scale, atol=2e-5 * scale)


@pytest.mark.parametrize("rows", [1, 5, 300])
@pytest.mark.parametrize("width", [1, 7, 64, 129])
@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm_agrees_with_float64(rows, width, affine):
    x, dy = normal(rows, width), normal(rows, width, offset=0.1)
    w, b = (normal(width, offset=1.0), normal(width)) if affine else (None, None)
    wanted = aten.native_layer_norm(*as_double([x, [width], w, b]), 1e-3)
    operands = {"input": x} | ({"weight": w, "bias": b} if affine else {})
    attrs = {"normalized_shape": [width], "eps": 1e-3}
    found = run_record("aten.native_layer_norm.default", operands, attrs, [(v.shape, x.dtype) for v in wanted])
    assert_near(found, wanted)
    mask = [True, affine, affine]
    wanted_grad = aten.native_layer_norm_backward(*as_double([dy, x, [width], wanted[1], wanted[2], w, b]), mask)
    operands = {"grad_out": dy, "input": x, "mean": found[1], "rstd": found[2]} | (
        {"weight": w, "bias": b} if affine else {})
    present = [v for v in wanted_grad if v is not None]
    extra = {} if affine else {"present": (True, False, False)}
    grads = run_record("aten.native_layer_norm_backward.default", operands, attrs | extra,
                       [(v.shape, x.dtype) for v in present])
    assert_near(grads, present, 5.0)


@pytest.mark.parametrize("affine", [True, False])
def test_what_a_layer_norm_gradient_has_in_common_leaves_nothing(affine):
    x, dy = normal(64, 9) / 100 + 3.0, normal(9, 64, 1)[..., 0].T.cumsum(1) / 100 + 5.0
    w = torch.full((9,), 0.7) if affine else None
    _, mean, rstd = aten.native_layer_norm(x, [9], w, None, 1e-8)
    exact = aten.native_layer_norm(*as_double([x, [9], w]), None, 1e-8)
    (wanted, _, _) = aten.native_layer_norm_backward(
        *as_double([dy, x, [9], exact[1], exact[2], w]), None, [True, affine, False],
    )
    operands = {"grad_out": dy, "input": x, "mean": mean, "rstd": rstd} | ({"weight": w} if affine else {})
    extra = {"present": (True, affine, False)}
    results = [x, w] if affine else [x]
    found, *_ = run_record(
        "aten.native_layer_norm_backward.default", operands, {"normalized_shape": [9], **extra}, results,
    )
    # Eager PyTorch is off by some hundredths: the mean is rounded, by 2e-5 of how far the elements are apart.
    assert (found.double() - wanted).abs().max() < 1e-3 * wanted.abs().max()


def test_layer_norm_of_halves_computes_in_float():
    x, w = normal(5, 40).half(), normal(40).half()
    wanted = aten.native_layer_norm(x.double(), [40], w.double(), None, 1e-5)
    found = run_record("aten.native_layer_norm.default", {"input": x, "weight": w},
                       {"normalized_shape": [40], "eps": 1e-5}, [x, ((5, 1), torch.float16), ((5, 1), torch.float16)])
    torch.testing.assert_close(found[0], wanted[0].half(), rtol=2e-3, atol=1e-3)


def test_variance_survives_a_large_mean():
    x = normal(3, 5000, offset=3000.0)
    wanted = aten.native_layer_norm(x.double(), [5000], None, None, 1e-5)
    found = run_record("aten.native_layer_norm.default", {"input": x}, {"normalized_shape": [5000], "eps": 1e-5},
                       [(v.shape, x.dtype) for v in wanted])
    torch.testing.assert_close(found[2].double(), wanted[2], rtol=1e-5, atol=0)


@pytest.mark.parametrize(("n", "c", "p", "groups"), [(2, 6, 5, 3), (1, 4, 1, 2), (3, 8, 49, 1), (2, 4, 20000, 2)])
@pytest.mark.parametrize("affine", [True, False])
def test_group_norm_agrees_with_float64(n, c, p, groups, affine):
    x, dy = normal(n, c, p), normal(n, c, p, offset=0.2)
    w, b = (normal(c, offset=1.0), normal(c)) if affine else (None, None)
    attrs = {"N": n, "C": c, "HxW": p, "group": groups, "eps": 1e-5}
    wanted = aten.native_group_norm(*as_double([x, w, b]), n, c, p, groups, 1e-5)
    operands = {"input": x} | ({"weight": w, "bias": b} if affine else {})
    found = run_record("aten.native_group_norm.default", operands, attrs, [(v.shape, x.dtype) for v in wanted])
    assert_near(found, wanted)
    wanted_grad = aten.native_group_norm_backward(
        *as_double([dy, x, wanted[1], wanted[2], w]), n, c, p, groups, [True, affine, affine])
    present = [v for v in wanted_grad if v is not None]
    operands = {"grad_out": dy, "input": x, "mean": found[1], "rstd": found[2]} | ({"weight": w} if affine else {})
    extra = {} if affine else {"present": (True, False, False)}
    grads = run_record("aten.native_group_norm_backward.default", operands, attrs | extra,
                       [(v.shape, x.dtype) for v in present])
    assert_near(grads, present, 20.0)


BATCHES = [(2, 3, 5), (4, 7, 1), (300, 70, 1), (7, 517, 1), (8, 40, 49), (2, 3, 20000), (5, 2, 4096), (3, 33, 300)]


@pytest.mark.parametrize(("n", "c", "p"), BATCHES)
@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_training_agrees_with_float64(n, c, p, affine):
    x, dy = normal(n, c, p, offset=2.0), normal(n, c, p, offset=0.2)
    w, b = (normal(c, offset=1.0), normal(c)) if affine else (None, None)
    mean, var = normal(c), normal(c).abs() + 0.5
    affinity = {"weight": w, "bias": b} if affine else {}
    wanted = aten._native_batch_norm_legit_functional(*as_double([x, w, b, mean, var]), True, 0.1, 1e-5)
    attrs = {"training": True, "momentum": 0.1, "eps": 1e-5}
    found = run_record("aten._native_batch_norm_legit_functional.default",
                       {"input": x, **affinity, "running_mean": mean, "running_var": var}, attrs,
                       [(v.shape, x.dtype) for v in wanted])
    assert_near(found, wanted)
    bare = run_record("aten._native_batch_norm_legit.no_stats", {"input": x, **affinity}, attrs,
                      [(v.shape, x.dtype) for v in wanted[:3]])
    assert all(torch.equal(a, b) for a, b in zip(bare, found[:3], strict=True))
    wanted_grad = aten.native_batch_norm_backward(
        *as_double([dy, x, w, mean, var, wanted[1], wanted[2]]), True, 1e-5, [True, affine, affine])
    present = [v for v in wanted_grad if v is not None]
    extra = {} if affine else {"present": (True, False, False)}
    operands = {"grad_out": dy, "input": x, "running_mean": mean, "running_var": var, "save_mean": found[1],
                "save_invstd": found[2]} | ({"weight": w} if affine else {})
    grads = run_record("aten.native_batch_norm_backward.default", operands, {"train": True, "eps": 1e-5} | extra,
                       [(v.shape, x.dtype) for v in present])
    assert_near(grads, present, 20.0)


@pytest.mark.parametrize(("n", "c", "p"), BATCHES)
@pytest.mark.parametrize(("adds", "is_relu"), [(True, False), (False, True), (True, True)])
def test_batch_norm_with_what_follows_agrees_with_float64(n, c, p, adds, is_relu):
    values = {"input": normal(n, c, p, offset=2.0), "weight": normal(c), "bias": normal(c, offset=0.1)}
    other = normal(n, c, p)
    other.view(-1)[1] = float("nan")
    exact = torch.nn.functional.batch_norm(
        values["input"].double(), None, None, values["weight"].double(), values["bias"].double(), True)
    exact = exact + other.double() if adds else exact
    exact = exact.relu() if is_relu else exact
    found = []
    for threads in (1, 3):
        plan = MiniPlanner(threads)
        tensors = {name: Tensor(name, tuple(value.shape), DType.FLOAT) for name, value in values.items()}
        added, result = Tensor("other", (n, c, p), DType.FLOAT), Tensor("result", (n, c, p), DType.FLOAT)
        statistics = tuple(Tensor(name, (c,), DType.FLOAT) for name in ("mean", "rstd"))
        for name, value in values.items():
            plan.values[tensors[name]] = plan.hold(value)
        plan.values[added] = plan.hold(other)
        op = Op("batch_norm", tuple(tensors.values()), (result, *statistics),
                {"training": True, "momentum": 0.1, "eps": 1e-5}, "aten._native_batch_norm_legit.no_stats",
                tuple(tensors))
        emit_batch_norm(op, plan, result, added if adds else None, is_relu=is_relu)
        found.append(plan.fetch(plan.values[result]).clone())
    torch.testing.assert_close(found[0].double(), exact, rtol=1e-5, atol=2e-5, equal_nan=True)
    assert torch.equal(found[0].view(torch.int32), found[1].view(torch.int32))


@pytest.mark.parametrize(("n", "c", "p"), BATCHES)
def test_batch_norm_inference_agrees_with_float64(n, c, p):
    x, dy, w, b = normal(n, c, p), normal(n, c, p, offset=0.2), normal(c), normal(c)
    mean, var = normal(c), normal(c).abs() + 0.5
    wanted = aten._native_batch_norm_legit_no_training(*as_double([x, w, b, mean, var]), 0.1, 1e-5)
    statistics = {"running_mean": mean, "running_var": var}
    found = run_record("aten._native_batch_norm_legit_no_training.default",
                       {"input": x, "weight": w, "bias": b, **statistics}, {"momentum": 0.1, "eps": 1e-5},
                       [(v.shape, x.dtype) for v in wanted])
    assert_near(found, wanted)
    wanted_grad = aten.native_batch_norm_backward(
        *as_double([dy, x, w, mean, var, wanted[1], wanted[2]]), False, 1e-5, [True] * 3)
    empty = torch.empty(0)
    grads = run_record(
        "aten.native_batch_norm_backward.default",
        {"grad_out": dy, "input": x, "weight": w, **statistics, "save_mean": empty, "save_invstd": empty},
        {"train": False, "eps": 1e-5}, [(v.shape, x.dtype) for v in wanted_grad])
    assert_near(grads, wanted_grad, 20.0)


@pytest.mark.parametrize(("n", "c", "p"), BATCHES)
def test_batch_norm_bits_do_not_depend_on_threads(n, c, p):
    x, w, b = normal(n, c, p), normal(c), normal(c)
    attrs = {"training": True, "momentum": 0.1, "eps": 1e-5}
    results = [(x.shape, x.dtype), ((c,), x.dtype), ((c,), x.dtype)]
    runs = [run_record("aten._native_batch_norm_legit.no_stats", {"input": x, "weight": w, "bias": b}, attrs, results,
                       t)
            for t in (1, 2, 4)]
    assert all(torch.equal(a, b) for run in runs[1:] for a, b in zip(runs[0], run, strict=True))
    grads = [run_record("aten.native_batch_norm_backward.default",
                        {"grad_out": x.flip(0), "input": x, "weight": w, "save_mean": runs[0][1],
                         "save_invstd": runs[0][2]},
                        {"train": True, "eps": 1e-5}, results, t) for t in (1, 2, 4)]
    assert all(torch.equal(a, b) for run in grads[1:] for a, b in zip(grads[0], run, strict=True))


def test_layer_norm_gradient_bits_do_not_depend_on_threads():
    x, dy, w = normal(1000, 33), normal(1000, 33), normal(33)
    operands = {"grad_out": dy, "input": x, "mean": x.mean(1, True), "rstd": x.var(1, keepdim=True).rsqrt(),
                "weight": w}
    runs = [run_record("aten.native_layer_norm_backward.default", operands, {"normalized_shape": [33]}, [x, w, w], t)
            for t in (1, 2, 4)]
    assert all(torch.equal(a, b) for run in runs[1:] for a, b in zip(runs[0], run, strict=True))


def test_nan_stays_in_its_row():
    x = normal(4, 20)
    x[1, 3], x[2, 5] = float("nan"), float("inf")
    found = run_record("aten.native_layer_norm.default", {"input": x}, {"normalized_shape": [20], "eps": 1e-5},
                       [x, ((4, 1), x.dtype), ((4, 1), x.dtype)])[0]
    assert found[1:3].isnan().all()
    assert found[[0, 3]].isfinite().all()
