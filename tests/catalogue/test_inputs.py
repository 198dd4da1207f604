"""Inputs: odd layouts, sizes, types and values, through both doors."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass

import numpy as np
import poptorch
import pytest
import torch

from torchipu import InferenceStep, OutOfTileMemoryError
from torchipu.capture import fx_types
from torchipu.errors import IpuError

Pair = namedtuple("Pair", ["left", "right"])


@dataclass
class Boxed:
    value: torch.Tensor
    scale: float


def compiled(function, **options):
    return torch.compile(function, backend="ipu", options=options or None)


def refused(function, *args, kind=IpuError, **options):
    with pytest.raises(Exception) as caught:  # noqa: PT011 - torch's own class around ours
        compiled(function, **options)(*args)
    error = getattr(caught.value, "inner_exception", caught.value)
    assert isinstance(error, kind), repr(error)
    return error


class Linear(torch.nn.Module):
    def __init__(self, features=4):
        super().__init__()
        self.linear = torch.nn.Linear(features, 3)

    def forward(self, x):
        return self.linear(x)


LAYOUTS = {
    "transposed": lambda: torch.randn(4, 6).t(),
    "stepped": lambda: torch.randn(12, 8)[::2, ::2],
    "expanded": lambda: torch.randn(1, 4).expand(6, 4),
    "row expanded": lambda: torch.randn(6, 1).expand(6, 4),
    "with an offset": lambda: torch.randn(8, 4)[2:],
}


@pytest.mark.case(1)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides(layout):
    model, given = Linear(), LAYOUTS[layout]()
    with torch.no_grad():
        expected = model(given)
        torch.testing.assert_close(compiled(model)(given), expected)
        torch.testing.assert_close(poptorch.inferenceModel(model)(given), expected)
        torch.testing.assert_close(InferenceStep(model)(given), expected)


@pytest.mark.case(1)
def test_channels_last():
    model = torch.nn.Conv2d(3, 5, 3, padding=1)
    given = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    with torch.no_grad():
        torch.testing.assert_close(compiled(model)(given), model(given), rtol=1e-5, atol=1e-5)


@pytest.mark.case(2)
def test_bits_of_conjugates_and_signs():
    given = torch.randn(3, 4, dtype=torch.complex64)
    assert given.conj().is_conj()
    assert given.conj().imag.is_neg()

    def imaginary(x):
        return x.imag * 2

    torch.testing.assert_close(compiled(imaginary)(given.conj()), imaginary(given.conj()))
    torch.testing.assert_close(compiled(torch.exp)(given.conj().imag), given.conj().imag.exp())
    torch.testing.assert_close(InferenceStep(torch.nn.Tanh())(given.conj().imag), given.conj().imag.tanh())


@pytest.mark.case(3)
@pytest.mark.parametrize("function", [
    lambda x: x * 2, lambda x: x.sum(0), lambda x: x.mean(), lambda x: x.t() @ x, lambda x: torch.cat([x, x]),
    lambda x: torch.cat([x, torch.ones(2, 4)]).relu(), lambda x: torch.nn.functional.softmax(x, 1),
])
def test_no_elements(function):
    given = torch.ones(0, 4)
    expected, got = function(given), compiled(lambda x: function(x))(given)
    torch.testing.assert_close(got, expected, equal_nan=True)
    assert got.shape == expected.shape


@pytest.mark.case(3)
def test_a_batch_without_samples():
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 5))
    with torch.no_grad():
        assert compiled(model)(torch.ones(0, 3, 8, 8)).shape == (0, 5)
        torch.testing.assert_close(compiled(model)(torch.ones(2, 3, 8, 8)), model(torch.ones(2, 3, 8, 8)))


@pytest.mark.case(4)
def test_no_elements_through_poptorch(told):
    model = poptorch.inferenceModel(torch.nn.ReLU())
    with pytest.raises(poptorch.Error) as caught:
        model(torch.ones(0, 2, 5, 5))
    told(caught.value, "Zero-sized tensors are unsupported", "[0, 2, 5, 5]")
    assert poptorch.inferenceModel(torch.nn.ReLU())(-torch.ones(2)).tolist() == [0, 0]


@pytest.mark.case(5)
def test_no_dimensions():
    given = torch.tensor(3.0)
    assert compiled(torch.square)(given).shape == ()
    assert compiled(torch.square)(given) == 9
    assert poptorch.inferenceModel(torch.nn.ReLU())(given) == 3


@pytest.mark.case(6)
def test_numbers_strings_and_nests():
    def forward(x, number, word, nothing, nest):
        scaled = x * number if word == "times" and nothing is None else x
        boxed = nest["boxed"]
        return {"sum": scaled + nest["pair"].left + nest["listed"][0], "boxed": boxed.value * boxed.scale}

    x = torch.randn(3)
    nest = {"pair": Pair(x + 1, x), "listed": [x * 2], "boxed": Boxed(x, 0.5)}
    function = compiled(forward)
    for number, word in ((2, "times"), (2.5, "times"), (True, "times"), (2, "plus")):
        expected = forward(x, number, word, None, nest)
        torch.testing.assert_close(function(x, number, word, None, nest), expected)


@pytest.mark.case(6)
def test_another_number_through_poptorch(told):
    class Scaled(torch.nn.Module):
        def forward(self, x, u):
            return x * u

    model = poptorch.inferenceModel(Scaled())
    assert model(torch.ones(2), 5).tolist() == [5, 5]
    with pytest.raises(poptorch.Error) as caught:
        model(torch.ones(2), 3)
    told(caught.value, "Value mismatch for u: expected 5 but got 3")
    assert model(torch.ones(2), 5).tolist() == [5, 5]


@pytest.mark.case(7)
def test_double(told, caught_warnings, monkeypatch):
    monkeypatch.setattr(fx_types, "_WARNED", set())  # a process is warned once
    model, given = Linear().double(), torch.randn(2, 4, dtype=torch.float64)
    with torch.no_grad():
        got = compiled(model)(given)
    assert got.dtype == torch.float64
    torch.testing.assert_close(got, model(given).detach(), rtol=1e-5, atol=1e-6)
    of_ours = [warning.message for warning in caught_warnings if "float64" in str(warning.message)]
    assert len(of_ours) == 1
    told(of_ours[0], "float64", "computed as float")
    error = refused(Linear().double(), given, strict=True)
    told(error, "float64")


class Next(torch.nn.Module):
    def forward(self, x):
        return x + 1


@pytest.mark.case(8)
def test_integers_beyond_32_bits():
    given = torch.tensor([1, 2**40, 3])
    assert compiled(Next())(given).tolist() == [2, 2**40 + 1, 4]


@pytest.mark.case(8)
@pytest.mark.parametrize("is_first", [True, False])
def test_integers_beyond_32_bits_through_poptorch(told, is_first):
    model = poptorch.inferenceModel(Next())
    if not is_first:
        assert model(torch.tensor([[1, 2, 3]])).tolist() == [[2, 3, 4]]
    with pytest.raises(poptorch.Error) as caught:
        model(torch.tensor([[1, -2**40, 3]]))
    told(caught.value, f"x[0, 1] is {-2**40}", "torch.int64", "2147483647")
    assert model(torch.tensor([[1, 2, 2**31 - 2]])).tolist() == [[2, 3, 2**31 - 1]]


KINDS = {
    "sparse": (lambda: torch.eye(3).to_sparse(), "sparse Tensor"),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)], layout=torch.jagged), "nested"),
    "meta": (lambda: torch.eye(3, device="meta"), "meta"),
}


@pytest.mark.case(9)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_tensors(told, kind):
    make, words = KINDS[kind]
    model = torch.nn.Tanh()
    with pytest.raises(Exception) as caught:  # noqa: PT011 - torch's own class around ours
        torch.compile(model, backend="ipu", fullgraph=True)(make())
    told(caught.value, words)
    assert torch.equal(compiled(model)(torch.eye(3)), torch.eye(3).tanh())


@pytest.mark.case(9)
@pytest.mark.filterwarnings("ignore")
def test_a_quantised_tensor():
    given = torch.quantize_per_tensor(torch.eye(3), 0.1, 0, torch.qint8)
    torch.testing.assert_close(compiled(lambda x: x.dequantize() * 2)(given), given.dequantize() * 2)


@pytest.mark.case(9)
def test_complex():
    given = torch.randn(3, dtype=torch.complex64)
    torch.testing.assert_close(compiled(lambda x: x * x.conj())(given), given * given.conj())


@pytest.mark.case(10)
def test_bfloat16(told, caught_warnings, monkeypatch):
    monkeypatch.setattr(fx_types, "_WARNED", set())  # a process is warned once
    model, given = Linear().bfloat16(), torch.randn(2, 4, dtype=torch.bfloat16)
    with torch.no_grad():
        got = compiled(model)(given)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got, model(given).detach(), rtol=2e-2, atol=2e-2)
    of_ours = [warning.message for warning in caught_warnings if "bfloat16" in str(warning.message)]
    assert len(of_ours) == 1
    told(of_ours[0], "bfloat16", "computed as float")
    told(refused(Linear().bfloat16(), given, strict=True), "bfloat16")


@pytest.mark.case(11)
def test_an_input_that_wants_a_gradient():
    model = Linear()
    given, mine = torch.randn(2, 4), None
    mine, eager = given.clone().requires_grad_(), given.clone().requires_grad_()
    compiled(model)(mine).square().sum().backward()
    model.zero_grad()
    model(eager).square().sum().backward()
    torch.testing.assert_close(mine.grad, eager.grad, rtol=1e-5, atol=1e-6)
    got = poptorch.inferenceModel(model)(given.clone().requires_grad_())
    assert not got.requires_grad
    torch.testing.assert_close(got, model(given).detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.case(12)
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_memory_that_must_not_be_written():
    with torch.inference_mode():
        made = torch.randn(2, 4)
    array = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
    array.setflags(write=False)
    model = Linear()
    for given in (made, torch.from_numpy(array)):
        kept = given.clone()
        with torch.no_grad():
            torch.testing.assert_close(compiled(model)(given), model(given))
            torch.testing.assert_close(InferenceStep(model)(given), model(given))
        assert torch.equal(given, kept)


class Writing(torch.nn.Module):
    def forward(self, x):
        x.mul_(2)
        return x + 1


@pytest.mark.case(13)
@pytest.mark.parametrize("door", [compiled, poptorch.inferenceModel])
def test_a_write_into_an_input(door):
    given = torch.ones(3)
    assert door(Writing())(given).tolist() == [3, 3, 3]
    assert given.tolist() == [2, 2, 2]


@pytest.mark.case(13)
def test_a_write_into_an_input_of_a_step(told):
    given = torch.ones(3)
    with pytest.warns(UserWarning, match="writes into its input") as caught:
        assert InferenceStep(Writing())(given).tolist() == [3, 3, 3]
    told(caught[0].message, "the caller's tensor stays as it is, as on the device")
    assert given.tolist() == [1, 1, 1]


@pytest.mark.case(14)
def test_two_inputs_in_one_memory():
    def forward(x, y):
        x.add_(1)
        return x + y

    memory, expected_memory = torch.arange(4.0), torch.arange(4.0)
    expected = forward(expected_memory[:3], expected_memory[1:])
    torch.testing.assert_close(compiled(forward)(memory[:3], memory[1:]), expected)
    torch.testing.assert_close(memory, expected_memory)


@pytest.mark.case(15)
def test_results_share_memory_as_in_eager():
    def forward(x):
        doubled = x * 2
        return x, x[1:], x.view(3, 2), doubled, doubled.t()

    given = torch.randn(2, 3)
    same, part, viewed, doubled, turned = compiled(forward)(given)
    assert same is given
    assert part.data_ptr() == given[1:].data_ptr()
    assert viewed.data_ptr() == given.data_ptr()
    assert turned.data_ptr() == doubled.data_ptr()
    assert turned.stride() == (1, 3)


@pytest.mark.case(16)
@pytest.mark.parametrize("door", [compiled, poptorch.inferenceModel, InferenceStep])
def test_a_result_is_kept(door):
    with torch.no_grad():
        model = Linear()
        run, inputs = door(model), [torch.randn(2, 4) for _ in range(8)]
        kept = [run(given) for given in inputs]
        for given, got in zip(inputs, kept, strict=True):
            torch.testing.assert_close(got, model(given))


@pytest.mark.case(17)
def test_a_batch_is_kept():
    rows = torch.arange(24.0).reshape(12, 2)
    loader = poptorch.DataLoader(
        poptorch.Options(), torch.utils.data.TensorDataset(rows), batch_size=2, num_workers=1,
        mode=poptorch.DataLoaderMode.Async,
    )
    try:
        kept = [batch.clone() for (batch,) in loader]
    finally:
        loader.terminate()
    torch.testing.assert_close(torch.cat(kept), rows)
    assert "clone what is to stay" in poptorch.AsynchronousDataAccessor.__doc__


@pytest.mark.case(18)
def test_an_input_beyond_tile_memory(told):
    class Halved(torch.nn.Module):
        def forward(self, x):
            return x.sum(1)

    model = Halved()
    error = refused(model, torch.empty(1, device="cpu").expand(750_000, 1_000), kind=OutOfTileMemoryError)
    told(error, "tile", "B")
    assert error.needed_bytes > error.available_bytes
    assert torch.equal(compiled(model)(torch.ones(2, 3)), torch.tensor([3.0, 3.0]))


@pytest.mark.case(19)
def test_nan_and_infinity():
    given = torch.tensor([float("nan"), float("inf"), -float("inf"), 1.0, -0.0])
    functions = (torch.exp, torch.relu, torch.tanh, torch.sigmoid, lambda x: x.max(), lambda x: x.sort().values,
                 lambda x: x - x, lambda x: torch.nn.functional.softmax(x, 0), lambda x: x.clamp(-2, 2))
    for function in functions:
        torch.testing.assert_close(
            compiled(lambda x, function=function: function(x))(given), function(given), equal_nan=True,
        )


@pytest.mark.case(6, 7)
def test_a_number_that_changes_is_no_tensor_of_double(caught_warnings, monkeypatch):
    monkeypatch.setattr(fx_types, "_WARNED", set())
    function = compiled(lambda x, number: x * number)
    for number in (2.5, 3.5, 4.5):
        assert function(torch.ones(2), number).tolist() == [number, number]
    assert not [warning for warning in caught_warnings if "float64" in str(warning.message)]
