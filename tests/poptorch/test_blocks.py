"""Blocks: where ops of a captured run are placed, and that nothing happens outside of a capture."""

from __future__ import annotations

import copy
import io
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx import traceback
from torch.fx.experimental.proxy_tensor import make_fx

from torchipu import poptorch
from torchipu.poptorch.capturing import on_ipu
from torchipu.poptorch.operators import blocks, placing

INCREMENT = poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement)
SHARDED = poptorch.ShardedExecution(poptorch.AutoStage.AutoIncrement)


def place(model: Callable[..., Any], strategy: Any = INCREMENT) -> list[tuple[str, int | None]]:
    """Return the block of each op of a run of a model."""

    def run(x: torch.Tensor) -> Any:
        with traceback.preserve_node_meta(), placing.placing(strategy), on_ipu():
            return model(x)

    graph = make_fx(run)(torch.ones(2, 2)).graph
    return [node.meta["custom"]["ipu_block"] for node in graph.nodes if node.op == "call_function"
            and "detach" not in node.name]


def test_with_block_places_its_ops_and_none_after_it() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        with poptorch.Block("a", ipu_id=0):
            x = x.relu()
        with poptorch.Block("b", ipu_id=1):
            x = x.exp()
        return x.sin()

    placed = place(model)
    assert placed == [(placing.BEFORE_ALL_BLOCKS, 0), ("a", 0), ("b", 1), (placing.NO_BLOCK, None)]


def test_started_block_and_begun_module_hold_until_the_next() -> None:
    relu = poptorch.BeginBlock(torch.nn.ReLU(), "second", ipu_id=1)

    def model(x: torch.Tensor) -> torch.Tensor:
        poptorch.Block.start("first", ipu_id=0)
        return relu(x.exp() + 1).sin()

    assert place(model) == [("first", 0), ("first", 0), ("second", 1), ("second", 1)]


def test_decorated_function_is_a_block() -> None:
    @poptorch.BlockFunction("f", ipu_id=2)
    def double(x: torch.Tensor) -> torch.Tensor:
        """Twice."""
        return x * 2

    assert place(double) == [("f", 2)]
    assert (double.__name__, double.__doc__) == ("double", "Twice.")


def test_stage_of_the_strategy_wins_over_the_ipu_of_the_block() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        with poptorch.Block("a", ipu_id=0):
            return x + 1

    assert place(model, poptorch.PipelinedExecution(poptorch.Stage("a").ipu(3))) == [("a", 3)]


def test_block_without_an_ipu_takes_the_number_of_its_stage() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        for name in "ab":
            with poptorch.Block(name):
                x = x + 1
        return x

    assert place(model, poptorch.PipelinedExecution("a", "b")) == [("a", 0), ("b", 1)]
    assert place(model) == [("a", 1), ("b", 2)]
    with pytest.raises(AssertionError, match=r"Unknown Block 'b' list of expected Blocks: \['a'\]"):
        place(model, poptorch.PipelinedExecution("a"))


def test_automatic_names_are_the_same_in_every_run() -> None:
    first, second = (poptorch.BeginBlock(torch.nn.ReLU(), ipu_id=ipu) for ipu in (0, 1))

    def model(x: torch.Tensor) -> torch.Tensor:
        x = second(first(x))
        with poptorch.Block(ipu_id=1):
            return x.exp()

    for _ in range(2):
        assert place(model, SHARDED) == [("0", 0), ("1", 1), ("2", 1)]


def test_use_auto_id_begins_anew() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            poptorch.Block.useAutoId()
            with poptorch.Block(ipu_id=0):
                x = x + 1
        return x

    assert place(model) == [("0", 0), ("0", 0)]


def test_return_to_a_block_from_another_ipu_is_a_stage_of_its_own() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        for name, ipu in (("a", 0), ("b", 1), ("a", 0), ("a", 0), ("b", 1)):
            poptorch.Block.start(name, ipu)
            x = x + 1
        return x

    names = [name for name, _ in place(model)]
    assert names[0] == "a"
    assert names[1] == "b"
    assert names[2] == names[3]
    assert len({names[0], names[1], names[2], names[4]}) == 4


def test_error_within_a_run_leaves_no_block_active() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        with poptorch.Block("a"):
            raise ValueError("mine")

    with pytest.raises(ValueError, match=r"^mine$"):
        place(model)
    assert placing.placing_now() is None
    assert "custom" not in traceback.current_meta


def test_outside_of_a_capture_nothing_happens() -> None:
    module = poptorch.BeginBlock(torch.nn.ReLU(), "a", 0)
    with poptorch.Block("b", 1):
        poptorch.Block.start("c")
        poptorch.Block.useAutoId()
        assert torch.equal(module(torch.tensor([-1.0, 1.0])), torch.tensor([0.0, 1.0]))
    assert "custom" not in traceback.current_meta


def test_begun_module_stays_itself_and_can_be_copied_and_saved() -> None:
    module = torch.nn.Linear(2, 2)
    names = [name for name, _ in module.named_parameters()]
    assert poptorch.BeginBlock(module, "a", ipu_id=1) is module
    assert [name for name, _ in module.named_parameters()] == names
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    for twin in (copy.copy(module), copy.deepcopy(module), torch.load(file, weights_only=False)):
        assert place(twin) == [("a", 1)] * len(place(module))
    with pytest.raises(poptorch.Error, match=re.escape("module has already been assigned to a block.")):
        poptorch.BeginBlock(module, "b")
    poptorch.removeBlocks(module)
    assert place(module)[0][0] == placing.BEFORE_ALL_BLOCKS
    poptorch.BeginBlock(module, "b")


def test_begun_function_is_a_module_that_knows_its_block() -> None:
    function = poptorch.BeginBlock(torch.relu, "a", ipu_id=1)
    assert isinstance(function, torch.nn.Module)
    assert (function._user_id, function._ipu_id) == ("a", 1)
    file = io.BytesIO()
    torch.save(function, file)
    assert place(function) == [("a", 1)]


def test_removing_blocks_reaches_inner_modules_and_needs_a_module() -> None:
    model = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Sequential(poptorch.BeginBlock(torch.nn.ReLU(), "a", 1)))
    poptorch.removeBlocks(model)
    assert not [module for module in model.modules() if module._forward_pre_hooks]
    with pytest.raises(AssertionError, match=r"takes a torch\.nn\.Module"):
        poptorch.removeBlocks(torch.relu)
    with pytest.raises(poptorch.Error, match="callable"):
        poptorch.BeginBlock(3)


def test_text_of_a_module_shows_where_blocks_begin(capsys: pytest.CaptureFixture[str]) -> None:
    model = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Sequential(torch.nn.Linear(2, 3)))
    assert blocks.module_repr(model) == repr(model)
    poptorch.BeginBlock(model[1], "a", ipu_id=1)
    assert blocks.module_repr(model) == """Sequential(
  (0): ReLU()
  (1): BeginBlock(user_id=a, ipu_id=1) Sequential(
    (0): Linear(in_features=2, out_features=3, bias=True)
  )
)"""
    poptorch.print(model)
    assert capsys.readouterr().out == f"{blocks.module_repr(model)}\n{model!r}\n"


@pytest.mark.parametrize(("strategy", "stages"), [
    (lambda: poptorch.ShardedExecution(poptorch.AutoStage.AutoIncrement), [1, 2]),
    (lambda: poptorch.ShardedExecution("other", "a", "b"), [1, 2]),
])
def test_the_log_has_the_stages_of_the_strategy(
    strategy: Callable[[], Any], stages: list[int], debug_log: Callable[[], str],
) -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        with poptorch.Block("a", ipu_id=0):
            x = x.exp()
        with poptorch.Block("b", ipu_id=1):
            return x.cos()

    poptorch.inferenceModel(forward, poptorch.Options().setExecutionStrategy(strategy())).compile(torch.ones(2))
    log = debug_log()
    assert f"Exp:0 [float32(2), mode(Sharded), ipu(0), stage({stages[0]})]" in log
    assert f"Cos:0 [float32(2), mode(Sharded), ipu(1), stage({stages[1]})]" in log


def test_the_log_calls_a_product_with_a_bias_one_op(debug_log: Callable[[], str]) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 3, bias=False))
    poptorch.inferenceModel(model).compile(torch.ones(4, 2))
    log = debug_log()
    assert "0/Gemm:0 [float32(4, 3), mode(Pipelined), ipu(0), stage(0)]" in log
    assert "1/MatMul:0 [float32(4, 3), mode(Pipelined), ipu(0), stage(0)]" in log


@pytest.mark.parametrize(("ipus", "accumulation", "iterations", "is_training", "message"), [
    ([0, 1, 2], 4, 9, True,
     "poptorch.Options().Training.gradientAccumulation must be greater than or equal to the number of pipeline stages "
     "(5)"),
    ([0, 1, 2], 9, 2, False,
     "poptorch.Options().deviceIterations must be greater than or equal to the number of pipeline stages (3)"),
    ([0, 1, 2], 5, 1, True, ""), ([0, 1, 2], 1, 3, False, ""), ([0, 0], 1, 1, True, ""),
])
def test_pipeline_must_be_filled(
    ipus: list[int], accumulation: int, iterations: int, is_training: bool, message: str
) -> None:
    def check(strategy: Any) -> None:
        placing.check_depth(strategy, ipus, gradient_accumulation=accumulation, device_iterations=iterations,
                           is_training=is_training)

    check(SHARDED)
    if not message:
        check(INCREMENT)
        return
    with pytest.raises(poptorch.Error, match=re.escape(message)):
        check(INCREMENT)


# ---------------------------------------------------------------------- MultiConv
def two_convolutions(**settings: Any) -> Callable[[torch.Tensor], Any]:
    """Return a model with two convolutions in a MultiConv."""
    def model(x: torch.Tensor) -> Any:
        scope = poptorch.MultiConv()
        for name, value in settings.items():
            assert getattr(scope, name)(value) is scope
        with scope:
            kernel = torch.ones(1, 1, 1)
            return torch.nn.functional.conv1d(x[None, :1], kernel), torch.nn.functional.conv1d(x[None, 1:], kernel)

    return model


def test_multi_conv_takes_settings_for_all_or_for_each() -> None:
    place(two_convolutions(
        availableMemoryProportions=[0.1, 0.2], partialsTypes=torch.half, enableConvDithering=[True, False],
        planType=poptorch.MultiConvPlanType.Serial, perConvReservedTiles=16, cycleBackOff=0.5,
    ))


@pytest.mark.parametrize(("settings", "kind", "text"), [
    ({"partialsTypes": torch.int32}, ValueError, "Invalid partials types"),
    ({"partialsTypes": [torch.half, "half"]}, ValueError, "Invalid partials types"),
    ({"enableConvDithering": 1}, ValueError, "Invalid conv dithering"),
    ({"planType": 1}, AssertionError, "Invalid plan type!"),
    ({"perConvReservedTiles": 1.5}, AssertionError, "perConvReservedTiles"),
    ({"cycleBackOff": "1"}, AssertionError, "cycleBackOff"),
    ({"availableMemoryProportions": [0.1]}, poptorch.Error, "1 values for 2 convolutions"),
])
def test_multi_conv_refuses(settings: dict[str, Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        place(two_convolutions(**settings))
    place(two_convolutions())


def test_multi_conv_is_one_op_of_the_program_as_popart_shows_it() -> None:
    class Convolutions(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Conv1d(2, 2, 1) for _ in range(5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with poptorch.MultiConv():
                first = self.layers[0](x) + self.layers[1](x)
            with poptorch.MultiConv().planType(poptorch.MultiConvPlanType.Serial):
                second = self.layers[2](first) + self.layers[3](first)
            return self.layers[4](second)

    model = Convolutions()
    step = poptorch.inferenceModel(model)
    x = torch.randn(1, 2, 3)
    torch.testing.assert_close(step(x), model(x))
    ops = json.loads(step._debugGetPopartIR())["maingraph"]
    assert [op["type"] for op in ops if "Conv" in op["type"]] == ["MultiConv", "MultiConv", "Conv"]
    assert [len(op["outputs"]) for op in ops if op["type"] == "MultiConv"] == [2, 2]
    assert [op["name"] for op in ops if op["type"] == "Conv"] == ["layers/4/Conv"]


def test_multi_conv_is_neither_nested_nor_empty() -> None:
    def nested(x: torch.Tensor) -> torch.Tensor:
        with poptorch.MultiConv(), poptorch.MultiConv():
            return x + 1

    def empty(x: torch.Tensor) -> torch.Tensor:
        with poptorch.MultiConv():
            return x + 1

    with pytest.raises(poptorch.Error, match=re.escape("Nested poptorch.MultiConv is not supported.")):
        place(nested)
    with pytest.raises(poptorch.Error, match="Unexpected end_multi_conv"):
        place(empty)
    assert torch.equal(empty(torch.ones(1)), torch.full((1,), 2.0))
