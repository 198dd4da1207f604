"""Floats of 8 bits as storage and as operands of products: bytes with a format and a scale for the whole tensor.

``F143`` has 4 bits of exponent and 3 of mantissa and holds magnitudes up to 240, ``F152`` 5 and 2, up to 57344. A
value is what its byte says times ``2 ** scale``. The bytes are those of torch.float8_e4m3fnuz and
torch.float8_e5m2fnuz. Every machine stores them; the matrix unit of a C600 alone multiplies them.

`quantise` and `dequantise` convert, `matmul` and `convolution` take bytes; `product` and `conv` take halves or floats,
convert them, and have gradients that are products of bytes as well.

Tensors of torch's own types, such as ``torch.float8_e4m3fn``, are taken where the machine has floats of 8 bits: see
`torchipu.fp8.torch_types`.
"""

from torchipu.fp8.codes import FORMATS, convolution, dequantise, matmul, quantise
from torchipu.fp8.gradients import conv, product

__all__ = ["FORMATS", "conv", "convolution", "dequantise", "matmul", "product", "quantise"]
