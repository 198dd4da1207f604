"""Strides of inputs, of results and of as_strided's operand are torch's, whatever the order of the dimensions."""

import pytest
import torch

from torchipu.backend import ipu_backend


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()


def check(function, *args):
    returned, expected = torch.compile(function, backend=ipu_backend, fullgraph=True)(*args), function(*args)
    torch.testing.assert_close(returned, expected)
    assert returned.stride() == expected.stride()


def test_as_strided_of_a_computed_transpose():
    check(lambda x: torch.as_strided((x * 2).t(), (2, 2), (1, 2), 1) + 1, torch.randn(3, 4))


def test_as_strided_of_a_transposed_input():
    check(lambda x: torch.as_strided(x, (2, 2), (1, 2), 1) * 2, torch.randn(3, 4).t())


def test_as_strided_scatter_into_a_computed_transpose():
    def scatter(x, y):
        return torch.as_strided_scatter((x * 2).t(), y, (2, 2), (1, 2), 1) + 1

    x, y = torch.randn(3, 4), torch.randn(2, 2)
    returned = torch.compile(scatter, backend=ipu_backend, fullgraph=True)(x, y)
    torch.testing.assert_close(returned, scatter(x, y))


def test_contiguous_makes_a_channels_last_input_row_major():
    check(lambda x: x.contiguous(), torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last))


def test_channels_last_stays_channels_last():
    check(lambda x: x * 2, torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last))


BASE = torch.arange(48.0).reshape(6, 4, 2)
READ_OR_WRITTEN = {
    "read": lambda x: torch.as_strided_copy(x, (2, 2), (3, 1), 9),
    "written": lambda x: torch.as_strided_scatter(x, torch.zeros(2, 2), (2, 2), (2, 1), 9),
}


@pytest.mark.parametrize("name", READ_OR_WRITTEN)
def test_offsets_are_those_of_the_memory_that_an_input_lies_in(name):
    for turned in (False, True):
        x = torch.arange(24.0).reshape(6, 4)[2:]
        x = x.T if turned else x
        compiled = torch.compile(READ_OR_WRITTEN[name], backend=ipu_backend)
        torch.testing.assert_close(compiled(x), READ_OR_WRITTEN[name](x))


@pytest.mark.parametrize("name", READ_OR_WRITTEN)
def test_what_lies_between_the_elements_of_an_input_is_refused(name):
    with pytest.raises(Exception, match="shows memory that its operand does not"):
        torch.compile(READ_OR_WRITTEN[name], backend=ipu_backend)(BASE[..., 0])


MASK = torch.tensor([[True, False, True, False], [False, True, True, True], [False, False, False, True]])


@pytest.mark.parametrize(
    "write",
    [
        lambda out: out.__setitem__(MASK, 0.0),
        lambda out: out.__setitem__(MASK, torch.arange(2.0)),
        lambda out: out.__setitem__(MASK.unsqueeze(-1).expand(3, 4, 2), 1.0),
        lambda out: out.__setitem__(MASK, torch.arange(12.0).reshape(6, 2)),
        lambda out: out.index_put_((MASK,), torch.tensor(1.0), accumulate=True),
    ],
    ids=["number", "row", "each", "rows", "added"],
)
def test_a_mask_writes_into_a_transposed_view_of_what_a_layer_made(write):
    """The result of attention with the batch first is such a view, and padding is often set to zero in it."""
    layer, x = torch.nn.Linear(3, 2), torch.randn(12, 3)

    def masked(x):
        out = layer(x).view(4, 3, 2).transpose(0, 1)
        write(out)
        return out.sin()

    check(masked, x)
