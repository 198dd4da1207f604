"""What the benchmarks say of the models that they time: who may take part, the share of the peak, the page."""

from __future__ import annotations

import pytest
import torch

from contenders import CONTENDERS, WITH_UPDATE, RefusedError, refuse_other_values
from share_of_peak import costliest, flops_of
from speed_page import Measured, page
from workloads import HELD_OUT, WORKLOADS


def test_every_model_trains_infers_and_infers_frozen() -> None:
    for model in HELD_OUT:
        assert {f"{model.name}-{suffix}" for suffix in ("train", "infer", "frozen")} <= set(WORKLOADS)


def test_other_values_than_those_of_eager_are_refused() -> None:
    eager = torch.tensor([1.0, -2.0])
    refuse_other_values("ours", {"states": eager + 1e-5}, (eager, None))
    with pytest.raises(RefusedError, match=r"ours differs from eager by 0\.05 of the largest value"):
        refuse_other_values("ours", eager + 0.1, eager)
    with pytest.raises(RefusedError, match="differs from eager by nan"):
        refuse_other_values("ours", torch.full((2,), torch.nan), eager)
    with pytest.raises(RefusedError, match=r"gives \[1\], eager \[2\]"):
        refuse_other_values("ours", eager[:1], eager)


def test_recurrent_layers_are_counted() -> None:
    """Of each word: four gates from 256 inputs and 256 states, in two layers, then 1,000 classes."""
    words = 16 * 64
    flops = 2 * words * (2 * 4 * 256 * (256 + 256) + 256 * 1000)
    assert flops_of(WORKLOADS["lstm-infer"].step()) == flops
    trained = flops_of(WORKLOADS["lstm-train"].step())
    assert 2.9 * flops < trained <= 3 * flops  # forward, both gradients; the first layer's input has one as well


@pytest.mark.parametrize("groups", [1, 8, 16])
@pytest.mark.parametrize("kind", [torch.nn.Conv2d, torch.nn.ConvTranspose2d])
def test_each_gradient_of_a_grouped_convolution_counts_as_its_forward(kind: type[torch.nn.Conv2d], groups: int) -> None:
    convolution, x = kind(16, 32, 3, groups=groups, bias=False), torch.randn(2, 16, 8, 8, requires_grad=True)
    places = 8 * 8 if kind is torch.nn.ConvTranspose2d else 6 * 6  # of what goes in, or of what comes out
    flops = 2 * 2 * places * 16 * 32 * 9 // groups
    assert flops_of(lambda: convolution(x)) == flops
    assert flops_of(lambda: convolution(x).sum().backward()) == 3 * flops
    assert flops_of(lambda: convolution(x.detach()).sum().backward()) == 2 * flops


def test_costliest_kernels_are_those_of_the_step() -> None:
    shares = dict(costliest(WORKLOADS["mlp-4-train"], 1))
    assert "matmul" in shares
    assert len(shares) == 3
    assert all(0 < share < 1 for share in shares.values())
    assert sum(shares.values()) <= 1


def test_compilers_of_inference_take_frozen_weights_alone() -> None:
    for name in ("openvino", "onnxruntime"):
        assert not CONTENDERS[name].takes(WORKLOADS["unet-train"])
        assert CONTENDERS[name].takes(WORKLOADS["unet-frozen"]) is CONTENDERS[name].is_installed


def test_page_compares_with_the_best_of_the_compilers() -> None:
    rows = {
        "lstm-frozen": Measured(
            {"eager": 2.0, "inductor": 1.5, "onnxruntime": 0.5}, {}, {"eager": 3.0}, {}, 0.25, [("matmul", 0.75)],
        ),
        "unet-frozen": Measured({"eager": 0.5, "inductor": 2.0}, {}, {}, {"openvino": "it is broken"}, 0.5, []),
    }
    lines = page(rows, 2, 5).splitlines()
    assert "| lstm-frozen | 2.00x | 1.50x | 0.50x | 0.50x | 3.00x | 25% | matmul 75% |" in lines
    assert "| unet-frozen * | 0.50x | 2.00x |  | 2.00x |  | 50% |  |" in lines
    assert "| geometric mean | 1.00x | 1.73x | 0.50x | 1.00x | 3.00x |  |  |" in lines
    assert "- unet-frozen, openvino: it is broken" in lines


def test_page_says_what_a_compiled_update_brings() -> None:
    rows = {"mlp-4-train": Measured({"eager": 1.0, "inductor": 1.25}, {"eager": 1.5}, {"eager": 2.0}, {}, 0.25, [])}
    lines = page(rows, 2, 5).splitlines()
    assert "| model | eager | inductor | update too, eager | whole, eager | peak | costliest |" in lines
    assert "| mlp-4-train | 1.00x | 1.25x | 1.50x | 2.00x | 25% |  |" in lines
    assert "| geometric mean | 1.00x | 1.25x | 1.50x | 2.00x |  |  |" in lines


def test_an_update_is_compiled_where_there_is_one() -> None:
    assert CONTENDERS[WITH_UPDATE].takes(WORKLOADS["unet-train"])
    assert not CONTENDERS[WITH_UPDATE].takes(WORKLOADS["unet-frozen"])
    workload = WORKLOADS["mlp-4-train"]
    steps = [workload.step(), CONTENDERS[WITH_UPDATE].make(workload, 1)]
    for _ in range(3):
        expected, loss = (step() for step in steps)
        torch.testing.assert_close(loss, expected)
