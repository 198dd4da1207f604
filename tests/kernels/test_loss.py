"""Loss kernels against eager mode in float64."""

import pytest
import torch

from tests.kernels.record_runner import run_record, serves
from torchipu._kernels.abi import KernelTrap

aten = torch.ops.aten
SHAPES = [(7, 5), (1, 3), (5,), (2, 4, 3, 5), (3000, 3)]


def normal(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


def labels_of(shape, ignored):
    x = torch.empty(shape)
    sizes = () if len(shape) == 1 else (shape[0], *shape[2:])
    labels = torch.randint(0, shape[0] if x.dim() == 1 else shape[1], sizes, generator=torch.Generator().manual_seed(5))
    if labels.numel() > 1:
        labels.view(-1)[0] = ignored
    return labels


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("index", [torch.int64, torch.int32])
def test_negative_log_likelihood_agrees_with_float64(shape, reduction, weighted, index):
    x, labels = normal(*shape), labels_of(shape, -100)
    name = "nll_loss2d" if len(shape) == 4 else "nll_loss"
    weight = normal(shape[0] if len(shape) == 1 else shape[1]).abs() + 0.1 if weighted else None
    rest = (reduction, -100)
    wanted = getattr(aten, f"{name}_forward")(x.double(), labels, weight.double() if weighted else None, *rest)
    operands = {"self": x, "target": labels.to(index)} | ({"weight": weight} if weighted else {})
    attrs = {"reduction": reduction, "ignore_index": -100}
    found = run_record(f"aten.{name}_forward.default", operands, attrs, [(v.shape, x.dtype) for v in wanted])
    for f, w in zip(found, wanted, strict=True):
        torch.testing.assert_close(f.double(), w, rtol=1e-6, atol=1e-6)
    dy = normal(*wanted[0].shape) + 1
    wanted_grad = getattr(aten, f"{name}_backward")(
        dy.double(), x.double(), labels, weight.double() if weighted else None, *rest, wanted[1])
    grad, = run_record(f"aten.{name}_backward.default", {"grad_output": dy, **operands, "total_weight": found[1]},
                       attrs, [x])
    torch.testing.assert_close(grad.double(), wanted_grad, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("shape", [(9, 5), (2, 3, 4, 5)])
@pytest.mark.parametrize("reduction", [0, 1, 2])
def test_negative_log_likelihood_of_halves_is_summed_in_float(shape, reduction):
    x, labels = normal(*shape).half(), labels_of(shape, -100)
    name = "nll_loss2d" if len(shape) == 4 else "nll_loss"
    wanted = getattr(aten, f"{name}_forward")(x.double(), labels, None, reduction, -100)
    found = run_record(f"aten.{name}_forward.default", {"self": x, "target": labels},
                       {"reduction": reduction, "ignore_index": -100}, [(v.shape, x.dtype) for v in wanted])
    for f, w in zip(found, wanted, strict=True):
        assert torch.equal(f, w.half()) if reduction == 0 else torch.allclose(f, w.half(), rtol=1e-3)


def test_mean_over_ignored_labels_alone_is_nan():
    x, labels = normal(3, 4), torch.full((3,), -1)
    found = run_record("aten.nll_loss_forward.default", {"self": x, "target": labels},
                       {"reduction": 1, "ignore_index": -1},
                       [((), x.dtype), ((), x.dtype)])
    assert found[0].isnan()
    assert found[1] == 0


@pytest.mark.parametrize("bad", [-1, 4])
def test_class_out_of_range_traps(bad):
    labels = torch.tensor([0, bad, 1])
    x, one = normal(3, 4), torch.ones(())
    attrs = {"reduction": 1, "ignore_index": -100}
    with pytest.raises(KernelTrap, match="index is out of range"):
        run_record("aten.nll_loss_forward.default", {"self": x, "target": labels}, attrs, [one, one])
    with pytest.raises(KernelTrap, match="index is out of range"):
        run_record("aten.nll_loss_backward.default",
                   {"grad_output": one, "self": x, "target": labels, "total_weight": one}, attrs, [x])


PAIRS = [("mse_loss", {}), ("smooth_l1_loss", {"beta": 0.7}), ("huber_loss", {"delta": 0.7}),
         ("binary_cross_entropy", {}),
         ("binary_cross_entropy_with_logits", {})]


@pytest.mark.parametrize(("name", "extra"), PAIRS)
@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize("shape", [(1,), (3, 7), (40, 333)])
def test_pair_loss_agrees_with_float64(name, extra, reduction, shape):
    x, wanted_value = normal(*shape) * 2, normal(*shape)
    if name.startswith("binary"):
        wanted_value = wanted_value.sigmoid()
    if name == "binary_cross_entropy":
        x = x.sigmoid()
    loss = getattr(aten, name)(x.double(), wanted_value.double(), reduction=reduction, **extra)
    operands = {"self": x, "target": wanted_value}
    attrs = {"reduction": reduction, **extra}
    found, = run_record(f"aten.{name}.default", operands, attrs, [(loss.shape, x.dtype)])
    torch.testing.assert_close(found.double(), loss, rtol=2e-6, atol=2e-6)
    if name == "binary_cross_entropy_with_logits":  # AOT decomposes its gradient
        return
    dy = normal(*loss.shape) + 2
    leaf = x.double().requires_grad_()
    getattr(aten, name)(leaf, wanted_value.double(), reduction=reduction, **extra).backward(dy.double())
    grad, = run_record(f"aten.{name}_backward.default", {"grad_output": dy, **operands}, attrs, [x])
    torch.testing.assert_close(grad.double(), leaf.grad, rtol=1e-4, atol=1e-6)


def test_weights_of_binary_cross_entropy_are_used():
    x, t, w, p = normal(4, 6), normal(4, 6).sigmoid(), normal(4, 6).abs(), normal(6).abs()
    wanted = aten.binary_cross_entropy_with_logits(x, t, w, p, 1)
    found, = run_record("aten.binary_cross_entropy_with_logits.default",
                        {"self": x, "target": t, "weight": w, "pos_weight": p}, {"reduction": 1}, [wanted])
    torch.testing.assert_close(found, wanted)


def test_binary_cross_entropy_of_certainty_is_bounded_as_in_eager_mode():
    x, t = torch.tensor([0.0, 1.0, 0.0, 1.0]), torch.tensor([1.0, 0.0, 0.0, 1.0])
    found, = run_record("aten.binary_cross_entropy.default", {"self": x, "target": t}, {"reduction": 0}, [x])
    assert torch.equal(found, aten.binary_cross_entropy(x, t, None, 0))


def test_nan_and_infinity_pass_through_the_losses():
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0])
    t = torch.zeros(4)
    for name in ("mse_loss", "smooth_l1_loss", "binary_cross_entropy_with_logits"):
        found, = run_record(f"aten.{name}.default", {"self": x, "target": t}, {"reduction": 0, "beta": 1.0}, [x])
        torch.testing.assert_close(found, getattr(aten, name)(x, t, reduction=0), equal_nan=True)


def test_broadcast_pairs_are_left_to_aten():
    assert not serves("aten.mse_loss.default", {"self": normal(4, 1), "target": normal(4)}, {"reduction": 1})


def test_bits_do_not_depend_on_threads():
    x, t = normal(50_001), normal(50_001) * 0.5
    runs = [run_record("aten.mse_loss.default", {"self": x, "target": t}, {"reduction": 1}, [((), x.dtype)], n)[0]
            for n in (1, 2, 4)]
    assert runs[0] == runs[1] == runs[2]
