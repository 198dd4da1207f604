"""Gradients of determinants, whose formula in torch asks how a matrix lies in memory."""

from collections.abc import Callable

import pytest
import torch

from torchipu.backend import ipu_backend

LAYOUTS = {
    "rows": lambda matrix: matrix.clone(),
    "columns": lambda matrix: matrix.T.contiguous().T,
    "a batch of both": lambda matrix: torch.stack([matrix, matrix + 1]).mT,
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("function", [torch.linalg.det, lambda matrix: torch.linalg.slogdet(matrix).logabsdet])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_gradients_do_not_depend_on_how_a_matrix_lies(
    function: Callable[[torch.Tensor], torch.Tensor], layout: str, dtype: torch.dtype,
) -> None:
    torch._dynamo.reset()
    matrix = LAYOUTS[layout](torch.randn(4, 4, dtype=dtype))
    ours = matrix.detach().requires_grad_()
    theirs = matrix.to(torch.complex128 if dtype.is_complex else torch.float64).requires_grad_()
    returned, expected = torch.compile(function, backend=ipu_backend)(ours), function(theirs)
    returned.abs().sum().backward()
    expected.abs().sum().backward()
    torch.testing.assert_close(returned, expected.to(returned.dtype), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours.grad, theirs.grad.to(dtype), rtol=1e-3, atol=1e-3)
