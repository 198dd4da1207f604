"""The text of vertices."""

from __future__ import annotations

import expecttest
import torch

import torchipu
from torchipu.emulation.tiles import tile_machine


class TextTest(expecttest.TestCase):
    """Of a product with its bias."""

    maxDiff = None

    def test_it_says_what_each_vertex_touches(self) -> None:
        module = torch.nn.Linear(32, 3)
        inputs = (torch.randn(2, 32),)
        step = torchipu.InferenceStep(module, torchipu.Options(target="mk2"))
        step.compile(*inputs)
        assert step._built is not None
        machine = tile_machine(step.compiled.executable, step._built, step.options, inputs, 1, step.target)
        machine.run()
        self.assertExpectedInline(machine.text() + "\n", """\
execute addmm.addmm.0
poplin::ConvPartial1x1Out  4 vertices on 4 tiles
  read   mat1
           tile 0 at 5968 B: [0:16]
           tile 1 at 5944 B: [16:32]
           tile 2 at 5944 B: [32:48]
           tile 3 at 5704 B: [48:64]
           exchange %input_0 -> %input_0.gathered, 192 B
           copy on the tile %input_0 -> %input_0.gathered, 64 B
  read   mat2
           tile 0 at 6224 B: [0:48]
           tile 1 at 6200 B: [48:96]
           tile 2 at 6200 B: [0:48]
           tile 3 at 5960 B: [48:96]
           exchange %weight -> %weight.gathered, 576 B
           copy on the tile %weight -> %weight.gathered, 192 B
           copy on the tile %weight.gathered -> %weight.arranged, 768 B
  code   aten.transpose.int, aten.transpose.int, aten.bmm.default of (float[1, 1, 16], float[1, 16, 3])  # 4 vertices
  write  sums of out
           tile 0 at 5952 B: [0:3]
           tile 1 at 5928 B: [3:6]
           tile 2 at 5928 B: [6:9]
           tile 3 at 5688 B: [9:12]
execute addmm.addmm.1
popops::ReducePartialsEqualSize  4 vertices on 4 tiles
  read   sums of out
           tile 0 at 5976 B: [0:2] [3:5]
           tile 1 at 5952 B: [2:3] [5:6]
           tile 2 at 5952 B: [6:8] [9:11]
           tile 3 at 5712 B: [8:9] [11:12]
           exchange %addmm.sums of out -> %addmm.sums of out.gathered, 24 B
           copy on the tile %addmm.sums of out -> %addmm.sums of out.gathered, 24 B
  read   self
           tile 0 at 5992 B: [0:2]
           tile 1 at 5960 B: [2:3]
           tile 2 at 5968 B: [0:2]
           tile 3 at 5720 B: [2:3]
           exchange %bias -> %bias.gathered, 20 B
           copy on the tile %bias -> %bias.gathered, 4 B
  code   aten.sum.dim_IntList, aten.add.Tensor of (float[2, 1], float[1])  # 2 vertices
  code   aten.sum.dim_IntList, aten.add.Tensor of (float[2, 2], float[2])  # 2 vertices
  write  out
           tile 0 at 5968 B: [0:2]
           tile 1 at 5944 B: [2:3]
           tile 2 at 5944 B: [3:5]
           tile 3 at 5704 B: [5:6]
           exchange %addmm.made -> %addmm, 16 B
           copy on the tile %addmm.made -> %addmm, 8 B
""")
