"""Device costs of norms, softmax, losses, look-ups, updates and ops without a record."""

import pytest

from torchipu.device.generic import lower_generic
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.optable.spec import lookup
from torchipu.target import lookup_target

TARGET = lookup_target("mk2")


def op_of(target, operands, results, attrs=None, dtype=DType.FLOAT):
    inputs = tuple(Tensor(name.split("[")[0], shape,
                          DType.LONG if name.startswith(("ind", "target", "hyper")) else dtype)
                   for name, shape in operands.items())
    outputs = tuple(Tensor(f"o{i}", shape, dtype) for i, shape in enumerate(results))
    return Op(lookup(target).kind, inputs, outputs, attrs or {}, target, tuple(operands))


def cycles(op, lower=None):
    sets = (lower or lookup(op.target).lower)(op, TARGET)
    total = 0
    for vertices in sets:
        grains = -(-vertices.elements // vertices.grain)
        mine = min(vertices.elements, -(-grains // (vertices.max_tiles or TARGET.num_tiles)) * vertices.grain)
        total += vertices.codelet.cycles(TARGET, vertices.work(mine))
        assert vertices.codelet.source
        assert vertices.gathered_bytes >= 0
    return total


def layer_norm(rows, width=768, dtype=DType.FLOAT):
    return op_of("aten.native_layer_norm.default", {"input": (rows, width)}, [(rows, width), (rows, 1), (rows, 1)],
                 {"normalized_shape": [width], "eps": 1e-5}, dtype)


def batch_norm_grad(channels):
    shape = (4, channels, 14, 14)
    return op_of("aten.native_batch_norm_backward.default", {"grad_out": shape, "input": shape}, [shape],
                 {"train": True})


def softmax(rows, dtype=DType.FLOAT):
    return op_of("aten._softmax.default", {"self": (rows, 128)}, [(rows, 128)], {"dim": -1}, dtype)


def nll(rows):
    return op_of("aten.nll_loss_forward.default", {"self": (rows, 10), "target": (rows,)}, [(), ()],
                 {"reduction": 1, "ignore_index": -100})


def mse(rows):
    return op_of("aten.mse_loss.default", {"self": (rows, 16), "target": (rows, 16)}, [()], {"reduction": 1})


def embedding(rows):
    return op_of("aten.embedding.default", {"weight": (1000, 64), "indices": (rows,)}, [(rows, 64)], {})


def embedding_grad(rows):
    return op_of("aten.embedding_dense_backward.default", {"grad_output": (rows, 64), "indices": (rows,)}, [(1000, 64)],
                 {"padding_idx": -1})


def index_put(rows):
    return op_of("aten.index_put.default", {"self": (1000, 64), "indices[x]": (rows,), "values": (rows, 64)},
                 [(1000, 64)],
                 {"accumulate": True})


def adam(rows):
    shape = (rows, 64)
    return op_of("ipu.adam.default", {"param": shape, "grad": shape, "exp_avg": shape, "exp_avg_sq": shape,
                                      "hyper": (16,),
                                      "step": ()}, [shape] * 3)


@pytest.mark.parametrize("make", [layer_norm, batch_norm_grad, softmax, nll, mse, embedding, embedding_grad, index_put,
                                  adam])
def test_cycles_grow_with_the_work(make):
    small, large = cycles(make(64)), cycles(make(64 * 1024))
    assert 0 < small < large


@pytest.mark.parametrize("make", [layer_norm, softmax])
def test_halves_take_fewer_cycles_than_floats(make):
    assert cycles(make(8192, dtype=DType.HALF)) < cycles(make(8192))


def test_softmax_of_many_rows_agrees_with_silicon():
    # 8 rows x 736 halves on each of 1,472 tiles: 18,300 cycles; ipu_hardware.md 2.3.
    shape = (8 * 1472, 736)
    op = op_of("aten._softmax.default", {"self": shape}, [shape], {"dim": -1}, DType.HALF)
    assert 0.95 < cycles(op) / 18_300 < 1.05


def test_empty_ops_run_nothing():
    assert lookup("aten._softmax.default").lower(softmax(0), TARGET) == ()


def test_generic_op_is_one_compute_set_marked_as_an_estimate():
    op = Op("generic", (Tensor("x", (100, 64), DType.FLOAT),), (Tensor("y", (100,), DType.LONG),), {},
            "aten.median.dim", ("self",))
    vertices, = lower_generic(op, TARGET)
    assert vertices.codelet.source == "estimate"
    assert vertices.gathered_bytes > 0
    assert cycles(op, lower_generic) > 0
