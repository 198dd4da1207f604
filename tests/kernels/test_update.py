"""Optimiser kernels against torch.optim over twenty steps."""

import pytest
import torch

from tests.kernels.record_runner import run_record
from torchipu.ops.update import HYPER, HYPER_WORDS

SIZE = 4999
STATES = {
    torch.optim.SGD: ("momentum_buffer",), torch.optim.Adam: ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"),
    torch.optim.AdamW: ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"),
    torch.optim.RMSprop: ("square_avg", "momentum_buffer", "grad_avg"),
}
CASES = [
    (torch.optim.SGD, {"lr": 0.1}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "maximize": True}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    (torch.optim.Adam, {"lr": 1e-2}),
    (torch.optim.Adam, {"lr": 1e-2, "betas": (0.3, 0.95), "weight_decay": 0.1, "amsgrad": True}),
    (torch.optim.Adam, {"lr": 1e-2, "eps": 1e-3, "maximize": True}),
    (torch.optim.AdamW, {"lr": 1e-2, "weight_decay": 0.1}),
    (torch.optim.AdamW, {"lr": 1e-2, "weight_decay": 0.3, "amsgrad": True, "maximize": True}),
    (torch.optim.RMSprop, {"lr": 1e-2}),
    (torch.optim.RMSprop, {"lr": 1e-2, "momentum": 0.8, "weight_decay": 0.1}),
    (torch.optim.RMSprop, {"lr": 1e-2, "alpha": 0.9, "centered": True, "momentum": 0.5, "maximize": True}),
    (torch.optim.RMSprop, {"lr": 1e-2, "centered": True}),
]


def hyper_of(options, grad_scale=1.0):
    values = torch.zeros(HYPER_WORDS, dtype=torch.float64)
    for name, value in options.items():
        if name == "betas":
            values[HYPER["beta1"]], values[HYPER["beta2"]] = value
        elif name in HYPER:
            values[HYPER[name]] = float(value)
    values[HYPER["grad_scale"]] = grad_scale
    return values.view(torch.int64)


def gradients(count, size=SIZE):
    generator = torch.Generator().manual_seed(9)
    return [torch.randn(size, generator=generator) * (1 + step) for step in range(count)]


def states_of(optimiser_class, options):
    kept = {
        "momentum_buffer": options.get("momentum"), "max_exp_avg_sq": options.get("amsgrad"),
        "grad_avg": options.get("centered"),
    }
    return [name for name in STATES[optimiser_class] if kept.get(name, True)]


def run_ours(optimiser_class, options, start, grads, *, threads=1, grad_scale=1.0, garbage=0.0):
    """Return param and states after all steps; states begin as ``garbage`` for SGD, which must not read them."""
    name = optimiser_class.__name__.lower()
    held = {"param": start.clone()}
    held |= {state: torch.full_like(start, garbage) for state in states_of(optimiser_class, options)}
    hyper, step = hyper_of(optimiser_class([torch.zeros(1)], **options).defaults, grad_scale), torch.zeros(())
    for grad in grads:
        step, = run_record("ipu.increment.default", {"step": step}, {}, [step])
        operands = {"param": held["param"], "grad": grad} | held | {"hyper": hyper, "step": step}
        results = run_record(f"ipu.{name}.default", operands, {}, list(held.values()), threads)
        held = dict(zip(held, results, strict=True))
    return held


def run_torch(optimiser_class, options, start, grads):
    param = torch.nn.Parameter(start.clone())
    optimiser = optimiser_class([param], foreach=False, **options)
    for grad in grads:
        param.grad = grad.clone()
        optimiser.step()
    state = optimiser.state[param]
    return {"param": param.detach()} | {name: state[name] for name in states_of(optimiser_class, options)}


@pytest.mark.parametrize(("optimiser_class", "options"), CASES, ids=lambda v: str(getattr(v, "__name__", v)))
def test_twenty_steps_agree_with_torch(optimiser_class, options):
    start, grads = gradients(1)[0], gradients(20)
    found = run_ours(optimiser_class, options, start, grads)
    wanted = run_torch(optimiser_class, options, start, grads)
    for name, value in wanted.items():
        # Twenty roundings at the largest magnitude, a few units in its last place in all.
        rounding = 5e-7 * float(value.abs().max())
        torch.testing.assert_close(found[name], value, rtol=2e-6, atol=rounding, msg=lambda m,
                                   name=name: f"{name}: {m}")


@pytest.mark.parametrize(("optimiser_class", "options"), CASES, ids=lambda v: str(getattr(v, "__name__", v)))
def test_bits_do_not_depend_on_threads(optimiser_class, options):
    start, grads = gradients(1, 9001)[0], gradients(2, 9001)
    runs = [run_ours(optimiser_class, options, start, grads, threads=n) for n in (1, 2, 4)]
    assert all(torch.equal(run[name], runs[0][name]) for run in runs[1:] for name in run)


def test_first_momentum_buffer_is_the_gradient_whatever_lies_in_memory():
    options = {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}
    start, grads = gradients(1)[0], gradients(1)
    found = run_ours(torch.optim.SGD, options, start, grads, garbage=float("nan"))
    assert torch.equal(found["momentum_buffer"], grads[0])


def test_gradients_are_scaled_before_anything_else():
    options = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}
    start, grads = gradients(1)[0], gradients(3)
    found = run_ours(torch.optim.SGD, options, start, [4 * grad for grad in grads], grad_scale=0.25)
    wanted = run_ours(torch.optim.SGD, options, start, grads)
    assert torch.equal(found["param"], wanted["param"])


@pytest.mark.parametrize("optimiser_class", list(STATES))
@pytest.mark.parametrize("size", [1, 17, 4099])
def test_half_parameters_are_updated_in_float_and_rounded_once(optimiser_class, size):
    options = {"lr": 0.01}
    start, grads = gradients(1, size)[0].half(), [g.half() for g in gradients(1, size)]
    found = run_ours(optimiser_class, options, start, grads)["param"]
    wanted = run_torch(optimiser_class, options, start.float(), [g.float() for g in grads])["param"].half()
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("size", [(0,), (1,), (33,), (70, 130)])
@pytest.mark.parametrize(("acc_type", "grad_type"), [(torch.float32, torch.float32), (torch.float32, torch.float16),
                                                     (torch.float16, torch.float16)])
def test_accumulation_adds_in_place(size, acc_type, grad_type):
    acc, grad = torch.randn(size).to(acc_type), torch.randn(size).to(grad_type)
    found, = run_record("ipu.accumulate.default", {"accumulator": acc, "gradient": grad}, {}, [acc])
    assert torch.equal(found, (acc.float() + grad.float()).to(acc_type))


def test_fill_zero_and_increment():
    found, = run_record("ipu.fill_zero.default", {"accumulator": torch.randn(70, 1001)}, {}, [torch.empty(70, 1001)])
    assert not found.any()
    found, = run_record("ipu.increment.default", {"step": torch.tensor(4.0)}, {}, [torch.zeros(())])
    assert found == 5


def test_nan_gradients_reach_the_parameter_as_in_eager_mode():
    start, grads = gradients(1, 40)[0], gradients(2, 40)
    grads[0][3], grads[1][7] = float("nan"), float("inf")
    for optimiser_class in STATES:
        options = {"lr": 0.1} | ({"amsgrad": True} if "Adam" in optimiser_class.__name__ else {})
        found = run_ours(optimiser_class, options, start, grads)["param"]
        wanted = run_torch(optimiser_class, options, start, grads)["param"]
        torch.testing.assert_close(found, wanted, equal_nan=True, rtol=1e-5, atol=1e-6)
