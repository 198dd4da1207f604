"""What an executor takes: nested and named arguments, defaults, custom classes, and what it refuses."""

from __future__ import annotations

import collections
import copy
import functools
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

import torchipu.poptorch as poptorch
from tests.poptorch.models import options

ONE, TWO = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[5.0, 6.0], [7.0, 8.0]])


def wrap(forward: Any, settings: poptorch.Options | None = None) -> poptorch.PoplarExecutor:
    return poptorch.inferenceModel(forward, settings)


# --------------------------------------------------------------------------- accepted
def test_nested_arguments_keep_their_containers() -> None:
    seen: list[Any] = []

    def forward(a: Any, b: Any = None) -> torch.Tensor:
        seen.append((type(a), type(a["x"]), list(a), b))
        return a["x"][0] - a["y"] * (1 if b is None else 2)

    nested = collections.OrderedDict(y=TWO, x=[ONE, "word"])
    assert torch.equal(wrap(forward)(nested), ONE - TWO)
    assert seen[-1] == (collections.OrderedDict, list, ["y", "x"], None)


def test_keywords_defaults_and_none_find_their_parameters() -> None:
    def forward(x: torch.Tensor, y: torch.Tensor | None = None, *, factor: int = 3, z: torch.Tensor = TWO) -> Any:
        return x * factor + z if y is None else x * factor - y

    assert torch.equal(wrap(forward)(ONE), ONE * 3 + TWO)
    assert torch.equal(wrap(forward)(y=TWO, x=ONE), ONE * 3 - TWO)
    assert torch.equal(wrap(forward)(ONE, None, factor=5), ONE * 5 + TWO)
    step = wrap(forward)
    step(ONE, TWO)
    assert torch.equal(step(y=ONE, x=TWO), TWO * 3 - ONE)


def test_variadic_arguments_and_keywords() -> None:
    def forward(*args: torch.Tensor, **kwargs: torch.Tensor) -> torch.Tensor:
        return sum(args) + kwargs["last"] * 2

    assert torch.equal(wrap(forward)(ONE, TWO, last=ONE), ONE + TWO + ONE * 2)


def test_keys_of_a_dictionary_may_come_in_another_order() -> None:
    step = wrap(lambda d: d["a"] - d["b"])
    step({"a": ONE, "b": TWO})
    assert torch.equal(step({"b": ONE, "a": TWO}), TWO - ONE)


class Graph:
    """A user's class with two tensors."""

    def __init__(self, nodes: torch.Tensor, edges: torch.Tensor) -> None:
        self.nodes, self.edges = nodes, edges


class GraphParser(poptorch.ICustomArgParser):
    def yieldTensors(self, struct: Graph) -> Iterator[torch.Tensor]:
        yield struct.nodes
        yield struct.edges

    def reconstruct(self, original_structure: Graph, tensor_iterator: Iterator[torch.Tensor]) -> Graph:
        return type(original_structure)(next(tensor_iterator), next(tensor_iterator))


def test_registered_classes_go_in_and_out_and_are_cut_into_micro_batches() -> None:
    poptorch.registerCustomArgParser(Graph, GraphParser())
    try:
        sizes: list[torch.Size] = []

        def forward(graph: Graph) -> Graph:
            sizes.append(graph.nodes.shape)
            return Graph(graph.nodes + 1, graph.edges * 2)

        found = wrap(forward, options(2))(Graph(ONE, TWO))
        assert type(found) is Graph
        assert set(sizes) == {(1, 2)}
        assert torch.equal(found.nodes, ONE + 1)
        assert torch.equal(found.edges, TWO * 2)
    finally:
        poptorch.registerCustomArgParser(Graph, None)
    with pytest.raises(poptorch.Error, match="arg_parser must inherit from ICustomArgParser"):
        poptorch.registerCustomArgParser(Graph, object())


def test_an_object_of_a_subclass_may_become_one_of_the_class_that_the_parser_knows() -> None:
    class BaseParser(GraphParser):
        def reconstruct(self, original_structure: Graph, tensor_iterator: Iterator[torch.Tensor]) -> Graph:
            return Graph(next(tensor_iterator), next(tensor_iterator))

    class Named(Graph):
        pass

    poptorch.registerCustomArgParser(Graph, BaseParser())
    try:
        step = wrap(lambda graph: graph.nodes + graph.edges)
        for kind in (Named, Graph, Named):
            assert torch.equal(step(kind(ONE, TWO)), ONE + TWO)
        with pytest.raises(poptorch.Error, match="Type mismatch for graph"):
            step(ONE)
    finally:
        poptorch.registerCustomArgParser(Graph, None)


def test_writes_into_an_input_reach_the_callers_tensor_for_every_micro_batch() -> None:
    def forward(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x += 1
        return x * y

    whole = torch.zeros(4, 4)
    x, y = whole[:, ::2], torch.full((4, 2), 3.0)
    mode = poptorch.OutputMode.Final
    found = wrap(forward, options(2, mode=mode))(x, y)
    assert torch.equal(found, torch.full((2, 2), 3.0))
    assert torch.equal(x, torch.ones(4, 2))
    assert torch.equal(whole[:, 1::2], torch.zeros(4, 2))
    assert torch.equal(y, torch.full((4, 2), 3.0))


@pytest.mark.parametrize("dtype", [
    torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool,
])
def test_writes_into_an_input_reach_a_tensor_of_any_type(dtype: torch.dtype) -> None:
    step = wrap(lambda x: x.fill_(1))
    x = torch.zeros(3, dtype=dtype)
    for _ in range(2):
        step(x.zero_())
        assert torch.equal(x, torch.ones(3, dtype=dtype))


@pytest.mark.parametrize("place", [slice(0, 4), slice(4, 8), slice(2, 6)])
def test_inputs_that_share_memory_are_apart_on_the_device(place: slice) -> None:
    memory = torch.zeros(8)

    def forward(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x += 1
        return x + 2 * y

    # y is what it was before the call; x alone is written back.
    assert torch.equal(wrap(forward)(memory[:4], memory[place]), torch.ones(4))
    assert torch.equal(memory, torch.tensor([1.0] * 4 + [0.0] * 4))


def test_a_buffer_may_be_an_input_too() -> None:
    model = nn.BatchNorm1d(2)
    x = model.running_var[None].expand(3, 2).contiguous()
    assert model.running_var is not None
    expected = model.eval()(x).detach()
    torch.testing.assert_close(poptorch.inferenceModel(model)(model.running_var[None].expand(3, 2)), expected)


def test_an_input_that_needs_a_gradient_is_detached() -> None:
    x = (ONE.clone().requires_grad_() * 2)
    found = wrap(lambda x: x + 1)(x)
    assert torch.equal(found, ONE * 2 + 1)
    assert not found.requires_grad


def test_a_model_made_in_inference_mode_runs_there() -> None:
    with torch.inference_mode():
        model = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
        step = poptorch.inferenceModel(model)
        x = torch.randn(2, 4)
        torch.testing.assert_close(step(x), model(x))
    assert all(parameter.requires_grad for parameter in model.parameters())
    torch.testing.assert_close(step(torch.ones(2, 4)), model(torch.ones(2, 4)).detach())


def test_compile_alone_takes_keywords_and_works_in_inference_mode() -> None:
    step = wrap(lambda x, y: x - y)
    with torch.inference_mode():
        step.compile(ONE, y=TWO)
    assert step.isCompiled()
    assert torch.equal(step(ONE, TWO), ONE - TWO)


def test_a_training_compiled_in_inference_mode_goes_on_outside() -> None:
    torch.manual_seed(0)
    linear = nn.Linear(4, 3)
    twin, x = copy.deepcopy(linear), torch.randn(2, 4)
    optimizer = torch.optim.SGD(linear.parameters(), lr=0.1, momentum=0.9)

    class Training(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = linear

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return poptorch.identity_loss(self.linear(x).square().mean(), "none")

    step = poptorch.trainingModel(Training(), options(), optimizer)
    with torch.inference_mode():
        step.compile(x)
    reference = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        step(x)
        reference.zero_grad()
        twin(x).square().mean().backward()
        reference.step()
    torch.testing.assert_close(linear.weight, twin.weight)
    linear(x).sum().backward()  # and the weights are plain ones


def test_random_python_around_the_calls_is_allowed() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.tensor([1.0, 2.0])
            self.lines: list[str] = []

        def forward(self, x: torch.Tensor) -> Any:
            self.lines.append(f"{x.shape}")
            self.is_here = poptorch.isRunningOnIpu()
            total = x
            for factor in {"a": 1.0, "b": 2.0}.values():
                total = total + self.table * factor
            return total + torch.zeros(2) + torch.tensor([1.0, 1.0])

    model = Odd()
    step = wrap(model)
    assert torch.equal(step(ONE), ONE + torch.tensor([1.0, 2.0]) * 3 + 1)
    assert step._model.is_here
    assert model.lines
    model(ONE)
    assert not model.is_here


# --------------------------------------------------------------------------- refused
def two(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


@pytest.mark.parametrize(("args", "kwargs", "kind", "message"), [
    ((ONE, ONE, ONE), {}, AssertionError, "Too many arguments provided"),
    ((ONE,), {"z": ONE}, AssertionError, "z is not a valid parameter"),
    ((ONE, ONE), {"x": ONE}, AssertionError, "x was passed more than once"),
    ((ONE,), {}, poptorch.Error, "Mandatory parameter y missing"),
    ((ONE, torch.zeros(2, 0)), {}, poptorch.Error, r"Zero-sized tensors are unsupported \(Got shape \[2, 0\]\)"),
    ((ONE, ONE.to(torch.complex64)), {}, poptorch.Error, "Unsupported input type"),
    ((ONE, ONE.to(torch.uint16)), {}, poptorch.Error,
     "Unsupported input type torch.uint16 for y: it has no counterpart on the IPU; use int32 or int64"),
])
def test_arguments_that_do_not_fit_are_refused(args: Any, kwargs: Any, kind: type, message: str) -> None:
    step = wrap(two)
    with pytest.raises(kind, match=message):
        step(*args, **kwargs)
    assert torch.equal(step(ONE, TWO), ONE + TWO)


def test_a_missing_argument_before_variadic_ones_is_pythons_error() -> None:
    with pytest.raises(TypeError, match="missing a required argument: 'x'"):
        wrap(lambda x, *rest: x)()


@pytest.mark.parametrize("x", [torch.zeros(5, 2), torch.tensor(1.0)])
def test_a_batch_that_cannot_be_cut_is_refused(x: torch.Tensor) -> None:
    with pytest.raises(AssertionError, match="Invalid batch dimension: In the input x"):
        wrap(lambda x: x, options(2))(x)


@pytest.mark.parametrize(("forward", "first", "second", "message"), [
    (lambda *a: a[0], (ONE, ONE), (ONE,), "Number of positional arguments mismatch: expected 2 arguments but got 1"),
    (lambda x: x, (ONE,), (ONE.int(),), "Data type mismatch for x: expected torch.float32 but got torch.int32"),
    (lambda x: x, (ONE,), (ONE[:1],), r"Shape mismatch for x: expected torch.Size\(\[2, 2\]\) but got"),
    (lambda x, z=None: x, (ONE, ONE), (ONE, None), "Type mismatch for z: expected .*Tensor.* but got .*None"),
    (lambda x, z=None: x, (ONE, None), (ONE, ONE), "Type mismatch for z: expected .*None.* but got .*Tensor"),
    (lambda x: x[0], ((ONE, ONE),), ((ONE,),), "Length mismatch for x: expected 2 elements but got 1"),
    (lambda x: x["a"], ({"a": ONE, "b": ONE},), ({"a": ONE, "c": ONE},),
     r"Keys mismatch for x: Unexpected arguments: c\. Missing arguments: b\."),
    (lambda x, u: x * u, (ONE, 5), (ONE, 3), "Value mismatch for u: expected 5 but got 3"),
    (lambda x, u: x, (ONE, 5), (ONE, "5"), "Type mismatch for u: expected .*int.* but got .*str"),
])
def test_later_calls_are_compared_with_the_first(forward: Any, first: Any, second: Any, message: str) -> None:
    step = wrap(forward)
    step(*first)
    with pytest.raises(poptorch.Error, match=message) as caught:
        step(*second)
    assert "destroy()" in str(caught.value)
    step(*first)
    step.destroy()
    step(*second)


def test_errors_of_the_model_reach_the_caller_as_they_are() -> None:
    class RefusedError(Exception):
        pass

    def forward(x: torch.Tensor) -> torch.Tensor:
        raise RefusedError("exactly this")

    with pytest.raises(RefusedError) as caught:
        wrap(forward)(ONE)
    assert str(caught.value) == "exactly this"
    assert caught.value.__cause__ is None
    assert not poptorch.isRunningOnIpu()


@pytest.mark.parametrize("forward", [
    lambda x: torch.gather(x, 0, x), lambda x: x @ torch.ones(3, 3), lambda x: x.view(3, 3), lambda x: x[5],
    lambda x: torch.cat([x, torch.ones(2, 2, 2)]), lambda x: nn.functional.conv2d(x, torch.ones(1, 1, 1, 1)),
])
def test_refusals_of_torch_are_those_of_the_host(forward: Any) -> None:
    with pytest.raises((RuntimeError, IndexError)) as expected:
        forward(ONE)
    with pytest.raises(type(expected.value)) as found:
        wrap(forward)(ONE)
    assert str(found.value) == str(expected.value)


@pytest.mark.parametrize(("change", "message"), [
    (lambda m: setattr(m, "state", m.state + 1), "Buffer inner.state is reassigned within the model"),
    (lambda m: delattr(m, "state"), "Buffer inner.state is removed from the model"),
    (lambda m: setattr(m, "weight", nn.Parameter(m.weight + 1)), "Parameter inner.weight is reassigned"),
])
def test_members_that_forward_binds_anew_are_refused_and_stay(change: Any, message: str) -> None:
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))
            self.register_buffer("state", torch.zeros(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result = x * self.weight + self.state
            change(self)
            return result

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)

    model = Outer()
    members = dict(model.named_parameters()), dict(model.named_buffers())
    with pytest.raises(poptorch.Error, match=message):
        wrap(model)(ONE)
    assert all(dict(model.named_parameters())[name] is value for name, value in members[0].items())
    assert all(dict(model.named_buffers())[name] is value for name, value in members[1].items())


def test_a_tensor_that_is_not_contiguous_is_taken_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    step = wrap(lambda x: x * 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(step(ONE.t()), ONE.t() * 2)
        step(ONE.t())
    assert sum("not contiguous" in record.message for record in caplog.records) <= 1


def test_arguments_given_by_name_reach_what_wraps_forward_by_name() -> None:
    """As with models of transformers, whose decorators put in what was not given."""

    def with_scale(forward: Any) -> Any:
        @functools.wraps(forward)
        def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
            return forward(self, *args, **{"scale": 3, **kwargs})

        return wrapped

    class Model(nn.Module):
        @with_scale
        def forward(self, x: torch.Tensor, scale: Any = None, y: Any = None, bias: Any = None) -> torch.Tensor:
            return x * scale + (y if bias is None else bias)

    x = torch.arange(4.0)
    step = poptorch.inferenceModel(Model())
    for _ in range(2):
        assert step(x, y=x).equal(x * 4)
    assert poptorch.inferenceModel(Model())(x, scale=2, bias=x).equal(x * 2 + x)


def test_a_model_that_reads_values_only_outside_of_a_trace_is_captured() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return x if not torch.jit.is_tracing() and bool((x > 0).all()) else x.relu()

    x = torch.tensor([-1.0, 2.0])
    assert poptorch.inferenceModel(model)(x).equal(x.relu())
    assert not torch.jit.is_tracing()


class Named(torch.Tensor):
    """Overrides nothing."""


class Subtracting(torch.Tensor):
    """Sums of which are differences."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(torch.sub if func is torch.add else func, types, args, kwargs or {})


@pytest.mark.parametrize(("kind", "is_told"), [(Named, False), (nn.Parameter, False), (Subtracting, True)])
def test_tensors_of_a_users_class_are_plain_ones_and_what_is_left_out_is_told(
    kind: type[torch.Tensor], is_told: bool, caplog: pytest.LogCaptureFixture,
) -> None:
    found = wrap(lambda x, y: torch.add(x, y))(ONE.as_subclass(kind), TWO)
    assert type(found) is torch.Tensor
    assert torch.equal(found, ONE + TWO)
    told = [record.getMessage() for record in caplog.records if "__torch_function__" in record.getMessage()]
    assert [one.partition(".")[0] for one in told] == ["Input x is a Subtracting"] * is_told


def test_a_class_that_computes_below_operators_is_refused() -> None:
    with pytest.raises(poptorch.Error, match=r"Unsupported input x: tensors of TwoTensor, .*Pass a plain torch.Tensor"):
        wrap(lambda x: x + 1)(TwoTensor(ONE, TWO))
