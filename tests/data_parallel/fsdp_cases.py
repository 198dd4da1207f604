"""What each of two processes checks of ``torch.compile(backend="ipu")`` and FSDP2."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from tests.data_parallel.models import Net, alone, assert_same, batches, net, train, whole_state
from torchipu.backend import COUNTS
from torchipu.explanation import Explanation, listening
from torchipu.ir.types import Role


def sharded(model: Net, **kwargs: object) -> Net:
    """Shard each layer, and the whole."""
    for layer in (model.first, model.second, model.third):
        fully_shard(layer, **kwargs)
    return fully_shard(model, **kwargs)


def compiled_blocks(model: Net, **kwargs: object) -> Net:
    for layer in (model.first, model.second, model.third):
        layer.compile(backend="ipu", **kwargs)
    return model


def compared(wrap: Callable[[Net], nn.Module], *, make: Callable[[], Net] = net, **kwargs: object) -> None:
    """Train by a wrapped model, and by eager FSDP2 with some options; compare the weights with it and with one process.

    Args:
        wrap: Shards and compiles.
        make: Makes the model.
        kwargs: Of ``fully_shard``.
    """
    torch._dynamo.reset()
    before = COUNTS.programs
    found = train(wrap(make()))
    assert COUNTS.programs > before
    assert all(isinstance(parameter, DTensor) for parameter in found.parameters())
    assert_same(found, train(sharded(make(), **kwargs)))
    assert_same(found, alone(make()), rtol=1e-4, atol=1e-5)


def sharded_blocks_are_compiled() -> None:
    compared(lambda model: compiled_blocks(sharded(model)))


def compiled_blocks_are_sharded() -> None:
    compared(lambda model: sharded(compiled_blocks(model)))


def the_whole_is_compiled() -> None:
    compared(lambda model: torch.compile(sharded(model), backend="ipu"))


def the_whole_is_compiled_in_place() -> None:
    def wrap(model: Net) -> nn.Module:
        whole = sharded(model)
        whole.compile(backend="ipu")
        return whole

    compared(wrap)


def weights_stay_whole_between_forward_and_backward() -> None:
    compared(
        lambda model: compiled_blocks(sharded(model, reshard_after_forward=False)), reshard_after_forward=False,
    )


def a_block_is_compiled_once_for_all_of_its_kind() -> None:
    before = COUNTS.programs
    train(compiled_blocks(sharded(net())), steps=1)
    assert COUNTS.programs - before == 4  # the first layer, of another shape, and one for the two that are alike


def gradients_are_reduced_when_asked() -> None:
    def accumulate(model: nn.Module, whole: FSDPModule) -> nn.Module:
        optimiser = torch.optim.SGD(whole.parameters(), lr=0.05)
        for number, (x, y) in enumerate(batches(4)):
            whole.set_requires_gradient_sync(number % 2 == 1)
            F.cross_entropy(model(x), y).backward()
            if number % 2:
                optimiser.step()
                optimiser.zero_grad()
        return whole

    eager, blocks, outer = sharded(net()), compiled_blocks(sharded(net())), sharded(net())
    expected = accumulate(eager, eager)
    assert_same(accumulate(blocks, blocks), expected)
    assert_same(accumulate(torch.compile(outer, backend="ipu"), outer), expected)


def mixed_precision_policies() -> None:
    """Half is the machine's own; float stands in for bfloat16, which it has not."""
    half = MixedPrecisionPolicy(param_dtype=torch.float16, reduce_dtype=torch.float32)
    bfloat16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for policy, held, wrap in (
        (half, "half", lambda model: torch.compile(model, backend="ipu")), (half, "half", compiled_blocks),
        (bfloat16, "float", compiled_blocks),
    ):
        torch._dynamo.reset()
        with listening(Explanation("")) as explanation:
            found = train(wrap(sharded(net(), mp_policy=policy)))
        assert explanation.error is None, explanation.error
        weights = [t for program in explanation.programs for t in program.graph.inputs if t.role is Role.WEIGHT]
        assert weights
        assert {tensor.dtype.text for tensor in weights} == {held}, weights
        assert all(value.dtype is torch.float32 for value in whole_state(found).values())
        assert_same(found, train(sharded(net(), mp_policy=policy)), rtol=0.05, atol=4e-3)


def trainable_beside_frozen_parameters() -> None:
    def make() -> Net:
        model = net()
        for layer in (model.second, model.first.norm):
            layer.requires_grad_(False)
        return model

    compared(lambda model: compiled_blocks(sharded(model)), make=make)
    compared(lambda model: torch.compile(sharded(model), backend="ipu"), make=make)


def evaluation_follows_training() -> None:
    """Weights gathered into the same memory as before are not taken for the same weights."""
    for is_sharding in (True, False):
        torch._dynamo.reset()
        model = compiled_blocks(
            sharded(net(), reshard_after_forward=is_sharding), options={"frozen_weights": True},
        )
        eager = sharded(net(), reshard_after_forward=is_sharding)
        (x, _), = batches(1)
        for _ in range(4):
            model.eval()
            eager.eval()
            with torch.no_grad():
                for _ in range(2):
                    torch.testing.assert_close(model(x), eager(x), rtol=1e-4, atol=1e-5)
            train(model.train(), steps=1)
            train(eager.train(), steps=1)


def checkpointed_blocks() -> None:
    def wrap(model: Net) -> nn.Module:
        for name in ("first", "second", "third"):
            setattr(model, name, checkpoint_wrapper(getattr(model, name)))
        return compiled_blocks(sharded(model))

    torch._dynamo.reset()
    before = COUNTS.programs
    found = train(wrap(net()))
    assert COUNTS.programs > before
    expected = whole_state(train(sharded(net())))
    for name, value in whole_state(found).items():
        torch.testing.assert_close(value, expected[name.replace("_checkpoint_wrapped_module.", "")])


def explain_says_where_the_hooks_break() -> None:
    with listening(Explanation("training")) as explanation:
        train(torch.compile(sharded(net()), backend="ipu"), steps=1)
    text = str(explanation)
    assert explanation.error is None, explanation.error
    assert "6 programs for the IPU, 2 graph breaks" in text
    assert len(explanation.broken_at) == 2
    assert all("data_parallel/models.py" in place and place.endswith("in forward") for place in explanation.broken_at)
    assert any("marked as skipped" in reason for reason in explanation.graph_breaks)


CASES: tuple[Callable[[], None], ...] = (
    sharded_blocks_are_compiled, compiled_blocks_are_sharded, the_whole_is_compiled, the_whole_is_compiled_in_place,
    weights_stay_whole_between_forward_and_backward, a_block_is_compiled_once_for_all_of_its_kind,
    gradients_are_reduced_when_asked, mixed_precision_policies, trainable_beside_frozen_parameters,
    evaluation_follows_training, checkpointed_blocks, explain_says_where_the_hooks_break,
)
