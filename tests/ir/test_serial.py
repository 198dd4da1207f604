"""Graphs as JSON: what is read back prints as what was written."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from torchipu.capture.aot import capture_inference, capture_joint
from torchipu.capture.block import Block
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.serial import graph_from_data, graph_to_data
from torchipu.ir.text import format_graph
from torchipu.ir.types import DType


class Model(nn.Module):
    """Uses attributes of many kinds, a buffer that it writes, and a block."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with Block("first", ipu_id=0):
            x = self.norm(self.conv(x))
        return torch.cat([x.half().float(), x.new_full((1, 4, 6, 6), float("inf")).clamp(max=2)]).pow(2).mean()


def test_a_graph_comes_back_as_it_was() -> None:
    graph = capture_joint(Model(), (torch.rand(3, 2, 6, 6),)).graph
    found = graph_from_data(json.loads(json.dumps(graph_to_data(graph))))
    assert format_graph(found) == format_graph(graph)
    assert [dict(op.attrs) for op in found.ops] == [dict(op.attrs) for op in graph.ops]
    assert [(op.kind, op.target, op.operands, op.source, op.leg, op.block) for op in found.ops] == [
        (op.kind, op.target, op.operands, op.source, op.leg, op.block) for op in graph.ops
    ]
    assert [(state.name, value.name) for state, value in found.updates] == [
        (state.name, value.name) for state, value in graph.updates
    ]


def test_graphs_that_ops_run_come_back() -> None:
    class Choice(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 0, lambda a: a.sin() * 2, lambda a: a - 1, (x,))

    graph = capture_inference(Choice(), (torch.rand(3),)).graph
    found = graph_from_data(json.loads(json.dumps(graph_to_data(graph))))
    assert format_graph(found) == format_graph(graph)
    bodies = [[op.target for op in body.ops] for op in found.ops for body in op.bodies]
    assert bodies == [["aten.sin.default", "aten.mul.Tensor"], ["aten.sub.Tensor"]]


def test_lines_stand_in_a_file_once_and_files_of_before_have_one_for_each_op() -> None:
    class Twice(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sin().cos()

    graph = capture_inference(Twice(), (torch.rand(3),)).graph
    data = json.loads(json.dumps(graph_to_data(graph)))
    assert graph.ops[0].source == graph.ops[1].source
    assert {op["source"] for op in data["ops"]} == {0}
    lines = data.pop("sources")
    assert len(lines) == 1
    for op in data["ops"]:
        op["source"] = lines[0]
    assert [op.source for op in graph_from_data(data).ops] == [op.source for op in graph.ops]


def test_attributes_keep_tuples_apart_from_lists() -> None:
    x = Tensor("x", (2,), DType.HALF)
    attrs = {"a": (1, [2.5, None]), "b": [True, DType.LONG], "c": "text"}
    graph = Graph("g", (x,), (x,), (Op("k", (x,), (x,), attrs),))
    assert dict(graph_from_data(json.loads(json.dumps(graph_to_data(graph)))).ops[0].attrs) == attrs


def test_an_attribute_that_json_cannot_hold_is_refused() -> None:
    x = Tensor("x", (2,), DType.HALF)
    with pytest.raises(TypeError, match="object"):
        graph_to_data(Graph("g", (x,), (x,), (Op("k", (x,), (x,), {"a": object()}),)))
