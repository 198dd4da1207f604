"""A failing program as a script that needs torch and torchipu only."""

from __future__ import annotations

import math

from tests.fuzz.program import Given, Program

_SCRIPT = '''"""{title}"""

import torch
import torch.nn.functional as F

import torchipu

HALF, FLOAT, device = torch.float16, torch.float32, torch.device


def inner(value):
    return value


{source}

torch.manual_seed(0)
inputs = [
{inputs}
]
expected = forward(*[one.clone() for one in inputs])
{call}
for place, (ours, eagers) in enumerate(zip(returned, expected)):
    off = (ours.double() - eagers.double()).abs()
    print(f"output {{place}}: off by {{off.max():.3g}}" if off.numel() else f"output {{place}}: empty")
'''
_COMPILED = 'returned = torch.compile(forward, backend="ipu", fullgraph=True, dynamic=False)(*inputs)'
_STEP = '''

class Model(torch.nn.Module):
    def forward(self, *inputs):
        return forward(*inputs)


options = torchipu.Options({options})
returned = torchipu.InferenceStep(Model(), options)(*[one.detach() for one in inputs])'''


def script(program: Program, door: str, detail: str) -> str:
    """Return a script that shows what differs from eager.

    Args:
        program: What fails.
        door: Through which; a training is shown as a step without one.
        detail: Of the failure.
    """
    is_step = door in ("steps", "training", "tiles")
    options = 'executor="tiles"' if door == "tiles" else "allow_out_of_memory=True"
    return _SCRIPT.format(
        title=f"{door}: {detail}", source=program.source(blocks=is_step),
        inputs="\n".join(f"    {_written(given)}," for given in program.inputs),
        call=_STEP.format(options=options) if is_step else _COMPILED,
    )


def _written(given: Given) -> str:
    floating = given.dtype in ("float", "half")
    shape = given.shape_in_memory()
    dtype = {
        "float": "", "half": ".half()", "int": ".int()", "long": "", "bool": ".bool()", "short": ".short()",
        "char": ".char()", "byte": ".byte()",
    }[given.dtype]
    drawn = f"(torch.randn({shape}) + {given.offset})" if given.offset else f"torch.randn({shape})"
    drawn = f"({drawn} * {given.scale})" if given.scale != 1.0 else drawn
    text = f"{drawn}{dtype}" if floating else f"torch.randint({given.bound}, {shape}){dtype}"
    if given.is_special and given.dtype != "bool":
        numbers = ", ".join(f"float({str(one)!r})" if math.isnan(one) or math.isinf(one) else str(one)
                            for one in given.choices())
        text = f"torch.tensor([{numbers}])[torch.randint({len(given.choices())}, {shape})]{dtype}"
    if given.layout == "transposed":
        text += f".permute{tuple(reversed(range(len(shape))))}"
    text += {
        "strided": "[..., ::2]", "expanded": f".expand({given.shape})", "rows": "[..., 2:-1]", "offset": "[1:]",
        "channels_last": ".movedim(-1, 1)",
    }.get(given.layout, "")
    return text + (".requires_grad_()" if given.gradient else "")
