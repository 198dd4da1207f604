"""The functions whose kernels are measured beside ATen's: each is a few ATen calls on float32 tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

aten = torch.ops.aten


@dataclass(frozen=True)
class KernelCase:
    """A function and the shapes of its tensors.

    Attributes:
        group: Heading of its table.
        function: Of tensors, to a tensor or several.
        shapes: Of normally distributed operands.
        integers: Below what the integers of the last operand lie; None where all are floating point.
    """

    group: str
    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    integers: int | None = None

    def operands(self) -> list[torch.Tensor]:
        """Return the operands, the same each time."""
        generator = torch.Generator().manual_seed(5)
        made = [torch.randn(shape, generator=generator) for shape in self.shapes]
        if self.integers is not None:
            made[-1] = torch.randint(self.integers, self.shapes[-1], generator=generator)
        return made


def _convolution(stride: int, padding: int) -> Callable[..., Any]:
    return lambda x, w: aten.convolution(x, w, None, [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], 1)


def _gradients(stride: int, padding: int) -> Callable[..., Any]:
    def both(x: torch.Tensor, w: torch.Tensor, dy: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        attributes = (None, [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], 1, [True, True, False])
        dx, dw, _ = aten.convolution_backward(dy, x, w, *attributes)
        return dx, dw

    return both


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def _layer_norm_gradient(dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
    shape = [x.shape[-1]]
    _, mean, rstd = aten.native_layer_norm(x, shape, w, b, 1e-5)
    return aten.native_layer_norm_backward(dy, x, shape, mean, rstd, w, b, [True, True, True])


def _batch_norm_gradient(dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
    _, mean, rstd = aten._native_batch_norm_legit.no_stats(x, w, b, True, 0.1, 1e-5)
    return aten.native_batch_norm_backward(dy, x, w, None, None, mean, rstd, True, 1e-5, [True, True, True])


def _adamw(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The arithmetic of AdamW's update, out of place."""
    m = m * 0.9 + g * 0.1
    v = (v * 0.999 + g * g * 0.001).abs()
    return p * (1 - 1e-4) - 1e-3 * m / (v.sqrt() + 1e-8), m, v


def _resnet_convolutions() -> dict[str, KernelCase]:
    # images, channels in and out, size, window, stride, padding
    layers = (
        (4, 3, 64, 224, 7, 2, 3), (4, 64, 64, 56, 3, 1, 1), (4, 128, 128, 28, 3, 1, 1), (4, 256, 256, 14, 3, 1, 1),
        (4, 512, 512, 7, 3, 1, 1), (4, 128, 128, 56, 3, 2, 1), (4, 64, 256, 56, 1, 1, 0), (4, 256, 64, 56, 1, 1, 0),
        (4, 1024, 256, 14, 1, 1, 0), (4, 512, 2048, 7, 1, 1, 0), (4, 512, 1024, 28, 1, 2, 0),
        (8, 64, 64, 16, 3, 1, 1), (8, 512, 512, 2, 3, 1, 1),
    )
    cases = {}
    for n, ic, oc, size, window, stride, padding in layers:
        out = (size + 2 * padding - window) // stride + 1
        x, w, dy = (n, ic, size, size), (oc, ic, window, window), (n, oc, out, out)
        name = f"{n}x{ic}x{size}x{size}-{oc}-{window}x{window}-stride{stride}"
        cases[f"conv-{name}"] = KernelCase("convolution", _convolution(stride, padding), (x, w))
        cases[f"conv-gradients-{name}"] = KernelCase("convolution gradients", _gradients(stride, padding), (x, w, dy))
    return cases


def _products() -> dict[str, KernelCase]:
    sizes = ((64, 784, 512), (512, 768, 768), (512, 768, 3072), (512, 3072, 768), (4, 2048, 1000), (1024, 128, 128))
    cases = {
        f"linear-{m}x{k}-{n}": KernelCase("matrix product", F.linear, ((m, k), (n, k), (n,))) for m, k, n in sizes
    }
    cases["batched-48x128x64x128"] = KernelCase("matrix product", torch.matmul, ((48, 128, 64), (48, 64, 128)))
    return cases


CASES: dict[str, KernelCase] = {
    **_products(),
    **_resnet_convolutions(),
    "softmax-6144x128": KernelCase("softmax", lambda x: torch.softmax(x, -1), ((6144, 128),)),
    "log-softmax-64x30000": KernelCase("softmax", lambda x: torch.log_softmax(x, -1), ((64, 30000),)),
    "layer-norm-512x768": KernelCase(
        "normalisation", lambda x, w, b: F.layer_norm(x, (768,), w, b), ((512, 768), (768,), (768,)),
    ),
    "layer-norm-both-ways-512x768": KernelCase(
        "normalisation", _layer_norm_gradient, ((512, 768), (512, 768), (768,), (768,)),
    ),
    **{
        f"batch-norm{suffix}-{'x'.join(map(str, shape))}": KernelCase(
            "normalisation", function, (*((shape,) * num), (shape[1],), (shape[1],)),
        )
        for shape in ((4, 64, 112, 112), (4, 256, 56, 56), (8, 512, 2, 2))
        for suffix, num, function in (
            ("", 1, lambda x, w, b: F.batch_norm(x, None, None, w, b, True)), ("-both-ways", 2, _batch_norm_gradient),
        )
    },
    "attention-4x12x128x64": KernelCase("attention", _attention, ((4, 12, 128, 64),) * 3),
    "attention-2x12x256x64": KernelCase("attention", _attention, ((2, 12, 256, 64),) * 3),
    "embedding-512-of-30000x768": KernelCase(
        "embedding", lambda w, i: F.embedding(i, w), ((30000, 768), (512,)), 30000,
    ),
    "embedding-gradient-512-of-30000x768": KernelCase(
        "embedding", lambda g, i: aten.embedding_dense_backward(g, i, 30000, -1, False), ((512, 768), (512,)), 30000,
    ),
    "adamw-arithmetic-2.4M": KernelCase("elementwise", _adamw, ((768, 3072),) * 4),
    "gelu-chain-512x3072": KernelCase(
        "elementwise", lambda x, b, y: F.gelu(x * 0.5 + b) * y, ((512, 3072), (3072,), (512, 3072)),
    ),
    "relu-sum-4x256x56x56": KernelCase("elementwise", lambda x, y: torch.relu(x + y), ((4, 256, 56, 56),) * 2),
    "sum-4x256x56x56": KernelCase("reduction", lambda x: x.sum((0, 2, 3)), ((4, 256, 56, 56),)),
    "max-pool-4x64x112x112": KernelCase("pooling", lambda x: F.max_pool2d(x, 3, 2, 1), ((4, 64, 112, 112),)),
}
