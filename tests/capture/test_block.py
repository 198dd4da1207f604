"""Block and BeginBlock reach the nodes of forward and backward graphs."""

import copy
import inspect
import pickle

import pytest
import torch
from torch import nn

from torchipu.capture.aot import capture_inference, capture_joint
from torchipu.capture.block import BeginBlock, Block
from torchipu.errors import PlacementError
from torchipu.ir.types import Leg


@Block("decorated", 3)
def decorated(x):
    return x.sin()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = BeginBlock(nn.Linear(4, 4), "second", ipu_id=2)

    def forward(self, x):
        with Block("outer", 0):
            x = self.first(x).cos()
            with Block("inner", 1):
                x = x.exp()
            x = x.neg()
        return decorated(self.second(x)).tanh().sum()


def blocks(graph, leg):
    return {op.target.split(".")[1]: op.block for op in graph.ops if op.leg is leg}


def test_blocks_reach_forward_nodes():
    graph = capture_inference(Model(), (torch.randn(2, 4),)).graph
    found = blocks(graph, Leg.FORWARD)
    assert found["cos"] == ("outer", 0)
    assert found["exp"] == ("inner", 1)
    assert found["neg"] == ("outer", 0)
    assert found["addmm"] == ("second", 2)
    assert found["sin"] == ("decorated", 3)
    assert found["tanh"] is None


def test_blocks_reach_backward_nodes():
    graph = capture_joint(Model(), (torch.randn(2, 4),)).graph
    backward = [op for op in graph.ops if op.leg is Leg.BACKWARD]
    weight_gradients = [op.block for op in backward if op.target == "aten.mm.default"]
    assert ("second", 2) in weight_gradients
    assert ("outer", 0) in weight_gradients
    assert {op.block for op in backward if op.target == "aten.cos.default"} == {("decorated", 3)}


def test_begin_block_changes_neither_type_nor_names():
    plain, begun = nn.Linear(4, 4), BeginBlock(nn.Linear(4, 4), ipu_id=1)
    assert type(begun) is nn.Linear
    assert list(begun.state_dict()) == list(plain.state_dict())
    assert inspect.signature(begun.forward) == inspect.signature(plain.forward)


def test_a_copy_of_a_begun_module_uses_its_own_weights():
    module = BeginBlock(nn.Linear(4, 4), ipu_id=1)
    twin = copy.deepcopy(module)
    with torch.no_grad():
        twin.weight.zero_()
        twin.bias.fill_(7)
    assert torch.equal(twin(torch.randn(1, 4)), torch.full((1, 4), 7.0))
    assert not torch.equal(module(torch.randn(1, 4)), torch.full((1, 4), 7.0))


def test_a_begun_module_survives_pickling_with_its_block():
    module = pickle.loads(pickle.dumps(BeginBlock(nn.Linear(4, 4), "here", ipu_id=1)))
    graph = capture_inference(module, (torch.randn(1, 4),)).graph
    assert {op.block for op in graph.ops if op.target == "aten.addmm.default"} == {("here", 1)}


def test_beginning_a_block_twice_keeps_the_last():
    module = BeginBlock(BeginBlock(nn.Linear(4, 4), "a", 0), "b", 1)
    graph = capture_inference(module, (torch.randn(1, 4),)).graph
    assert {op.block for op in graph.ops if op.target == "aten.addmm.default"} == {("b", 1)}


def test_the_default_name_is_the_class_of_the_module():
    graph = capture_inference(BeginBlock(nn.Linear(4, 4)), (torch.randn(1, 4),)).graph
    assert {op.block for op in graph.ops if op.target == "aten.addmm.default"} == {("Linear", None)}


@pytest.mark.parametrize("ipu", [-1, 1.5, "0", True])
def test_an_ipu_that_is_no_count_is_refused(ipu):
    with pytest.raises(PlacementError, match="ipu_id must be a whole number from 0"):
        Block("a", ipu)
    with pytest.raises(PlacementError, match="ipu_id must be a whole number from 0"):
        BeginBlock(nn.Linear(1, 1), "a", ipu)


def test_a_block_without_a_name_is_refused():
    with pytest.raises(PlacementError, match="needs a name"):
        Block("")


def test_begin_block_refuses_what_is_no_module():
    with pytest.raises(PlacementError, match=r"needs a torch\.nn\.Module, got function"):
        BeginBlock(decorated)


class Wrong(nn.Module):
    def forward(self, x):
        with Block("a", -1):
            return x.cos()


def test_a_wrong_block_within_the_model_is_a_placement_error():
    with pytest.raises(PlacementError, match="block 'a': ipu_id"):
        capture_inference(Wrong(), (torch.randn(2),))


def test_blocks_do_nothing_to_eager_values():
    x = torch.randn(3)
    with Block("a", 0):
        assert torch.equal(x.cos(), torch.cos(x))
