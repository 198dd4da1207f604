"""Single elements that index tensors name among many are put to their places one by one, in the order of indices."""

import pytest
import torch

from tests.kernels.elem_planner import run_op
from torchipu.host.planner import Planner


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.int32, torch.bool])
@pytest.mark.parametrize("is_one", [False, True])
def test_elements_named_by_several_index_tensors_are_those_of_eager_pytorch(accumulate, dtype, is_one):
    if accumulate and dtype is torch.bool:
        pytest.skip("truth values are not added")
    torch.manual_seed(0)
    x = torch.randint(0, 5, (40, 1, 70)).to(dtype)
    rows, columns = torch.randint(-40, 40, (6, 9)), torch.randint(-70, 70, (9,))
    values = torch.randint(0, 2, () if is_one else (6, 9)).to(dtype)
    if not accumulate:  # where a place is named twice eager leaves open which value stays
        rows, columns = torch.randperm(40)[:6, None].expand(6, 9) - 40, torch.randperm(70)[:9]
    indices = [rows, torch.zeros(1).long(), columns]
    (found,), (wanted,) = run_op("aten.index_put.default", x, indices, values, accumulate)
    assert torch.equal(found, wanted)


def test_gradients_of_named_elements_sort_nothing(monkeypatch):
    names = []
    collect = Planner._collect_outputs

    def collected(planner):
        found = collect(planner)
        names.extend(step.kernel.name for step in planner.steps if step.kernel is not None)
        return found

    monkeypatch.setattr(Planner, "_collect_outputs", collected)
    torch._dynamo.reset()
    x = torch.randn(64, 100, requires_grad=True)
    rows, columns = torch.randint(64, (200,)), torch.randint(100, (200,))
    weights = torch.randn(200)
    (found,) = torch.autograd.grad(torch.compile(lambda x: x[rows, columns] * weights, backend="ipu")(x).sum(), [x])
    wanted = torch.zeros(64, 100, dtype=torch.double).index_put((rows, columns), weights.double(), accumulate=True)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-6, atol=1e-6)
    assert "bucket" not in names
    assert "scatter_block" in names
