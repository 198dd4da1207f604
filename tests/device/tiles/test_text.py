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
execute addmm.addmm.1
poplin::ConvPartial1x1Out  6 vertices on 6 tiles
  read   mat1
           tile 0 at 6576 B: [0:16] [32:48]
           tile 1 at 6552 B: [16:32] [48:64]
           tile 2 at 6552 B: [0:16] [32:48]
           tile 3 at 6280 B: [16:32] [48:64]
           and 2 more
           exchange %input_0 -> %input_0.gathered, 640 B
           copy on the tile %input_0 -> %input_0.gathered, 128 B
  read   mat2
           tile 0 at 6704 B: [0:46:3]
           tile 1 at 6680 B: [48:94:3]
           tile 2 at 6680 B: [1:47:3]
           tile 3 at 6408 B: [49:95:3]
           and 2 more
           exchange %weight -> %weight.gathered, 320 B
           copy on the tile %weight -> %weight.gathered, 64 B
  code   aten.transpose.int, aten.transpose.int, aten.bmm.default of (float[1, 2, 16], float[1, 16, 1])  # 6 vertices
  write  sums of out
           tile 0 at 6568 B: [0:2]
           tile 1 at 6544 B: [2:4]
           tile 2 at 6544 B: [4:6]
           tile 3 at 6272 B: [6:8]
           and 2 more
execute addmm.addmm.2
popops::ReducePartialsEqualSize  6 vertices on 6 tiles
  read   sums of out
           tile 0 at 6584 B: [0:1] [2:3]
           tile 1 at 6560 B: [1:2] [3:4]
           tile 2 at 6560 B: [4:5] [6:7]
           tile 3 at 6288 B: [5:6] [7:8]
           and 2 more
           exchange %addmm.sums of out -> %addmm.sums of out.gathered, 24 B
           copy on the tile %addmm.sums of out -> %addmm.sums of out.gathered, 24 B
  read   self
           tile 0 at 6592 B: [0:1]
           tile 1 at 6568 B: [0:1]
           tile 2 at 6568 B: [1:2]
           tile 3 at 6296 B: [1:2]
           and 2 more
           exchange %bias -> %bias.gathered, 20 B
           copy on the tile %bias -> %bias.gathered, 4 B
  code   aten.sum.dim_IntList, aten.add.Tensor of (float[2, 1], float[1])  # 6 vertices
  write  out
           tile 0 at 6576 B: [0:1]
           tile 1 at 6552 B: [3:4]
           tile 2 at 6552 B: [1:2]
           tile 3 at 6280 B: [4:5]
           and 2 more
           exchange %addmm.made -> %addmm, 20 B
           copy on the tile %addmm.made -> %addmm, 4 B
""")
