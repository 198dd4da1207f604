"""Rows say in words what ran: the words of rows that are not among ours are understood as well."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from torchipu.device.cost.exchange import host_cycles
from torchipu.score.configurations import is_on_device, run_of
from torchipu.score.models import Bert
from torchipu.score.programs import Frozen, outcome_of
from torchipu.score.rows import FOLDER, Line, lines_of
from torchipu.score.shifted_windows import WindowLayer
from torchipu.target import lookup_target

RESNET = "ResNet-50 v1.5 ImageNet 224 training, TF1, fp16.16, BN, 1 IPU/replica, recompute, LARS"
MLCOMMONS = "BERT-Large SL512 packed, PopART, LAMB, fp16, optimiser state off-chip + RTS; unit = unpacked sequences"
LARGE = "BERT-Large phase 1 SL128 unpacked PopART"
IMAGES = "ResNet-50 224 inference fp16, half partials, real data, overlapped IO, 100-128 batches/step"


def line(chip, ipus, workload, config):
    return Line("published.csv", 2, {"chip": chip, "n_ipu": str(ipus), "workload": workload, "config": config})


@pytest.mark.parametrize(("chip", "ipus", "workload", "config", "batch", "accumulation", "replicas", "target"), [
    ("GC200", 64, RESNET, "GBS5120 = 64 x 20 x GA4", 20, 4, 64, "pod64"),
    ("GC200", 128, RESNET, "128 x 20 x GA2", 20, 2, 128, "pod128"),
    ("Bow", 64, RESNET, "GBS8448", 22, 6, 64, "bow-pod64"),
    ("Bow", 128, RESNET, "GBS5120", 20, 2, 128, "bow-pod128"),
    ("Bow", 16, "ResNet-50 training, PyTorch 16.16", "mb16 x 16 repl x GA8, AMP .2", 16, 8, 16, "bow-pod16"),
    ("GC200", 64, MLCOMMONS, "mb2, GA48, GBS3072", 2, 48, 16, "pod64"),
    ("Bow", 64, MLCOMMONS + ", PaddlePaddle front end", "as PopART Pod64", 3, 96, 8, "bow-pod64"),
    ("Bow", 32, LARGE, "GBS65,536", 8, 1024, 8, "bow"),
    ("Bow", 16, "BERT-Large phase 2 SL384 PopART", "GBS8,192", 2, 1024, 4, "bow-pod16"),
    ("Bow", 16, "BERT-Base phase 1 SL128 PopART", "GBS65,536", 32, 512, 4, "bow-pod16"),
    ("Bow", 64, "ViT-B/16 pretraining, PyTorch 16.16", "GBS65,536, AMP .3", 16, 256, 16, "bow-pod64"),
    ("Bow", 64, "BERT-Large phase 2 SL384 TF1", "GBS16,400", 2, 512, 16, "bow-pod64"),  # one sample more or less
    ("Bow", 64, "BERT-Large SQuAD fine-tune SL384 PopART", "GBS512", 2, 16, 16, "bow-pod64"),
])
def test_training(chip, ipus, workload, config, batch, accumulation, replicas, target):
    run = run_of(line(chip, ipus, workload, config))
    options = run.options
    assert (run.workload.batch, options.accumulation, options.replicas, options.target) == (
        batch, accumulation, replicas, target,
    )
    assert options.memory


@pytest.mark.parametrize(("ipus", "processes"), [(4, 1), (16, 1), (64, 4), (128, 8)])
def test_states_are_shared_out_among_the_replicas_of_a_process_of_16_ipus(ipus, processes):
    run = run_of(line("GC200", ipus, MLCOMMONS, "mb2, GA48"))
    assert (run.options.replicas, run.options.processes) == (ipus // 4, processes)
    assert run.samples == 2 * 2.0 * 48 * ipus // 4, "of all of them"


@dataclass(frozen=True)
class Layer:
    """A workload of one layer, whose states are large enough to be shared out."""

    def model(self):
        return Squared()

    def inputs(self):
        return (torch.zeros(2, 128),)

    def optimiser(self, model):
        return torch.optim.Adam(model.parameters())

    def blocks(self):
        return {}


class Squared(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.dense = torch.nn.Linear(128, 128)

    def forward(self, x):
        return self.dense(x).square().mean()


def test_what_replicas_of_other_processes_have_is_added_up_and_not_shared_out():
    options = Frozen("bow-pod64", accumulation=2, replicas=4, off_chip=True)
    one, two = outcome_of(Layer(), options), outcome_of(Layer(), replace(options, processes=2))
    assert one.split["all-reduce"] == two.split["all-reduce"] > 0
    inputs = 2 * host_cycles(lookup_target("bow-pod64"), 2 * 128 * 4)
    assert two.split["host"] > one.split["host"] > inputs


def test_a_stated_memory_proportion_is_taken():
    run = run_of(line("Bow", 16, RESNET, "mb16 x 16 repl x GA8, AMP .2"))
    assert run.options.memory == (0.2,)
    assert run_of(line("C600", 1, "BERT-Base SL128 fp16", "batch 8, AMP .3")).options.memory == (0.3,)


def test_packs_hold_several_sequences():
    packed = "BERT-Large phase 1 SL128 packed PopART"
    assert run_of(line("Bow", 16, packed, "GBS32,768 packs")).packing == 1.17
    assert run_of(line("Bow", 16, LARGE, "GBS65,536")).packing == 1.0


@pytest.mark.parametrize(("workload", "config", "batch", "dtype", "overlap", "on_device"), [
    (IMAGES, "batch 8", 8, torch.half, True, False),
    ("ResNet-50 inference fp32, real data, overlapped IO", "batch 32", 32, torch.float, True, False),
    ("ResNet-50 inference fp16, on-device synthetic input", "batch 64", 64, torch.half, False, True),
    ("BERT-Base SQuAD SL384 inference", "fp32, batch 2", 2, torch.float, False, False),
])
def test_inference(workload, config, batch, dtype, overlap, on_device):
    row = line("C600", 1, workload, config)
    run = run_of(row)
    assert (run.workload.batch, run.workload.dtype, run.options.overlap) == (batch, dtype, overlap)
    assert is_on_device(row) == on_device


@pytest.mark.parametrize(("workload", "config", "narrow"), [
    ("ResNet-50 inference FP8 F143 (first conv, last gemm fp16), overlapped IO", "batch 2", "blocks"),
    ("ResNet-50 all-FP8, synthetic", "batch 32", "all"), ("BERT-Base SQuAD SL256 inference", "fp8, batch 4", True),
    ("BERT-Base SQuAD SL256 inference", "fp16, batch 4", False),
])
def test_layers_of_floats_of_8_bits(workload, config, narrow):
    assert run_of(line("C600", 1, workload, config)).workload.narrow == narrow


def test_what_a_table_of_converted_models_ran_is_not_fused():
    squad, tuned = (run_of(line("C600", 1, *words)).workload for words in (
        ("BERT-Base SQuAD SL256 inference", "fp16, batch 4"), ("BERT-Base SL128 fp16", "batch 16, AMP .4"),
    ))
    assert (squad.exported, tuned.exported) == (True, False)


def test_an_exported_model_computes_what_the_fused_one_does():
    torch.manual_seed(0)
    fused = Bert(16, 1, 2, 4, pretrains=False).double().eval()
    exported = Bert(16, 1, 2, 4, pretrains=False, exported=True).double().eval()
    state = fused.state_dict()
    for kind in ("weight", "bias"):
        parts = state.pop(f"layers.0.qkv.{kind}").chunk(3)
        state |= {f"layers.0.{name}.{kind}": part for name, part in zip(("query", "key", "value"), parts, strict=True)}
    exported.load_state_dict(state)
    tokens = torch.tensor([[1, 2, 0, 0]])
    torch.testing.assert_close(exported(tokens), fused(tokens))


def test_fine_tuning_learns_where_answers_begin_and_end():
    found = run_of(line("Bow", 16, "BERT-Large SQuAD fine-tune SL384 PopART", "GBS256")).workload
    assert [tuple(one.shape) for one in found.inputs()] == [(2, 384), (2, 2)]
    assert found.blocks()["dense"] == ("head", 3)
    assert run_of(line("Bow", 16, LARGE, "GBS65,536")).workload.blocks()["dense"] == ("head", 0)


@pytest.mark.parametrize(("chip", "ipus", "workload", "config"), [
    ("GC200", 16, "ResNet-50 TF1 (press figure)", "POD16"),
    ("Bow", 64, "BERT-Large phase 2 SL384 TF1", "GBS1,040"),  # an odd number of sequences for each replica
    ("Bow", 16, "BERT-Large phase 1 SL96 PopART", "GBS65,536"),
    ("Bow", 1024, RESNET, "GBS40960"),  # no such system
    ("Mk1/Mk2", 16, RESNET, "GBS1920"),
    ("C600", 1, "BERT-Base SL128 packed", "batch 16, max 40 sequences"),
    ("C600", 1, "ViT-B/16 224 fp8", "batch 8"),
])
def test_what_words_do_not_say_is_no_run(chip, ipus, workload, config):
    assert run_of(line(chip, ipus, workload, config)) is None


def test_rows_of_the_file_that_are_understood():
    found = [row for row in lines_of(FOLDER / "published.csv") if run_of(row) is not None]
    assert {row.text("id") for row in found} >= {"V001", "V015", "V016", "V020", "V042", "V085", "V111", "V148", "V153"}
    assert all(run_of(row).samples >= 1 for row in found)


def test_swin_large_has_the_size_that_was_published():
    run = run_of(line("C600", 1, "Swin-Large 384 fp16", "batch 2, AMP .2"))
    assert (run.workload.batch, run.options.memory, run.options.iterations) == (2, (0.2,), 128)
    with torch.device("meta"):
        model = run.workload.model()
        images = torch.zeros(1, 3, 384, 384, dtype=torch.half)
    # 197 M parameters, with a bias for each pair of tokens of a window in place of its table, and 103.9 G products.
    pairs = sum(layer.bias.numel() for layer in model.layers if hasattr(layer, "bias"))
    assert sum(parameter.numel() for parameter in model.parameters()) - pairs == pytest.approx(197e6, rel=5e-3)
    with FlopCounterMode(display=False) as counter:
        model(images)
    assert counter.get_total_flops() / 2 == pytest.approx(103.9e9, rel=5e-3)
    assert run_of(line("Bow", 16, "Swin-Tiny 224 pretrain, PyTorch fp32", "GBS1024")) is None


def test_windows_of_a_layer_see_none_but_their_own_tokens():
    layer = WindowLayer(4, 2, 8, 4, 0).double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    x = torch.randn(1, 8, 8, 4, dtype=torch.float64)
    changed = x.clone()
    changed[0, 5, 1, 2] += 1.0
    moved = (layer(changed) != layer(x)).any(-1)[0]
    assert moved[4:, :4].all()
    assert moved.sum() == 16
