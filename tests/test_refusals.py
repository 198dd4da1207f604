"""What no program can hold is refused at compile time, in words that name the op or input, the line and a remedy."""

import pytest
import torch

from tests.releases import QUANTISED_RESULTS, WORDS_ON_DEVICES
from torchipu import InferenceStep, Options, TrainStep
from torchipu.backend import ipu_backend
from torchipu.errors import CaptureError, ConstraintError, IpuError, OptionsError, UnsupportedOpError


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
    (torch.uint16, "use int32 or int64"),
    (torch.float8_e8m0fnu, "use float16 or float32"),
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


@pytest.mark.parametrize("function", [lambda x: x & x, lambda x: torch.bitwise_xor(x, 3), torch.bitwise_not])
def test_bits_of_floats(function):
    text = refusal(lambda x: function(x), torch.ones(4), kind=ConstraintError)
    assert "bits are combined of integers and bools, not of floats" in text
    assert "Tensor.view(torch.int32)" in text


@QUANTISED_RESULTS
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
    (lambda x: torch.linalg.pinv(x.to(torch.complex64)).abs(), {},
     "aten.linalg_pinv.atol_rtol_tensor: there is no such operator on complex"),
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
    (lambda: torch.eye(3, device="meta"), "input x: meta tensors, which have no values,", "make it on the CPU"),
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


# ---------------------------------------------------------------------- torch.compile of a model
class Reading(torch.nn.Module):
    """A model that multiplies its input with a tensor of its own."""

    def __init__(self, held, *, is_parameter=False):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.inner = torch.nn.Module()
        if is_parameter:
            self.inner.scale = torch.nn.Parameter(held, requires_grad=False)
        else:
            self.inner.register_buffer("scale", held)

    def forward(self, x):
        return self.linear(x * self.inner.scale).sum()


def bytes_of(model):
    """Return each tensor of a model's state by name: type, layout, shape, and what its memory holds."""
    return {
        name: (one.dtype, one.layout, one.shape, one.is_meta or one.to_dense().clone().untyped_storage().tolist())
        for name, one in model.state_dict().items()
    }


def refused_by_compile(model, *args, **options):
    """Compile a model, which must be refused as it is under torch.compile's own defaults too; return our error."""
    before = bytes_of(model)
    kwargs = {"options": options} if options else {}
    for fullgraph in (True, False):
        torch._dynamo.reset()
        compiled = torch.compile(model, backend="ipu", fullgraph=fullgraph, **kwargs)
        with pytest.raises(Exception) as caught:  # noqa: PT011 - torch's own class around ours
            compiled(*args)
        error = getattr(caught.value, "inner_exception", caught.value)
        assert isinstance(error, IpuError), error
        assert str(error).splitlines()[0] in str(caught.value)  # what a user reads in the traceback
        assert "test_refusals.py" in str(error.source)
        assert error.op
        assert error.remedy
        assert bytes_of(model) == before
        assert all(parameter.grad is None for parameter in model.parameters())
        assert model.training
    return error


PLAIN_INPUT = 2 * torch.eye(3)
LACKING = [
    (lambda x: x.to(torch.uint16), "torch.uint16 has no counterpart on the IPU", "use int32 or int64"),
    (lambda x: x.to(torch.uint32), "torch.uint32 has no counterpart on the IPU", "use int32 or int64"),
    (lambda x: x.to(torch.uint64), "torch.uint64 has no counterpart on the IPU", "use int32 or int64"),
    (lambda x: x.to(torch.float8_e8m0fnu), "torch.float8_e8m0fnu has no counterpart on the IPU",
     "use float16 or float32"),
    (torch.Tensor.to_mkldnn, "tensors of layout torch._mkldnn cannot be held by the IPU", "call to_dense()"),
]


@pytest.mark.parametrize(("given", "told", "remedy"), [
    *LACKING,
    (lambda x: torch.nested.nested_tensor([x, x[:2]], layout=torch.jagged), "nested tensors cannot be", "to_padded"),
])
def test_a_compiled_model_is_refused_for_its_input_and_runs_with_another(given, told, remedy):
    model = Refused(torch.abs)
    expected = model(PLAIN_INPUT)
    error = refused_by_compile(model, given(PLAIN_INPUT))
    assert str(error).startswith(f"input x: {told}")
    assert "return self.linear(self.refused(x).float()).sum()" in str(error.source)
    assert remedy in error.remedy
    assert torch.equal(model(PLAIN_INPUT), expected)
    compiled = torch.compile(model, backend="ipu", fullgraph=True)
    with pytest.raises(Exception, match="input x"):
        compiled(given(PLAIN_INPUT))
    torch.testing.assert_close(compiled(PLAIN_INPUT), expected)
    with pytest.raises(Exception, match="input x"):
        compiled(given(PLAIN_INPUT))  # once compiled for another, too


@pytest.mark.parametrize("is_parameter", [False, True])
@pytest.mark.parametrize(("held", "told", "remedy"), LACKING)
def test_a_compiled_model_is_refused_for_what_it_holds(held, told, remedy, is_parameter):
    if is_parameter and held is torch.Tensor.to_mkldnn:
        pytest.skip("torch makes no parameter of such a tensor")
    model = Reading(held(PLAIN_INPUT), is_parameter=is_parameter)
    error = refused_by_compile(model, torch.eye(3))
    assert str(error).startswith(f"{'parameter' if is_parameter else 'buffer'} inner.scale: {told}")
    assert "return self.linear(x * self.inner.scale).sum()" in str(error.source)
    assert remedy in error.remedy
    model.inner.scale = torch.nn.Parameter(PLAIN_INPUT, requires_grad=False) if is_parameter else PLAIN_INPUT
    expected = model(torch.eye(3))
    torch.testing.assert_close(torch.compile(model, backend="ipu", fullgraph=True)(torch.eye(3)), expected)


@pytest.mark.parametrize(("refused", "options", "told", "remedy"), [
    (lambda x: torch.linalg.pinv(x.to(torch.complex64)).abs(), {},
     "aten.linalg_pinv.atol_rtol_tensor: there is no such operator on complex",
     "two real tensors"),
    (lambda x: x.to(torch.uint16), {}, "torch.uint16 has no counterpart on the IPU", "use int32 or int64"),
    (lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize(), {},
     "aten.quantize_per_tensor.default: torch.qint8 has no counterpart on the IPU", "float16, float32, bool"),
    (lambda x: torch.linalg.qr(x)[1], {"strict_ops": True}, "aten.linalg_qr.default has no lowering for the IPU",
     'leave out options={"strict_ops": True}'),
    (lambda x: x ^ 1, {}, "bits are combined of integers and bools, not of floats", "Tensor.view(torch.int32)"),
    (lambda x: torch.empty_like(torch.empty(3, device="meta") * 2, device="cpu"), {},
     "meta tensors, which have no values", "make it on the CPU"),
])
def test_a_compiled_model_is_refused_for_what_it_computes(refused, options, told, remedy):
    model = Refused(refused)
    error = refused_by_compile(model, torch.eye(3), **options)
    assert told in str(error).splitlines()[0]
    assert remedy in error.remedy
    model.refused = torch.neg
    expected = model(PLAIN_INPUT)
    torch.testing.assert_close(torch.compile(model, backend="ipu", fullgraph=True)(PLAIN_INPUT), expected)


@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_model_without_values_is_refused_and_runs_once_it_has_some(fullgraph):
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU()).to("meta")
    compiled = torch.compile(model, backend="ipu", fullgraph=fullgraph)
    with pytest.raises(Exception, match="meta tensors, which have no values, cannot be held by the IPU") as caught:
        compiled(PLAIN_INPUT.to("meta"))
    error = caught.value.inner_exception
    assert str(error).startswith("parameter 0.weight: meta tensors")
    assert 'Module.to_empty(device="cpu") and load its state_dict' in error.remedy
    model.to_empty(device="cpu").load_state_dict(torch.nn.Sequential(torch.nn.Linear(3, 3)).state_dict())
    torch.testing.assert_close(compiled(PLAIN_INPUT), model(PLAIN_INPUT))


@WORDS_ON_DEVICES
@pytest.mark.parametrize("fullgraph", [False, True])
def test_torch_says_that_an_input_without_values_is_on_another_device(fullgraph):
    compiled = torch.compile(torch.nn.Linear(3, 3), backend="ipu", fullgraph=fullgraph)
    with pytest.raises(Exception, match="found at least two devices") as caught:
        compiled(PLAIN_INPUT.to("meta"))
    assert "Move inputs, parameters, and buffers to the same device" in str(caught.value)


def test_a_tensor_of_onednn_that_the_model_makes_is_told_where_it_enters_the_program():
    model = Refused(lambda x: x.to_mkldnn().to_dense())
    with pytest.raises(Exception, match="Dynamo failed to run FX node with fake tensors"):
        torch.compile(model, backend="ipu", fullgraph=True)(PLAIN_INPUT)
    torch._dynamo.reset()
    with pytest.raises(Exception, match=r"tensors of layout torch\._mkldnn cannot be held by the IPU"):
        torch.compile(model, backend="ipu")(PLAIN_INPUT)


TORCHS = [
    (lambda x: x.to_sparse(), "torch.compile does not support sparse Tensors"),
    (lambda x: x.to_sparse_csr(), "torch.compile does not support sparse Tensors"),
    (lambda x: x.to_sparse_csc(), "torch.compile does not support sparse Tensors"),
    (lambda x: x.to_sparse_bsr(1), "torch.compile does not support sparse Tensors"),
    (lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), "quantized nyi in meta tensors"),
    (lambda x: torch.quantize_per_channel(x, torch.ones(3), torch.zeros(3), 0, torch.qint8), "quantized nyi in meta"),
    (lambda x: torch.nested.nested_tensor([x]), "torch.compile does not support strided NestedTensor"),
]
"""Tensors at which Dynamo stops before it asks any backend: it says so with the line."""


@pytest.mark.filterwarnings("ignore:.*(quantize_per|Sparse CS|Sparse BS|nested tensors)")
@pytest.mark.parametrize("is_held", [False, True])
@pytest.mark.parametrize(("given", "told"), TORCHS)
def test_what_dynamo_stops_at_is_refused_in_its_words_and_the_model_is_as_it_was(given, told, is_held):
    class Summing(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(3, 3)
            self.held = given(PLAIN_INPUT)

        def forward(self, x):
            dense = self.held if is_held else x
            return self.linear(dense.to_dense() if not dense.is_quantized else dense.dequantize()).sum()

    model = Summing()
    before = bytes_of(model)
    argument = PLAIN_INPUT if is_held else given(PLAIN_INPUT)
    with pytest.raises(torch._dynamo.exc.Unsupported, match=told) as caught:
        torch.compile(model, backend="ipu", fullgraph=True)(argument)
    assert "dense.to_dense()" in str(caught.value)
    assert bytes_of(model) == before
    if not (given(PLAIN_INPUT).is_nested):  # of which eager makes nothing dense
        torch._dynamo.reset()
        expected = model(argument)
        torch.testing.assert_close(torch.compile(model, backend="ipu")(argument), expected)  # torch breaks the graph


def quantized():
    return torch.ao.quantization.quantize_dynamic(
        torch.nn.Sequential(torch.nn.Linear(3, 3)), {torch.nn.Linear}, dtype=torch.qint8,
    )


def replicated():
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    return torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3))


@pytest.mark.filterwarnings("ignore:.*(quantize|torch.ao|Lazy modules|torch.jit)")
@pytest.mark.parametrize(("make", "told", "remedy"), [
    (quantized, "module 0: Linear has quantized weights", "as it was before it was quantized"),
    (lambda: torch.nn.Sequential(torch.jit.trace(torch.nn.Linear(3, 3), PLAIN_INPUT)), "is a program of TorchScript's",
     "torch.nn.Module that it was made of"),
    (replicated, "the model: DistributedDataParallel exchanges tensors between processes", "the module within it"),
    (lambda: torch.nn.Sequential(torch.nn.LazyLinear(3)), "module 0: LazyLinear has weights whose", "call the model"),
])
def test_a_module_that_no_program_can_hold_is_named_with_a_remedy(make, told, remedy):
    try:
        step = InferenceStep(make())
        with pytest.raises(UnsupportedOpError, match=told) as caught:
            step(PLAIN_INPUT)
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
    assert remedy in caught.value.remedy


class Returning(torch.nn.Module):
    """Hands back something that is no tensor."""

    def __init__(self, value):
        super().__init__()
        self.value = value

    def forward(self, x):
        x.sin()
        return self.value


@pytest.mark.parametrize("value", [3, None, ("a", [1, 2]), {}])
def test_a_forward_without_a_tensor_to_hand_back_is_told_so(value):
    with pytest.raises(CaptureError, match="forward of Returning returns no tensor that it has computed"):
        InferenceStep(Returning(value))(PLAIN_INPUT)


@pytest.mark.parametrize("given", [None, "sgd", torch.optim.SGD])
def test_what_is_no_optimiser_is_refused_before_anything_is_compiled(given):
    with pytest.raises(OptionsError, match=r"optimizer must be a torch\.optim\.Optimizer"):
        TrainStep(torch.nn.Linear(3, 3), given)


@pytest.mark.parametrize("loss", [lambda results: results[0], "mean", True, torch.tensor(0.5)])
def test_a_loss_that_is_no_position_is_refused_before_anything_is_captured(loss: object) -> None:
    model = torch.nn.Linear(2, 2)
    with pytest.raises(OptionsError, match=f"loss must be a position .*, got {type(loss).__name__}"):
        TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), loss=loss)



@pytest.mark.parametrize(("refused", "told"), [
    (lambda x: x.to_sparse().to_dense(), "does not support sparse Tensors"),
    (lambda x: x[x.nonzero()[:, 0]], "is not known before the program runs"),
    (lambda x: torch.unique(x).sum() * x, "is not known before the program runs"),
    (lambda x: x * int(x.argmax()), "is not known before the program runs"),
    (lambda x: x if x.sum() > 0 else -x, "Data-dependent branching"),
])
def test_what_breaks_a_graph_is_refused_as_one_and_runs_in_parts(refused, told):
    model = Refused(refused)
    before = bytes_of(model)
    with pytest.raises(Exception, match=told) as caught:
        torch.compile(model, backend="ipu", fullgraph=True)(PLAIN_INPUT)
    assert "test_refusals.py" in str(caught.value)
    assert bytes_of(model) == before
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(model, backend="ipu")(PLAIN_INPUT), model(PLAIN_INPUT))


# ---------------------------------------------------------------------- what torch leaves to the reader of a tensor
def test_a_sign_that_torch_keeps_beside_the_values_is_read():
    imaginary = torch.randn(3, 3, dtype=torch.complex64).conj().imag
    assert imaginary.is_neg()
    model = Reading(imaginary)
    expected = model(PLAIN_INPUT), model(imaginary)
    compiled = torch.compile(model, backend="ipu", fullgraph=True)
    torch.testing.assert_close((compiled(PLAIN_INPUT), compiled(imaginary)), expected)
    x = torch.randn(3, 3, requires_grad=True)
    sines = torch.compile(torch.sin, backend="ipu", fullgraph=True)(x)
    (gradient,) = torch.autograd.grad(sines, x, imaginary)
    torch.testing.assert_close(gradient, imaginary * x.detach().cos())
    torch.testing.assert_close(InferenceStep(model)(imaginary), expected[1])


def test_zeros_without_memory_are_read():
    zeros = torch._efficientzerotensor(3)
    assert torch.compile(torch.cos, backend="ipu", fullgraph=True)(zeros).tolist() == [1.0, 1.0, 1.0]


class Drawing(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x):
        return torch.distributions.Normal(self.linear(x), torch.ones(3)).rsample().sum()


def test_arguments_of_distributions_are_validated_after_a_step_as_before(monkeypatch):
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)
    torch._dynamo.eval_frame.TorchPatcher.patch.cache_clear()  # it switches the checks off, once a process
    step = TrainStep(model := Drawing(), torch.optim.SGD(model.parameters(), 0.1))
    assert torch.isfinite(step(torch.eye(3)))
    assert torch.isfinite(InferenceStep(model)(torch.eye(3)))
    with pytest.raises(ValueError, match="to satisfy the constraint"):
        torch.distributions.Normal(torch.zeros(3), -torch.ones(3))
