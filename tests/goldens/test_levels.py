"""One small graph at every level of the IR, as TORCHIPU_DUMP writes it; accept changes with EXPECTTEST_ACCEPT=1."""

import pytest
import torch
from expecttest import assert_expected_inline

from tests.goldens.two_blocks import TwoBlocks
from torchipu import Options, TrainStep, compiler
from torchipu.compiler import DUMP_VARIABLE
from torchipu.device.tile_mapping import map_tiles
from torchipu.ir.text import format_mapping

STAGES = ("captured", *(stage.name for stage in compiler.STAGES))


@pytest.fixture(scope="module")
def levels(tmp_path_factory):
    """Return the compiled step and the text of each stage, by its name."""
    directory = tmp_path_factory.mktemp("dump")
    model = TwoBlocks()
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), Options(gradient_accumulation=3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(DUMP_VARIABLE, str(directory))
        step.compile(torch.zeros(12, 16), torch.zeros(12, 8))
    # training.05-schedule.txt
    return step, {path.name.split(".")[1].split("-")[1]: path.read_text() for path in sorted(directory.iterdir())}


def body(text):
    """Return a graph's text without its inputs and updates."""
    lines = text.rstrip("\n").split("\n")
    begin = lines.index(") {") + 1
    return "\n".join(line for line in lines[begin:-1] if not line.startswith("  update"))


def section(text, title):
    """Return one function, or the main program, of an executable's text."""
    lines = text.rstrip("\n").split("\n")
    begin = lines.index(f"{title} {{")
    return "\n".join(lines[begin : lines.index("}", begin) + 1])


def test_every_stage_is_written_in_the_order_of_the_compiler(levels):
    assert tuple(levels[1]) == STAGES


def test_the_captured_graph_has_inputs_legs_blocks_and_source_lines(levels):
    assert_expected_inline(levels[1]["captured"], """\
graph training(
    %linear.weight: float[8,16] weight,
    %input_0: float[4,16] input,
    %input_1: float[4,8] input,
    %loss_scale: float[] constant,
    %acc.linear.weight: float[8,16] accumulator,
    %hyper.0: long[16] hyperparameter,
    %step.linear.weight: float[] optimiser_state,
) {
  %0: float[16,8] = t(%linear.weight)  @F block=B1 ipu=0  # two_blocks.py:17
  %1: float[4,8] = mm(%input_0, %0)  @F block=B1 ipu=0  # two_blocks.py:17
  %2: float[4,8] = relu(%1)  @F block=B1 ipu=0  # two_blocks.py:17
  %3: float[] = mse_loss(%2, %input_1) {reduction=1}  @F block=B2 ipu=1  # two_blocks.py:19
  %4: float[4,8] = mse_loss_grad(%loss_scale, %2, %input_1) {reduction=1}  @B block=B2 ipu=1  # two_blocks.py:19
  %5: float[4,8] = threshold_backward(%4, %2) {threshold=0}  @B block=B1 ipu=0  # two_blocks.py:17
  %6: float[8,4] = t(%5)  @B block=B1 ipu=0  # two_blocks.py:17
  %7: float[8,16] = mm(%6, %input_0)  @B block=B1 ipu=0  # two_blocks.py:17
  %8: float[16,8] = t(%7)  @B block=B1 ipu=0  # two_blocks.py:17
  %9: float[8,16] = t(%8)  @B block=B1 ipu=0  # two_blocks.py:17
  %10: float[8,16] = accumulate(%acc.linear.weight, %9)  @B
  %11: float[] = increment(%step.linear.weight)  @U
  %12: float[8,16] = sgd(%linear.weight, %10, %hyper.0, %11)  @U
  %13: float[8,16] = fill_zero(%10)  @U
  update %acc.linear.weight <- %13
  update %step.linear.weight <- %11
  update %linear.weight <- %12
  return %3
}
""")


def test_canonicalising_removes_views_of_views(levels):
    assert_expected_inline(body(levels[1]["canonicalise"]), """\
  %0: float[16,8] = t(%linear.weight)  @F block=B1 ipu=0  # two_blocks.py:17
  %1: float[4,8] = mm(%input_0, %0)  @F block=B1 ipu=0  # two_blocks.py:17
  %2: float[4,8] = relu(%1)  @F block=B1 ipu=0  # two_blocks.py:17
  %3: float[] = mse_loss(%2, %input_1) {reduction=1}  @F block=B2 ipu=1  # two_blocks.py:19
  %4: float[4,8] = mse_loss_grad(%loss_scale, %2, %input_1) {reduction=1}  @B block=B2 ipu=1  # two_blocks.py:19
  %5: float[4,8] = threshold_backward(%4, %2) {threshold=0}  @B block=B1 ipu=0  # two_blocks.py:17
  %6: float[8,4] = t(%5)  @B block=B1 ipu=0  # two_blocks.py:17
  %7: float[8,16] = mm(%6, %input_0)  @B block=B1 ipu=0  # two_blocks.py:17
  %8: float[8,16] = accumulate(%acc.linear.weight, %7)  @B
  %9: float[] = increment(%step.linear.weight)  @U
  %10: float[8,16] = sgd(%linear.weight, %8, %hyper.0, %9)  @U
  %11: float[8,16] = fill_zero(%8)  @U
  return %3""")


def test_placement_gives_every_op_an_ipu_and_a_stage(levels):
    assert_expected_inline(body(levels[1]["placement"]), """\
  %0: float[16,8] = t(%linear.weight)  @ipu0 0F block=B1  # two_blocks.py:17
  %1: float[4,8] = mm(%input_0, %0)  @ipu0 0F block=B1  # two_blocks.py:17
  %2: float[4,8] = relu(%1)  @ipu0 0F block=B1  # two_blocks.py:17
  %3: float[] = mse_loss(%2, %input_1) {reduction=1}  @ipu1 1F block=B2  # two_blocks.py:19
  %4: float[4,8] = mse_loss_grad(%loss_scale, %2, %input_1) {reduction=1}  @ipu1 1B block=B2  # two_blocks.py:19
  %5: float[4,8] = threshold_backward(%4, %2) {threshold=0}  @ipu0 0B block=B1  # two_blocks.py:17
  %6: float[8,4] = t(%5)  @ipu0 0B block=B1  # two_blocks.py:17
  %7: float[8,16] = mm(%6, %input_0)  @ipu0 0B block=B1  # two_blocks.py:17
  %8: float[8,16] = accumulate(%acc.linear.weight, %7)  @ipu0 0B block=B1
  %9: float[] = increment(%step.linear.weight)  @ipu0 0U block=B1
  %10: float[8,16] = sgd(%linear.weight, %8, %hyper.0, %9)  @ipu0 0U block=B1
  %11: float[8,16] = fill_zero(%8)  @ipu0 0U block=B1
  return %3""")


def test_the_schedule_is_a_grid_with_a_column_for_each_ipu(levels):
    assert_expected_inline(levels[1]["schedule"], """\
0F0
0F1       1F0 1B0
0F2 0B0   1F1 1B1
0B1       1F2 1B2
0B2
0U        1U
""")


def test_mappings_are_runs_of_tiles(levels):
    compiled = levels[0].compiled
    lines = [f"%{t.name}: {format_mapping(m)}" for t, m in map_tiles(compiled.graph, compiled.target).items()]
    assert_expected_inline("\n".join(lines), """\
%acc.linear.weight: tiles 0..3 x 32
%mm_1: tiles 0..3 x 32
%acc_sum.linear.weight: tiles 0..3 x 32
%step.linear.weight: tiles 4 x 1
%step.linear.weight.next: tiles 4 x 1
%linear.weight: tiles 0..3 x 32
%linear.weight.next: tiles 0..3 x 32
%acc_zero.linear.weight: tiles 0..3 x 32
%input_0: tiles 0..1 x 32
%input_1: tiles 0 x 32
%loss_scale: tiles 0 x 1
%hyper.0: tiles 0 x 16
%t: tiles 0..3 x 32
%mm: tiles 0 x 32
%relu: tiles 0 x 32
%mse_loss: tiles 0 x 1
%mse_loss_backward: tiles 0 x 32
%t.again: tiles 0..3 x 32
%mm.again: tiles 0 x 32
%relu.again: tiles 0 x 32
%threshold_backward: tiles 0 x 32
%t_1: tiles 0 x 32""")


def test_the_forward_of_a_stage_is_supersteps(levels):
    assert_expected_inline(section(levels[1]["lower"], "function 0F"), """\
function 0F {
  sync host
  copy host 'input_0' -> %input_0  # host, 256 B
  sync ipu
  gather %input_0, %linear.weight  # exchange, 1792 B, busiest tile 224 B, 2 fragments
  execute mm.mm.0 @ipu0
    poplin::ConvPartial1x1Out tiles 0..7 x 1 {self=%input_0, mat2=%linear.weight, out=%0}
  sync ipu
  execute relu.relu.0 @ipu0
    popnn::NonLinearity1D tiles 0 x 32 {self=%0, out=%1}
}""")


def test_the_backward_accumulates_in_place(levels):
    assert_expected_inline(section(levels[1]["lower"], "function 0B"), """\
function 0B {
  sync ipu
  gather %input_0, %linear.weight  # exchange, 1792 B, busiest tile 224 B, 2 fragments
  execute mm.mm.again.0 @ipu0
    poplin::ConvPartial1x1Out tiles 0..7 x 1 {self=%input_0, mat2=%linear.weight, out=%0.again}
  sync ipu
  execute relu.relu.again.0 @ipu0
    popnn::NonLinearity1D tiles 0 x 32 {self=%0.again, out=%1.again}
  sync ipu
  execute threshold_backward.threshold_backward.0 @ipu0
    popnn::NonLinearityGrad1D tiles 0 x 32 {grad_output=%3.ipu0, self=%1.again, out=%4}
  sync ipu
  execute mm.mm_1.0 @ipu0
    poplin::Transpose2d tiles 0..31 x 1 {self=%4, mat2=%input_0, out=%5}
  sync ipu
  gather %4, %input_0  # exchange, 128 B, busiest tile 4 B, 2 fragments
  execute mm.mm_1.1 @ipu0
    poplar::RearrangeCopy tiles 0..31 x 1 {self=%4, mat2=%input_0, out=%5}
  sync ipu
  execute mm.mm_1.2 @ipu0
    poplin::Transpose2d tiles 0..63 x 1 {self=%4, mat2=%input_0, out=%5}
  sync ipu
  gather %4, %input_0  # exchange, 256 B, busiest tile 4 B, 2 fragments
  execute mm.mm_1.3 @ipu0
    poplar::RearrangeCopy tiles 0..63 x 1 {self=%4, mat2=%input_0, out=%5}
  sync ipu
  gather %4, %input_0  # exchange, 1920 B, busiest tile 120 B, 2 fragments
  execute mm.mm_1.4 @ipu0
    poplin::ConvPartial1x1Out tiles 0..15 x 1 {self=%4, mat2=%input_0, out=%5}
  sync ipu
  execute mm.mm_1.5 @ipu0
    poplin::Transpose2d tiles 0..127 x 1 {self=%4, mat2=%input_0, out=%5}
  sync ipu
  gather %4, %input_0  # exchange, 512 B, busiest tile 4 B, 2 fragments
  execute mm.mm_1.6 @ipu0
    poplar::RearrangeCopy tiles 0..127 x 1 {self=%4, mat2=%input_0, out=%5}
  sync ipu
  execute accumulate.acc_sum.linear.weight.0 @ipu0
    popops::ScaledAdd tiles 0..3 x 32 {accumulator=%acc.linear.weight, gradient=%5, out=%acc.linear.weight}
}""")


def test_the_update_reads_the_accumulator_and_clears_it(levels):
    assert_expected_inline(section(levels[1]["lower"], "function U0"), """\
function U0 {
  sync ipu
  execute increment.step.linear.weight.next.0 @ipu0
    popops::LoopCounter tiles 0 x 1 {step=%step.linear.weight, out=%step.linear.weight}
  sync ipu
  execute sgd.linear.weight.next.0 @ipu0
    popops::ScaledAdd tiles 0..3 x 32 {param=%linear.weight, grad=%acc.linear.weight, hyper=%hyper.0, step=%step.linear.weight, out=%linear.weight}
  sync ipu
  execute fill_zero.acc_zero.linear.weight.0 @ipu0
    popops::Fill tiles 0..3 x 32 {accumulator=%acc.linear.weight, out=%acc.linear.weight}
}""")


def test_the_main_program_runs_pipeline_cycles(levels):
    assert_expected_inline(section(levels[1]["lower"], "program main"), """\
program main {
  repeat 1 {
    on ipus {
      0:
        call 0F mb=0
      1:
    }
    sync replica
    call 0F.send mb=0
    on ipus {
      0:
        call 0F mb=1
      1:
        call 1F mb=0
        call 1B mb=0
    }
    sync replica
    call 0F.send mb=1
    call 1B.send mb=0
    on ipus {
      0:
        call 0F mb=2
        call 0B mb=0
      1:
        call 1F mb=1
        call 1B mb=1
    }
    sync replica
    call 0F.send mb=2
    call 1B.send mb=1
    on ipus {
      0:
        call 0B mb=1
      1:
        call 1F mb=2
        call 1B mb=2
    }
    sync replica
    call 1B.send mb=2
    on ipus {
      0:
        call 0B mb=2
      1:
    }
    sync replica
    on ipus {
      0:
        call U0
      1:
        call U1
    }
    sync replica
  }
}""")


def test_memory_gives_every_variable_an_address(levels):
    text = levels[1]["memory"]
    assert_expected_inline(text[: text.index("}") + 1], """\
executable on 2 ipus {
  %input_0: float[4,16] input depth=3 @ipu0 tiles 0..1 x 32 at 7360..7744 B
  %linear.weight: float[8,16] weight @ipu0 tiles 0..3 x 32 at 7744..7872 B
  %0: float[4,8] activation @ipu0 tiles 0 x 32 at 212992..213120 B
  %1: float[4,8] activation @ipu0 tiles 0 x 32 at 8192..8320 B
  %1.ipu1: float[4,8] activation @ipu1 tiles 0 x 32 at 4776..4904 B
  %input_1: float[4,8] input @ipu1 tiles 0 x 32 at 4904..5032 B
  %2: float[] activation @ipu1 tiles 0 x 1 at 5040..5048 B
  %loss_scale: float[] constant @ipu1 tiles 0 x 1 at 5032..5040 B
  %3: float[4,8] activation @ipu1 tiles 0 x 32 at 5040..5168 B
  %0.again: float[4,8] activation @ipu0 tiles 0 x 32 at 212992..213120 B
  %1.again: float[4,8] activation @ipu0 tiles 0 x 32 at 8320..8448 B
  %3.ipu0: float[4,8] activation @ipu0 tiles 0 x 32 at 7872..8000 B
  %4: float[4,8] activation @ipu0 tiles 0 x 32 at 8320..8448 B
  %5: float[8,16] activation @ipu0 tiles 0..3 x 32 at 212992..213120 B
  %acc.linear.weight: float[8,16] accumulator @ipu0 tiles 0..3 x 32 at 8000..8128 B
  %step.linear.weight: float[] optimiser_state @ipu0 tiles 4 x 1 at 7184..7192 B
  %hyper.0: long[16] hyperparameter @ipu0 tiles 0 x 16 at 8128..8192 B
}""")


def test_the_summary_has_cycles_memory_and_efficiency(levels):
    assert_expected_inline(levels[0].profile.summary(), """\
machine              Graphcore Mk2 GC200, 2 IPUs (modelled)
weight update        22,913 cycles, 17.2 us (3 x 4 samples)
throughput           696,548 samples/s
busiest tile         213,120 B of 638,976 B (33.4%), tile 0 of ipu 0
pipeline efficiency  ipu0 77.4%  ipu1 40.0%""")


def test_an_option_names_the_directory_before_the_environment_does(tmp_path, monkeypatch):
    monkeypatch.setenv(DUMP_VARIABLE, str(tmp_path / "environment"))
    model = TwoBlocks()
    options = Options(execution="sharded", dump=str(tmp_path / "option"))
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), options)
    step.compile(torch.zeros(12, 16), torch.zeros(12, 8))
    assert not (tmp_path / "environment").exists()
    assert len(list((tmp_path / "option").iterdir())) == len(STAGES)


def test_torch_compile_writes_forward_and_backward(tmp_path, monkeypatch):
    monkeypatch.setenv(DUMP_VARIABLE, str(tmp_path))
    torch._dynamo.reset()
    torch.compile(TwoBlocks(), backend="ipu")(torch.zeros(8, 16), torch.zeros(8, 8)).backward()
    legs = {path.name.split(".")[1] for path in tmp_path.iterdir()}
    assert legs == {"forward", "backward"}
    assert len(list(tmp_path.iterdir())) == 2 * len(STAGES)
