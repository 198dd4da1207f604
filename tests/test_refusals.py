"""What no program can hold is refused at compile time, in words that name the op or input, the line and a remedy."""

import pytest
import torch

from torchipu import Options, TrainStep
from torchipu.backend import ipu_backend
from torchipu.errors import CaptureError, ConstraintError, IpuError, UnsupportedOpError


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()


def refusal(function, *args, kind=UnsupportedOpError, fullgraph=True, **options):
    """Compile, and return the error of ours that torch wraps."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - torch's own class around ours
        torch.compile(function, backend=ipu_backend, fullgraph=fullgraph, options=options or None)(*args)
    error = getattr(caught.value, "inner_exception", caught.value)
    assert isinstance(error, kind), error
    assert isinstance(error, IpuError)
    assert "test_refusals.py" in str(error.source)
    assert error.remedy
    return str(error)


def doubled(x):
    return x * 2


@pytest.mark.parametrize(("dtype", "remedy"), [
    (torch.complex64, "real and imaginary parts"), (torch.uint16, "use int32 or int64"),
    (torch.float8_e4m3fn, "use float16 or float32"),
])
def test_an_input_of_a_type_that_the_ipu_lacks(dtype, remedy):
    text = refusal(doubled, torch.ones(3).to(dtype))
    assert text.startswith(f"input x: {dtype} has no counterpart on the IPU")
    assert "return x * 2" in text
    assert remedy in text


def test_a_nested_input():
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)], layout=torch.jagged)
    text = refusal(doubled, nested)
    assert text.startswith("input x: nested tensors cannot be held by the IPU")
    assert "to_padded_tensor" in text


def test_an_op_that_returns_complex_numbers():
    text = refusal(lambda x: torch.fft.rfft(x).abs(), torch.ones(4))
    assert text.startswith("aten._fft_r2c.default: torch.complex64 has no counterpart on the IPU")
    assert "torch.view_as_real" in text


def test_a_conversion_to_complex_numbers():
    assert "torch.complex64 has no counterpart" in refusal(lambda x: x.to(torch.complex64).real, torch.ones(4))


@pytest.mark.parametrize("function", [lambda x: x & x, lambda x: torch.bitwise_xor(x, 3), torch.bitwise_not])
def test_bits_of_floats(function):
    text = refusal(lambda x: function(x), torch.ones(4), kind=ConstraintError)
    assert "bits are combined of integers and bools, not of floats" in text
    assert "Tensor.view(torch.int32)" in text


def test_a_quantised_result():
    text = refusal(lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize(), torch.ones(4))
    assert "aten.quantize_per_tensor" in text


@pytest.mark.parametrize("options", [{}, {"strict": True}, {"strict_ops": True}])
@pytest.mark.parametrize("function", [torch.nonzero, torch.unique, lambda x: torch.masked_select(x, x > 0)])
def test_a_size_that_depends_on_values(function, options):
    text = refusal(lambda x: function(x), torch.ones(4), kind=CaptureError, **options)
    assert "is not known before the program runs" in text
    assert "use torch.where, or pad to a fixed size" in text


@pytest.mark.parametrize("function", [torch.nonzero, torch.unique, lambda x: torch.masked_select(x, x > 0)])
def test_without_fullgraph_a_size_that_depends_on_values_breaks_the_graph(function):
    def broken(x):
        return function(x * 2) + 1

    x = torch.tensor([0.0, 1.0, -2.0])
    assert torch.equal(torch.compile(broken, backend=ipu_backend)(x), broken(x))


def test_strict_refuses_a_graph_that_begins_after_a_break():
    text = refusal(lambda x: x.nonzero() + 1, torch.ones(4), kind=CaptureError, fullgraph=False, strict=True)
    assert text.startswith("strict: the model breaks into several graphs")


def test_strict_ops_names_the_op_its_line_and_the_way_out():
    text = refusal(lambda x: torch.linalg.qr(x)[1], torch.ones(4, 4), strict_ops=True)
    assert text.startswith("aten.linalg_qr.default has no lowering for the IPU")
    assert 'leave out options={"strict_ops": True}' in text


@pytest.mark.parametrize("function", [lambda x: x.sum().item() * 2, lambda x: x * int(x.argmax())])
def test_a_number_read_from_a_tensor(function):
    text = refusal(lambda x: function(x), torch.ones(4), kind=CaptureError)
    assert "is not known before the program runs" in text.splitlines()[0]
    assert "compute with the tensor" in text


class Inverting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x):
        return self.linear(torch.linalg.inv(x)).sum()


class Refused(torch.nn.Module):
    """A model that no program can hold, for what it does with its input."""

    def __init__(self, refused):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.refused = refused

    def forward(self, x):
        return self.linear(self.refused(x).float()).sum()


def sparse_product(x):
    return (x @ x.t()).to_sparse().to_dense()


def quantised(x):
    return torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize()


@pytest.mark.parametrize(("refused", "options", "told"), [
    (lambda x: torch.fft.fft(x).abs(), {}, "aten._fft_r2c.default: torch.complex64 has no counterpart on the IPU"),
    (lambda x: torch.linalg.qr(x)[1], {"strict_ops": True}, "aten.linalg_qr.default has no lowering for the IPU"),
    (lambda x: x[x.nonzero()[:, 0]], {}, "depends on data"),
    (lambda x: x * int(x.argmax()), {}, ".item()"),
    (lambda x: x if x.sum() > 0 else -x, {}, "Data-dependent branching"),
    (sparse_product, {}, "sparse"),
    (quantised, {}, "torch.qint8 has no counterpart on the IPU"),
])
def test_a_whole_step_is_refused_and_the_model_is_as_it_was(refused, options, told):
    model = Refused(refused)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimiser = torch.optim.Adam(model.parameters(), 0.1)
    step = TrainStep(model, optimiser, Options(**options))
    with pytest.raises(CaptureError) as caught:
        step(torch.eye(3))
    assert told in str(caught.value)
    assert "test_refusals.py" in str(caught.value.source)
    assert caught.value.remedy
    assert "fullgraph" not in caught.value.remedy
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    assert not optimiser.state
    assert model.training
    assert model.refused is refused


@pytest.mark.filterwarnings("ignore:.*(quantize_per_tensor|Sparse CSR|nested tensors)")
@pytest.mark.parametrize(("given", "told", "remedy"), [
    (lambda: torch.eye(3).to_sparse(), "input x: tensors of layout torch.sparse_coo", "to_dense()"),
    (lambda: torch.eye(3).to_sparse_csr(), "input x: tensors of layout torch.sparse_csr", "to_dense()"),
    (lambda: torch.eye(3).to_mkldnn(), "input x: tensors of layout torch._mkldnn", "to_dense()"),
    (lambda: torch.quantize_per_tensor(torch.eye(3), 0.1, 0, torch.qint8), "input x: quantised", "dequantize()"),
    (lambda: torch.nested.nested_tensor([torch.ones(2, 3)]), "input x: nested tensors", "to_padded_tensor"),
    (lambda: torch.eye(3, dtype=torch.complex64), "input x: torch.complex64 has no counterpart", "real and imaginary"),
])
def test_a_whole_step_is_refused_for_its_input(given, told, remedy):
    model = Refused(torch.real)
    step = TrainStep(model, torch.optim.SGD(model.parameters(), 0.1))
    with pytest.raises(UnsupportedOpError) as caught:
        step(given())
    assert str(caught.value).startswith(told)
    assert "test_refusals.py" in str(caught.value.source)
    assert remedy in caught.value.remedy


def test_torchs_check_of_a_matrix_is_kept_by_both_doors():
    step = TrainStep(model := Inverting(), torch.optim.SGD(model.parameters(), 0.1))
    expected = model(2 * torch.eye(3)).item()
    assert step(2 * torch.eye(3)).item() == pytest.approx(expected)
    inverse = torch.compile(torch.linalg.inv, backend=ipu_backend, fullgraph=True)
    torch.testing.assert_close(inverse(2 * torch.eye(3)), torch.eye(3) / 2)
    for run in (step, inverse):
        with pytest.raises(torch.linalg.LinAlgError, match="singular"):
            run(torch.zeros(3, 3))


def test_an_empty_sum_of_products_is_the_addend():
    function = torch.compile(torch.addmm, backend=ipu_backend, fullgraph=True)
    addend = torch.randn(10)
    torch.testing.assert_close(function(addend, torch.ones(5, 0), torch.ones(0, 10)), addend.expand(5, 10))


def test_as_strided_counts_from_the_tensor_and_not_from_the_arena():
    def window(x):
        return torch.as_strided((x * 2).contiguous(), (2, 2), (1, 1), 1) + x.exp().sum()

    x = torch.randn(4, 3)
    torch.testing.assert_close(torch.compile(window, backend=ipu_backend, fullgraph=True)(x), window(x))
