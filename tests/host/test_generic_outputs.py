"""Results of a program that a generic step reads or writes."""

import torch

from torchipu.host.executor import GraphExecutor
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.types import DType


def test_output_that_a_generic_step_reads_reaches_both_readers():
    x, ids = Tensor("x", (16, 8), DType.FLOAT), Tensor("ids", (40,), DType.LONG)
    picked, last = Tensor("picked", (40, 8), DType.FLOAT), Tensor("last", (40, 8), DType.FLOAT)
    ops = (
        Op("index_select", (x, ids), (picked,), {"dim": 0}, "aten.index_select.default", ("self", "index")),
        Op("generic", (picked,), (last,), {}, "aten.special_erfcx.default", ("self",)),
    )
    table, index = torch.randn(16, 8), torch.randint(0, 16, (40,))
    found = GraphExecutor(Graph("g", (x, ids), (last, picked), ops))(table, index)
    assert torch.equal(found[1], table[index])
    torch.testing.assert_close(found[0], torch.special.erfcx(table[index]))
