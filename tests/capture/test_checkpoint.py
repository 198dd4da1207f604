"""Models under torch.utils.checkpoint train through all doors as without it, and keep less for the backward."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import torchipu
import torchipu.poptorch as poptorch
from torchipu.capture.checkpoint import with_regions_of_all_kinds
from torchipu.ir.types import Leg
from torchipu.report.recorder import recording


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch._dynamo.reset()


class Deep(torch.nn.Module):
    """Runs blocks under torch.utils.checkpoint; ``reentrant`` None runs them plainly."""

    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 8), torch.nn.LayerNorm(8))
            for _ in range(3)
        )
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x) if self.reentrant is None else checkpoint(layer, x, use_reentrant=self.reentrant)
        return x.square().mean()


def gradients_of_dynamo(model: torch.nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    loss = torch.compile(model, backend="ipu", fullgraph=True)(x)
    return list(torch.autograd.grad(loss, list(model.parameters())))


def gradients_of_a_step(model: torch.nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    before = [parameter.detach().clone() for parameter in model.parameters()]
    torchipu.TrainStep(model, torch.optim.SGD(model.parameters(), 1.0))(x)
    return [old - new.detach() for old, new in zip(before, model.parameters(), strict=True)]


def gradients_of_poptorch(model: torch.nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    class Identity(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return poptorch.identity_loss(self.model(x), "none")

    before = [parameter.detach().clone() for parameter in model.parameters()]
    training = poptorch.trainingModel(Identity(), optimizer=poptorch.optim.SGD(model.parameters(), lr=1.0))
    training(x)
    training.copyWeightsToHost()
    return [old - new.detach() for old, new in zip(before, model.parameters(), strict=True)]


DOORS = [gradients_of_dynamo, gradients_of_a_step, gradients_of_poptorch]


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("door", DOORS)
def test_gradients_are_those_of_the_model_without_it(
    door: Callable[[torch.nn.Module, torch.Tensor], list[torch.Tensor]], reentrant: bool,
) -> None:
    model, x = Deep(reentrant), torch.randn(4, 8)
    twin = copy.deepcopy(model)
    twin.reentrant = None
    expected = list(torch.autograd.grad(twin.double()(x.double()), list(twin.parameters())))
    for ours, theirs in zip(door(model, x), expected, strict=True):
        torch.testing.assert_close(ours, theirs.float(), rtol=1e-4, atol=1e-6)


DRAWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dropout": lambda x: F.dropout(x, 0.5),
    "rand_like": lambda x: x * torch.rand_like(x),
    "bernoulli": lambda x: x * torch.bernoulli(torch.full_like(x, 0.3)),
    "randn": lambda x: x * torch.randn(x.shape),
    "alpha dropout": lambda x: x * F.alpha_dropout(torch.ones_like(x), 0.5, training=True),
    "feature dropout": lambda x: F.dropout1d(x, 0.5),
    "two dropouts": lambda x: F.dropout(F.dropout(x, 0.25), 0.5),
}


class Drawing(torch.nn.Module):
    """Multiplies its weight by random factors and squares that, under a checkpoint: the gradient tells the factors."""

    def __init__(self, draw: Callable[[torch.Tensor], torch.Tensor], reentrant: bool) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4, 64, 8))
        self.draw, self.reentrant = draw, reentrant

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        def block(value: torch.Tensor) -> torch.Tensor:
            return self.draw(value).square()

        squares = checkpoint(block, self.weight * x, use_reentrant=self.reentrant)
        return squares.sum(), squares.detach()


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", DRAWS)
def test_the_backward_has_the_random_bits_of_the_forward_in_torch_compile(name: str, reentrant: bool) -> None:
    model = Drawing(DRAWS[name], reentrant)
    loss, squares = torch.compile(model, backend="ipu", fullgraph=True)(torch.ones(4, 64, 8))
    (gradient,) = torch.autograd.grad(loss, [model.weight])
    torch.testing.assert_close(gradient, 2 * squares)
    assert squares.std() > 0


@pytest.mark.parametrize("door", ["torchipu", "poptorch"])
@pytest.mark.parametrize("name", DRAWS)
def test_the_backward_has_the_random_bits_of_the_forward_in_a_step(name: str, door: str) -> None:
    model, x = Drawing(DRAWS[name], reentrant=False), torch.ones(4, 64, 8)
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    if door == "torchipu":
        _, squares = torchipu.TrainStep(model, optimizer, loss=0)(x)
    else:

        class Identity(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.model = model

            def forward(self, x: torch.Tensor) -> Any:
                loss, squares = self.model(x)
                return poptorch.identity_loss(loss, "none"), squares

        training = poptorch.trainingModel(Identity(), optimizer=optimizer)
        _, squares = training(x)
        training.copyWeightsToHost()
    torch.testing.assert_close(1.0 - model.weight.detach(), 2 * squares)
    assert squares.std() > 0


Region = Callable[..., Any]
Linear = Callable[[torch.Tensor], torch.Tensor]


def writes_a_result(region: Region, linear: Linear, h: torch.Tensor) -> torch.Tensor:
    return F.relu(region(lambda x: linear(x).tanh(), h), inplace=True)


def writes_what_the_region_reads_last(region: Region, linear: Linear, h: torch.Tensor) -> torch.Tensor:
    return region(lambda x: linear(x).exp(), h).mul_(0.5)


def writes_an_activation(region: Region, linear: Linear, h: torch.Tensor) -> torch.Tensor:
    return F.relu(region(lambda x: F.hardswish(F.relu(linear(x))).tanh(), h), inplace=True)


def writes_a_view_of_a_result(region: Region, linear: Linear, h: torch.Tensor) -> torch.Tensor:
    y = region(lambda x: linear(x).sigmoid(), h)
    y.view(-1)[3:9].mul_(2.0)
    return y


def writes_what_a_result_is_a_view_of(region: Region, linear: Linear, h: torch.Tensor) -> torch.Tensor:
    whole = region(lambda x: linear(x).exp(), h)
    part = whole[:, :4]
    whole.add_(1.0)
    return part * whole[:, 4:]


def writes_two_results(region: Region, linear: Linear, h: torch.Tensor) -> torch.Tensor:
    y, z = region(lambda x: (linear(x).sigmoid(), linear(x).tanh()), h)
    y.add_(z)
    z.mul_(3.0)
    return y + z


def writes_results_of_nested_regions(region: Region, linear: Linear, h: torch.Tensor) -> torch.Tensor:
    def outer(x: torch.Tensor) -> torch.Tensor:
        return region(lambda value: linear(value).sigmoid(), x).mul_(3.0).tanh()

    return region(outer, h).mul_(2.0)


def reads_and_writes_in_turn(region: Region, linear: Linear, h: torch.Tensor) -> torch.Tensor:
    y = region(lambda x: linear(x).sigmoid(), h)
    exponential = y.exp()
    y.mul_(2.0)
    return region(lambda x: linear(x).tanh(), y + exponential).add_(y)


def writes_its_input_before(region: Region, linear: Linear, h: torch.Tensor) -> torch.Tensor:
    return region(lambda x: linear(x).sigmoid(), h.mul_(2.0)).neg_()


def writes_within(region: Region, linear: Linear, h: torch.Tensor) -> torch.Tensor:
    return region(lambda x: linear(x).mul_(2.0).tanh(), h).exp_()


WRITES = [
    writes_a_result, writes_what_the_region_reads_last, writes_an_activation, writes_a_view_of_a_result,
    writes_what_a_result_is_a_view_of, writes_two_results, writes_results_of_nested_regions, reads_and_writes_in_turn,
    writes_its_input_before, writes_within,
]


class Writing(torch.nn.Module):
    """Writes in place what regions under a checkpoint give or take."""

    def __init__(self, write: Callable[[Region, Linear, torch.Tensor], torch.Tensor], reentrant: bool) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        self.write, self.reentrant = write, reentrant

    def region(self, function: Callable[..., Any], *args: torch.Tensor) -> Any:
        return checkpoint(function, *args, use_reentrant=self.reentrant)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.write(self.region, self.second, self.first(x)).square().mean()


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("door", DOORS)
def test_what_regions_give_may_be_written_in_place(
    door: Callable[[torch.nn.Module, torch.Tensor], list[torch.Tensor]],
    write: Callable[[Region, Linear, torch.Tensor], torch.Tensor], reentrant: bool,
) -> None:
    model, x = Writing(write, reentrant), torch.randn(4, 8)
    twin = copy.deepcopy(model).double()
    twin(x.double()).backward()
    for ours, parameter in zip(door(model, x), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, parameter.grad.float(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("door", DOORS[:2])
def test_what_eager_refuses_to_write_outside_regions_is_refused(
    door: Callable[[torch.nn.Module, torch.Tensor], list[torch.Tensor]],
) -> None:
    def write(region: Region, linear: Linear, h: torch.Tensor) -> torch.Tensor:
        return region(torch.tanh, linear(h).sigmoid().mul_(2.0))

    model = Writing(write, reentrant=False)
    with pytest.raises(RuntimeError, match="modified by an inplace"):
        model(torch.randn(4, 8)).backward()
    with pytest.raises(Exception, match="modified by an inplace"):
        door(model, torch.randn(4, 8))


def saved_bytes(model: torch.nn.Module) -> int:
    with recording() as programs:
        torch.compile(model, backend="ipu", fullgraph=True)(torch.randn(64, 8)).backward()
    forward = next(program.graph for program in programs if program.graph.name.endswith("forward"))
    weights = set(forward.inputs)
    return sum(tensor.num_elements * tensor.dtype.host_bytes for tensor in forward.outputs if tensor not in weights)


def test_torch_compile_saves_less_for_the_backward() -> None:
    plain, less = saved_bytes(Deep(None)), saved_bytes(Deep(False))
    assert less < plain / 2


def test_a_dropout_saves_its_mask_alone() -> None:
    model = Drawing(DRAWS["dropout"], reentrant=False)
    with recording() as programs:
        torch.compile(model, backend="ipu", fullgraph=True)(torch.ones(4, 64, 8))[0].backward()
    forward = next(program.graph for program in programs if program.graph.name.endswith("forward"))
    backward = next(program.graph for program in programs if program.graph.name.endswith("backward"))
    drawn = [op for op in forward.ops if "native_dropout" in op.target and "backward" not in op.target]
    assert len(drawn) == 1
    assert not any(op.target == "aten.native_dropout.default" for op in backward.ops)


@pytest.mark.parametrize("door", ["torchipu", "poptorch"])
def test_a_step_computes_again_what_ran_under_it(door: str) -> None:
    with recording() as programs:
        (gradients_of_a_step if door == "torchipu" else gradients_of_poptorch)(Deep(False), torch.randn(4, 8))
    again = [op for op in programs[-1].graph.ops if "recomputed_from" in op.attrs]
    assert again
    assert all(op.leg is Leg.BACKWARD for op in again)


def test_sequential_checkpoints_train() -> None:
    class Sequential(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = torch.nn.Sequential(
                *(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()) for _ in range(4)),
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint_sequential(self.parts, 2, x, use_reentrant=False).square().mean()

    model, x = Sequential(), torch.randn(4, 8)
    expected = torch.autograd.grad(model(x), list(model.parameters()))
    torch.testing.assert_close(gradients_of_dynamo(model, x), list(expected))


def test_torch_checkpoints_as_before_once_it_is_captured() -> None:
    apply, generator = torch.utils.checkpoint.CheckpointFunction.apply, (
        torch.utils.checkpoint._checkpoint_without_reentrant_generator)  # type: ignore[attr-defined]
    gradients_of_poptorch(Deep(True), torch.randn(4, 8))
    assert torch.utils.checkpoint.CheckpointFunction.apply == apply
    assert torch.utils.checkpoint._checkpoint_without_reentrant_generator is generator  # type: ignore[attr-defined]


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("door", [gradients_of_dynamo, gradients_of_a_step])
def test_models_of_transformers_train_with_their_own_switch(
    door: Callable[[torch.nn.Module, torch.Tensor], list[torch.Tensor]], reentrant: bool,
) -> None:
    transformers = pytest.importorskip("transformers")

    class Loss(torch.nn.Module):
        def __init__(self, model: torch.nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            logits = self.model(input_ids=tokens, use_cache=False).logits
            return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())

    config = transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=16, vocab_size=32, n_positions=16, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )
    model = Loss(transformers.GPT2LMHeadModel(config).train())
    tokens = torch.randint(0, 32, (2, 8))
    expected = torch.autograd.grad(model(tokens), list(model.parameters()))
    model.model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    for ours, theirs in zip(door(model, tokens), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)


# ---------------------------------------------------------------------- torch.func within regions
def _energy(row: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (row @ w).sin().square().sum()


TRANSFORMED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "grad": lambda x, w: torch.func.grad(_energy)(x, w) * x,
    "vjp": lambda x, w: torch.func.vjp(lambda v: (v @ w).sin(), x)[1](torch.ones_like(x))[0],
    "jvp": lambda x, w: torch.func.jvp(lambda v: (v @ w).sin(), (x,), (torch.ones_like(x),))[1],
    "vmap": lambda x, w: torch.func.vmap(lambda row: (row @ w).tanh())(x),
    "jacrev": lambda x, w: torch.func.jacrev(_energy)(x, w).relu(),
    "hessian": lambda x, w: torch.func.hessian(_energy)(x, w).sum((0, 1)).tanh(),
    "gradient of each row": lambda x, w: torch.func.vmap(torch.func.grad(_energy), (0, None))(x, w) * x,
    "gradient within a region within": lambda x, w: checkpoint(
        lambda v: torch.func.grad(_energy)(v, w), x.cos(), use_reentrant=True,
    ) + x,
}


class Transformed(torch.nn.Module):
    """Differentiates in a region of torch.utils.checkpoint, or without one, and has a region that does not."""

    def __init__(self, kind: str, reentrant: bool | None) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.linspace(-1.0, 1.3, 16).reshape(4, 4))
        self.v = torch.nn.Parameter(torch.linspace(0.5, -0.7, 12).reshape(3, 4))
        self.function, self.reentrant = TRANSFORMED[kind], reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def region(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return self.function(x.tanh(), w).exp()

        x = x * self.v
        if self.reentrant is None:
            return (region(x, self.w) * self.v).cos().mean()
        made = checkpoint(region, x, self.w, use_reentrant=self.reentrant)
        return checkpoint(lambda y: (y * self.v).cos(), made, use_reentrant=False).mean()


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("gradients", DOORS)
@pytest.mark.parametrize("kind", TRANSFORMED)
def test_functions_are_transformed_within_regions(
    kind: str, gradients: Callable[[torch.nn.Module, torch.Tensor], list[torch.Tensor]], reentrant: bool,
) -> None:
    x = torch.linspace(-2.0, 2.0, 12).reshape(3, 4)
    plain = Transformed(kind, None).double()
    plain(x.double()).backward()
    found = gradients(Transformed(kind, reentrant), x)
    for parameter, gradient in zip(plain.parameters(), found, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(gradient.double(), parameter.grad, rtol=2e-4, atol=2e-5)


def test_a_trace_that_torch_refuses_leaves_regions_as_they_were() -> None:
    x = torch.linspace(-1.0, 1.0, 12).reshape(3, 4).requires_grad_()

    def refused() -> None:
        raise RuntimeError("of this test")

    with pytest.raises(RuntimeError, match="of this test"):
        with_regions_of_all_kinds(lambda: torch.func.grad(lambda value: refused())(x))

    def leave(words: str) -> None:
        torch._C._autograd._saved_tensors_hooks_disable("off")
        torch._C._functorch._grad_increment_nesting()
        torch._C._enter_dual_level()
        raise RuntimeError(words)

    with pytest.raises(RuntimeError, match="other words"):
        with_regions_of_all_kinds(lambda: leave("other words"))
    checkpoint(torch.sin, x, use_reentrant=False).sum().backward()
    assert x.grad is not None
    assert torch.func.hessian(lambda value: value.square().sum())(x.detach()).shape == (3, 4, 3, 4)
