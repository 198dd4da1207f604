"""Hints, names and attributes of ops, and printing: values stay, and the program has what was asked for."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import torch
from torch import nn

from tests.poptorch.models import options, sgd
from torchipu import poptorch

X = torch.arange(6.0).reshape(2, 3)


def types(step: Any) -> list[str]:
    """Return the types of the ops of a program."""
    return [op["type"] for op in json.loads(step._debugGetPopartIR())["maingraph"]]


class Hinted(nn.Module):
    """A loss behind one hint."""

    def __init__(self, hint: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.hint = nn.Linear(3, 2), hint

    def forward(self, x: torch.Tensor) -> Any:
        y = self.hint(self.layer(x).tanh())
        return y, poptorch.identity_loss(y.square(), "sum")


HINTS = [
    poptorch.nop, poptorch.recomputationCheckpoint, lambda x: poptorch.set_available_memory(x, 0.3),
    lambda x: poptorch.recomputationCheckpoint([x, x])[1], lambda x: poptorch.recomputationCheckpoint(x, x)[0],
    poptorch.ipu_print_tensor,
]


@pytest.mark.parametrize("hint", HINTS)
def test_hints_change_no_values_and_no_gradients(hint: Any) -> None:
    model, twin = Hinted(hint), Hinted(lambda x: x)
    assert model(X)[0].equal(twin(X)[0])  # on the CPU too
    step = poptorch.trainingModel(model, options(accumulation=2), sgd(model))
    other = poptorch.trainingModel(twin, options(accumulation=2), sgd(twin))
    assert step(X)[0].equal(other(X)[0])
    assert model.layer.weight.equal(twin.layer.weight)


@pytest.mark.parametrize(("call", "kind", "words"), [
    (lambda: poptorch.nop(3), poptorch.Error, "nop must be given a tensor"),
    (lambda: poptorch.set_available_memory([X], 0.1), poptorch.Error, "set_available_memory must be given a tensor"),
    (lambda: poptorch.set_available_memory(X, 1.5), poptorch.Error, "above 0 and at most 1, not 1.5"),
    (lambda: poptorch.ipu_print_tensor("x"), poptorch.Error, "ipu_print_tensor must be given a tensor"),
    (lambda: poptorch.ipu_print_tensor(X, float_format="hex"), poptorch.Error, "must be one of auto, fixed"),
    (lambda: poptorch.recomputationCheckpoint(X, 3), ValueError, "All inputs must be tensors"),
    (lambda: poptorch.recomputationCheckpoint([X, None]), ValueError, "All inputs must be tensors"),
    (lambda: poptorch.NameScope(3), AssertionError, "must be a string"),
    (lambda: poptorch.Attribute(layer=3), poptorch.Error, "Attribute layer must be a dictionary"),
    (lambda: poptorch.getIpuTensorId(X), poptorch.Error, "not on the IPU"),
])
def test_hints_refuse_what_is_no_tensor(call: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        call()


def test_containers_of_checkpoints_keep_their_kind() -> None:
    assert type(poptorch.recomputationCheckpoint([X])) is list
    assert type(poptorch.recomputationCheckpoint((X, X))) is tuple
    assert type(poptorch.recomputationCheckpoint(X, X)) is tuple


def test_nop_stays_in_the_program() -> None:
    step = poptorch.inferenceModel(lambda x: poptorch.nop(poptorch.nop(x + 1)))
    assert step(X).equal(X + 1)
    assert types(step) == ["Add", "Nop", "Nop"]


def test_scopes_and_attributes_are_on_the_ops_within() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.ReLU())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.exp()
            with poptorch.NameScope("outer"), poptorch.Attribute(__outline={"layer": "embedding", "n": 1}):
                x = self.inner(x)
                with poptorch.NameScope("deep"), poptorch.Attribute(__outline={"n": 2}, other={"a": "b"}):
                    poptorch.Block.start("behind", ipu_id=0)
                    x = x.sin()
                x = x.cos()
            return x.tanh()

    step = poptorch.inferenceModel(Model())
    step(X)
    ops = json.loads(step._debugGetPopartIR())["maingraph"]
    assert [op["name"] for op in ops] == ["Exp", "outer/inner/0/Relu", "outer/deep/Sin", "outer/Cos", "Tanh"]
    told = [json.loads(op["attributes"].get("__outline", "{}")) for op in ops]
    embedding = {"layer": "embedding", "n": "1"}
    assert told == [{}, embedding, {**embedding, "n": "2"}, embedding, {}]
    assert ["other" in op["attributes"] for op in ops] == [False, False, True, False, False]
    # A block that begins within lasts on behind them.
    assert [op.placement.block for op in step._executable.compiled.graph.ops][2:] == ["behind"] * 3


def test_scopes_do_nothing_without_a_wrapper() -> None:
    with poptorch.NameScope("a"), poptorch.Attribute(b={"c": 1}):
        assert not torch.fx.traceback.current_meta.get("custom")


# --------------------------------------------------------------------------- printing
def test_values_and_gradients_are_printed_by_the_program(capfd: Any) -> None:
    model = Hinted(lambda x: poptorch.ipu_print_tensor(x, "act", digits=3, float_format="fixed"))
    twin = Hinted(lambda x: x)
    step = poptorch.trainingModel(model, options(accumulation=2), sgd(model))
    step.compile(X)
    assert "act" not in capfd.readouterr().err
    for _ in range(2):
        step(X)
    printed = capfd.readouterr().err
    found = re.findall(r"^(act|act_gradient): \(\(([-\d.]+), ([-\d.]+)\)\)$", printed, re.M)
    assert [name for name, *_ in found] == ["act", "act_gradient"] * 4  # a micro-batch has one row
    for (_, *values), (_, *slopes), row in zip(found[::2], found[1::2], X, strict=False):
        expected = twin.layer(row).tanh().detach()
        torch.testing.assert_close(torch.tensor([float(v) for v in values]), expected, atol=6e-4, rtol=0)
        torch.testing.assert_close(torch.tensor([float(v) for v in slopes]), 2 * expected, atol=6e-4, rtol=0)


def test_printing_happens_although_nobody_reads_the_result(capfd: Any) -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        poptorch.ipu_print_tensor(x * 2, "lost")
        return x + 1

    poptorch.inferenceModel(model)(torch.tensor([1.5]))
    assert capfd.readouterr().err.count("lost: (3.0000)") == 1


@pytest.mark.parametrize(("value", "settings", "text"), [
    ([1.0, 2.5], {}, "t: (1.0000, 2.5000)"),
    ([1.0, 2.5], {"digits": 1, "separator": " ", "open_bracket": "[", "close_bracket": "]"}, "t: [1.0 2.5]"),
    ([1.0, 2.5], {"float_format": "scientific", "digits": 2}, "t: (1.00e+00, 2.50e+00)"),
    ([1.0, 2.5], {"float_format": "none"}, "t: (1.0, 2.5)"),
    ([[1, 2], [3, 4]], {"open_bracket": "<<", "close_bracket": ">>"}, "t: <<<<1, 2>>,\n    <<3, 4>>>>"),
    (list(range(20)), {"summarise_threshold": 10, "edge_items": 2}, "t: ( 0,  1, ..., 18, 19)"),
    (list(range(9)), {"max_line_width": 12}, "t: (0, 1, 2,\n    3, 4, 5,\n    6, 7, 8)"),
])
def test_tensors_are_written_as_asked_for(value: Any, settings: Any, text: str, capfd: Any) -> None:
    x = torch.tensor(value, dtype=torch.float32 if isinstance(value[0], float) else torch.int32)
    step = poptorch.inferenceModel(lambda x: poptorch.ipu_print_tensor(x, "t", **settings))
    assert step(x).equal(x)
    assert f"{text}\n" in capfd.readouterr().err


def test_printing_within_a_loop_happens_with_each_trip(capfd: Any) -> None:
    def body(x: torch.Tensor) -> torch.Tensor:
        return poptorch.ipu_print_tensor(x, "trip") + 1

    step = poptorch.inferenceModel(lambda x: poptorch.for_loop(3, body, [x]))
    assert step(torch.tensor([0.0]))[0].item() == 3
    assert re.findall(r"trip: \((\d)", capfd.readouterr().err) == ["0", "1", "2"]


def test_print_of_the_host_is_paid_for() -> None:
    def cycles(hint: Any) -> int:
        settings = poptorch.Options()
        settings.logCycleCount(True)
        step = poptorch.inferenceModel(lambda x: hint(x.exp()), settings)
        step(torch.ones(100, 100))
        return step.cycleCount()

    assert cycles(lambda x: poptorch.ipu_print_tensor(x, summarise_threshold=1)) > cycles(lambda x: x)
