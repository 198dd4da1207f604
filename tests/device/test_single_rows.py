"""Layers that are trained on one sample: when they do without the matrix unit, and what that costs and computes."""

from __future__ import annotations

import pytest
import torch

import torchipu
from tests.device.tilings.judged import judge
from torchipu.device.matrix_unit import AMP, COPY
from torchipu.device.product_sets import BACKWARD, FORWARD, LAYER_PASS, UPDATE
from torchipu.device.single_rows import DOT, OUTER, TRANSPOSE_SHARE, plan_of_layer, transpose_cycles
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.optable.spec import lookup
from torchipu.score.products import DTYPES, Product
from torchipu.score.programs import Frozen, outcome_of
from torchipu.target import lookup_target


# --------------------------------------------------------------------------- against the vendor's planner
@pytest.mark.parametrize(("machine", "dtype", "cycles"), [
    ("mk1", "half", 12_349), ("mk2", "half", 12_185), ("mk1", "float", 34_192),
])
def test_a_layer_without_the_matrix_unit_takes_what_the_ipu_model_says(machine: str, dtype: str, cycles: int) -> None:
    outcome = outcome_of(Product(1, 1, 1000, 1000, DTYPES[dtype], trains=True), Frozen(machine))
    assert outcome.device_cycles == pytest.approx(cycles, rel=0.05)


@pytest.mark.parametrize(("machine", "dtype", "outputs", "has_unit"), [
    ("mk1", "half", 1000, False), ("mk2", "half", 1000, False), ("mk1", "float", 1000, False),
    ("mk2", "float", 1000, True), ("mk1", "half", 5, True), ("mk2", "half", 5, True), ("mk1", "float", 5, True),
    ("mk2", "float", 5, True),
])
def test_interleaved_memory_is_used_where_the_ipu_model_used_it(
    machine: str, dtype: str, outputs: int, has_unit: bool,
) -> None:
    """The published fullest tiles are above the region of code in just these cases."""
    outcome = outcome_of(Product(1, 1, 1000, outputs, DTYPES[dtype], trains=True), Frozen(machine))
    assert (outcome.tile_bytes > lookup_target(machine).code_region_bytes) == has_unit


# --------------------------------------------------------------------------- any plan
@pytest.mark.parametrize("sizes", [(1000, 960), (2048, 1000), (1000, 2048), (768, 3072)])
@pytest.mark.parametrize("is_half", [True, False])
def test_tiles_share_all_of_a_weight_and_its_transpose_in_the_same_way(sizes: tuple[int, int], is_half: bool) -> None:
    target = lookup_target("mk1")
    plan, turned = (
        plan_of_layer(target, *some, is_half=is_half, output_group=8 if is_half else 4, available_memory=0.6)
        for some in (sizes, sizes[::-1])
    )
    assert plan is not None
    assert turned is not None
    assert turned == plan.turned
    assert plan.input_split * plan.output_split <= target.num_tiles
    for split, share, size in ((plan.input_split, plan.inputs, sizes[0]), (plan.output_split, plan.outputs, sizes[1])):
        assert (split - 1) * share < size <= split * share


def test_one_worker_transposes_halves_in_grains_and_floats_one_by_one() -> None:
    target = lookup_target("mk2")
    assert transpose_cycles(target, 24, 36, is_half=True) == 7 + 6 * (29 + 18 + 6 * (12 + 4 * 7))
    assert transpose_cycles(target, 24, 36, is_half=False) == 7 + 6 * (13 + 8 + 36 * (5 + 48))
    assert transpose_cycles(target, 25, 36, is_half=True) > 5 * transpose_cycles(target, 24, 36, is_half=True)


@pytest.mark.parametrize(("layer_pass", "sizes", "expected"), [
    (FORWARD, (1, 1000, 600), DOT), (BACKWARD, (1, 600, 1000), DOT), (UPDATE, (1000, 1, 600), OUTER),
    (UPDATE, (600, 1, 1000), OUTER), (None, (1, 1000, 600), AMP), (FORWARD, (2, 1000, 600), AMP),
    (FORWARD, (1, 1000, 602), AMP),
])
def test_passes_of_one_sample_are_computed_without_the_matrix_unit(
    layer_pass: str | None, sizes: tuple[int, int, int], expected: object,
) -> None:
    rows, inner, columns = sizes
    left, right, result = (
        Tensor(name, shape, DType.HALF) for name, shape in (
            ("a", (rows, inner)), ("b", (inner, columns)), ("c", (rows, columns)),
        )
    )
    attrs = {} if layer_pass is None else {LAYER_PASS: layer_pass}
    spec = lookup("aten.mm.default")
    assert spec is not None
    op = Op("mm", (left, right), (result,), attrs, "aten.mm.default", ("self", "mat2"))
    codelets = [made.codelet for made in spec.lower(op, lookup_target("mk1"))]
    assert [one for one in codelets if one in (AMP, DOT, OUTER)] == [expected]


def test_what_a_tile_has_made_of_the_weights_gradient_is_put_where_the_weight_lies_without_an_exchange() -> None:
    left, right = Tensor("a", (1000, 1), DType.HALF), Tensor("b", (1, 600), DType.HALF)
    result = Tensor("c", (1000, 600), DType.HALF)
    spec = lookup("aten.mm.default")
    assert spec is not None
    op = Op("mm", (left, right), (result,), {LAYER_PASS: UPDATE}, "aten.mm.default", ("self", "mat2"))
    *_, turned, placed = spec.lower(op, lookup_target("mk1"))
    assert (turned.codelet, placed.codelet) == (TRANSPOSE_SHARE, COPY)
    assert (turned.gathered_bytes, placed.gathered_bytes) == (0, 0)


# --------------------------------------------------------------------------- values
@pytest.mark.parametrize("dtype", [torch.half, torch.float])
def test_vertices_compute_what_the_layer_does(dtype: torch.dtype) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(32, 256), torch.nn.Linear(256, 192)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x).tanh()).square().mean()

    torch.manual_seed(0)
    options = torchipu.Options(allow_out_of_memory=True, target="mk1,num_tiles=64")
    machine = judge(
        Model().to(dtype), torch.randn(1, 32, dtype=dtype), optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
        options=options,
    )
    names = {group.codelet for groups in machine._groups.values() for group, _ in groups}
    assert {DOT.name, OUTER.name} <= names
    assert {"aten.addmm.default", "aten.mm.default"} <= set(machine.tiled)
    assert not {"aten.addmm.default", "aten.mm.default"} & set(machine.whole)
