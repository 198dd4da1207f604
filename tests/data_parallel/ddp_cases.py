"""What each of two processes checks of ``torch.compile(backend="ipu")`` and DistributedDataParallel."""

import contextlib
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel as Distributed

from tests.data_parallel.models import WIDTH, Net, alone, assert_same, batches, net, train, whole_state
from torchipu.backend import COUNTS
from torchipu.errors import CaptureError
from torchipu.explanation import Explanation, listening


def compiled(model: nn.Module, **kwargs: object) -> nn.Module:
    return torch.compile(model, backend="ipu", **kwargs)


def compared(
    wrap: Callable[[Net], nn.Module], *, programs: int = 2, make: Callable[[], Net] = net, like_one: bool = True,
    **kwargs: object,
) -> None:
    """Train by a wrapped model and by eager DDP; compare the weights, and count the programs.

    Args:
        wrap: Distributes and compiles.
        programs: Programs that must have been compiled.
        make: Makes the model.
        like_one: Whether one process that sees whole batches must come to the same weights.
        kwargs: Of DDP.
    """
    torch._dynamo.reset()  # or the programs of another model of this class would serve
    before = COUNTS.programs
    found = train(wrap(make()))
    assert COUNTS.programs - before == programs, f"{COUNTS.programs - before} programs instead of {programs}"
    assert_same(found, train(Distributed(make(), **kwargs)))
    if like_one:
        assert_same(found, alone(make()), rtol=1e-4, atol=1e-5)


def compile_around_ddp() -> None:
    compared(lambda model: compiled(Distributed(model)))


def ddp_around_compile() -> None:
    compared(lambda model: Distributed(compiled(model)))


def compile_in_place_within_ddp() -> None:
    def wrap(model: Net) -> nn.Module:
        model.compile(backend="ipu")
        return Distributed(model)

    compared(wrap)


def compile_ddp_in_place() -> None:
    def wrap(model: Net) -> nn.Module:
        distributed = Distributed(model)
        distributed.compile(backend="ipu")
        return distributed

    compared(wrap)


def buckets_split_the_graph() -> None:
    def wide() -> Net:
        return net(width=WIDTH)

    compared(lambda model: compiled(Distributed(model, bucket_cap_mb=1)), programs=6, make=wide, bucket_cap_mb=1)
    with torch._dynamo.config.patch(optimize_ddp=False):
        compared(lambda model: compiled(Distributed(model, bucket_cap_mb=1)), programs=2, make=wide, bucket_cap_mb=1)


def python_reducer() -> None:
    with torch._dynamo.config.patch(optimize_ddp="python_reducer"):
        compared(lambda model: compiled(Distributed(model)))


def python_reducer_in_the_graph() -> None:
    ipu = torch.compile(backend="ipu", dynamic=False)
    with torch._dynamo.config.patch(optimize_ddp="python_reducer"), listening(Explanation("")) as explanation:
        model = compiled(Distributed(net()))
        with torch._dynamo.compiled_autograd._enable(ipu):
            found = train(model)
    if explanation.error is not None:
        raise explanation.error
    assert_same(found, train(Distributed(net())))
    ops = [op for program in explanation.programs for op in program.graph.ops]
    assert any(op.kind == "process_all_reduce" for op in ops), {op.kind for op in ops}


def gradients_accumulate_without_sync() -> None:
    def accumulate(model: Distributed | nn.Module, distributed: Distributed) -> nn.Module:
        optimiser = torch.optim.SGD(distributed.parameters(), lr=0.05)
        for number, (x, y) in enumerate(batches(4)):
            with distributed.no_sync() if number % 2 == 0 else contextlib.nullcontext():
                F.cross_entropy(model(x), y).backward()
            if number % 2 == 0:
                mine = distributed.module.last.weight.grad.clone()
                theirs = mine.clone()
                dist.broadcast(theirs, 0)
                assert dist.get_rank() == 0 or not torch.equal(mine, theirs), "no_sync has summed gradients"
                continue
            optimiser.step()
            optimiser.zero_grad()
        return distributed

    outer, inner, eager = Distributed(net()), Distributed(compiled(net())), Distributed(net())
    expected = accumulate(eager, eager)
    assert_same(accumulate(compiled(outer), outer), expected)
    assert_same(accumulate(inner, _plain(inner)), expected)


def _plain(model: Distributed) -> Distributed:
    """Let a case reach the layers of a compiled module by the names of the plain one."""
    model.module.last = model.module._orig_mod.last
    return model


def buffers_are_those_of_the_first_process() -> None:
    def make() -> Net:
        model = net(norm=nn.BatchNorm1d)
        model.first.norm.running_mean += dist.get_rank()  # DDP hands out those of rank 0
        return model

    for wrap in (lambda model: compiled(Distributed(model)), lambda model: Distributed(compiled(model))):
        compared(wrap, make=make, like_one=False)
    found = whole_state(train(compiled(Distributed(make()))))["first.norm.running_mean"]
    assert found.abs().sum() > 0


def unused_parameters() -> None:
    """The second step uses what the first and the third leave out: without a gradient they stay as they are."""
    def alternating(wrap: Callable[[Net], nn.Module]) -> nn.Module:
        plain = net(has_extra=True)
        model = wrap(plain)
        optimiser = torch.optim.SGD(plain.parameters(), lr=0.05)
        for number, (x, y) in enumerate(batches(3)):
            plain.uses_extra = number == 1
            F.cross_entropy(model(x), y).backward()
            assert (plain.extra.weight.grad is None) == (number != 1)
            optimiser.step()
            optimiser.zero_grad()
        return model

    expected = alternating(lambda model: Distributed(model, find_unused_parameters=True))
    for wrap in (
        lambda model: compiled(Distributed(model, find_unused_parameters=True)),
        lambda model: Distributed(compiled(model), find_unused_parameters=True),
    ):
        assert_same(alternating(wrap), expected)


def static_graph() -> None:
    compared(lambda model: compiled(Distributed(model, static_graph=True)), static_graph=True)
    compared(lambda model: Distributed(compiled(model), static_graph=True), static_graph=True)


def bucket_views() -> None:
    compared(lambda model: compiled(Distributed(model, gradient_as_bucket_view=True)), gradient_as_bucket_view=True)
    compared(lambda model: Distributed(compiled(model), gradient_as_bucket_view=True), gradient_as_bucket_view=True)


def frozen_parameters() -> None:
    def make() -> Net:
        model = net()
        model.second.requires_grad_(False)
        return model

    compared(lambda model: compiled(Distributed(model)), make=make)
    compared(lambda model: Distributed(compiled(model)), make=make)


def communication_hooks() -> None:
    def wrap(model: nn.Module) -> Distributed:
        distributed = Distributed(model)
        distributed.register_comm_hook(None, fp16_compress_hook)
        return distributed

    found = train(wrap(compiled(net())))
    assert_same(found, train(wrap(net())), rtol=1e-3, atol=1e-4)


def frozen_weights_follow_the_training() -> None:
    """``frozen_weights`` computes anew what depends on weights when these have changed, whoever changed them."""
    model = net()
    with torch.no_grad():
        model.last.weight += dist.get_rank()  # DDP hands out those of rank 0
    ours = compiled(model, options={"frozen_weights": True})
    (x, _), = batches(1)

    def check() -> None:
        with torch.no_grad():
            torch.testing.assert_close(ours(x), model(x))

    check()
    distributed = Distributed(ours)
    check()
    for _ in range(2):
        distributed.train()
        train(distributed, steps=1)
        distributed.eval()
        check()
        with torch.no_grad():
            torch.testing.assert_close(distributed(x), model(x))


def strict_refuses_what_ddp_breaks() -> None:
    """DDP's own forward is no part of any graph, and no break of the user's: strict takes it."""
    train(compiled(Distributed(net()), options={"strict": True}), steps=1)
    train(Distributed(compiled(net(), options={"strict": True})), steps=1)

    class Printing(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = super().forward(x)
            torch._dynamo.graph_break()
            return x + 1

    for wrap in (
        lambda model: compiled(Distributed(model), options={"strict": True}),
        lambda model: Distributed(compiled(model, options={"strict": True})),
    ):
        with pytest.raises((CaptureError, torch._dynamo.exc.BackendCompilerFailed)) as raised:
            wrap(Printing())(torch.randn(4, 12))
        raised.match("strict: the model breaks into several graphs")


def explain_names_what_ran_where() -> None:
    with listening(Explanation("training")) as explanation:
        train(compiled(Distributed(net())), steps=1)
    text = str(explanation)
    assert explanation.error is None, explanation.error
    assert "2 programs for the IPU" in text
    assert "DistributedDataParallel" in text, text


CASES: tuple[Callable[[], None], ...] = (
    compile_around_ddp, ddp_around_compile, compile_in_place_within_ddp, compile_ddp_in_place, buckets_split_the_graph,
    gradients_accumulate_without_sync, buffers_are_those_of_the_first_process, unused_parameters, static_graph,
    bucket_views, frozen_parameters, communication_hooks, frozen_weights_follow_the_training,
    strict_refuses_what_ddp_breaks, explain_names_what_ran_where, python_reducer, python_reducer_in_the_graph,
)
