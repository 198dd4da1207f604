"""What those new to PopTorch get wrong: what the words name, and that the right call works after."""

from __future__ import annotations

import collections
import dataclasses
import functools
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree
from torch.utils.data import RandomSampler, TensorDataset

import torchipu.poptorch as poptorch
from tests.poptorch.models import Classifier, batch, options, sgd, twin_of


class Returning(nn.Module):
    """Returns what a function makes of a product, the product itself without one."""

    def __init__(self, made: Callable[[torch.Tensor], Any] | None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(6, 2)
        self.made: Any = made

    def forward(self, x: torch.Tensor) -> Any:
        y = self.linear(x)
        return y if self.made is None else self.made(y)


@dataclasses.dataclass
class Answer:
    """A class of the user's that nothing is known of."""

    values: Any


@dataclasses.dataclass(slots=True)
class Slotted:
    """Another without a dict of attributes."""

    value: Any


AROUND = Answer(3)
AROUND.values = [AROUND, {"self": AROUND}]


class Hidden:
    """Another, which holds a list."""

    def __init__(self, *values: torch.Tensor) -> None:
        self.values, self.names = list(values), {}


@pytest.mark.parametrize(("made", "words"), [
    (lambda y: (y * number for number in range(3)), "type generator, which a call could not go through again"),
    (lambda y: [1, map(torch.relu, [y])], "type map, which a call could not go through again"),
    (lambda y: {y, y * 2}, "type set, whose tensors have no order: return a list or a tuple"),
    (lambda y: {y, 3}, "type set, whose tensors have no order"),
    (lambda y: {"a": (frozenset([y]), 1)}, "type frozenset, whose tensors have no order"),
    (Answer, "type Answer, of whose tensors PopTorch does not know: return them in a tuple, a list or a dict"),
    (lambda y: (y, Hidden(y)), r"type Hidden, .*poptorch\.registerCustomArgParser"),
    (lambda y: Answer({"all": y}), "type Answer"),
    (lambda y: Answer(Answer([(y, 1)])), "type Answer"),
    (Slotted, "type Slotted, of whose tensors PopTorch does not know"),
    (lambda y: collections.deque([y]), "type deque, of whose tensors"),
    (lambda y: {"a": y}.values(), "type dict_values, of whose tensors"),
    (lambda y: types.MappingProxyType({"a": y}), "type mappingproxy, of whose tensors"),
    (lambda y: collections.UserList([y]), "type UserList, of whose tensors"),
    (lambda y: lambda: y * 2, "type function, which computes with tensors of the capture: return what it computes"),
    (lambda y: functools.partial(torch.add, y), "type partial, which computes with tensors"),
    (lambda y: functools.partial(torch.add, 1, other=y), "type partial, which computes with tensors"),
    (lambda y: Answer(y).__repr__, "type method, which computes with tensors"),
])
def test_results_in_which_no_tensor_can_be_replaced_are_refused(made: Any, words: str) -> None:
    model = Returning(made)
    step, x = poptorch.inferenceModel(model, options()), batch(4)[0]
    with pytest.raises(poptorch.Error, match=f"forward returns an object of {words}"):
        step(x)
    step.destroy()
    model.made = None
    torch.testing.assert_close(poptorch.inferenceModel(model, options())(x), model(x).detach())


@pytest.mark.parametrize("made", [
    lambda y: {"y": y, "n": 3, 2: "text", "none": None}, lambda y: (y, {1, 2}, Answer(3), [y * 2]),
    lambda y: (y, torch.relu, len, range(3), AROUND, nn.ReLU(), b"bytes", torch.float32, dataclasses),
])
def test_results_of_other_types_beside_tensors_are_returned_as_they_are(made: Any) -> None:
    model, x = Returning(made), batch(4)[0]
    step = poptorch.inferenceModel(model, options())
    for _ in range(2):
        found, expected = step(x), model(x)
        assert str(structure_of(found)) == str(structure_of(expected))
        torch.testing.assert_close(tensors_of(found), tensors_of(expected))


def tensors_of(value: Any) -> list[torch.Tensor]:
    return [leaf.detach() for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def structure_of(value: Any) -> Any:
    """Return a nested value with the shapes of its tensors in their place."""
    return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.shape, value)


@pytest.mark.parametrize("ipu_id", [-1, "1", 1.0, True])
@pytest.mark.parametrize("begin", [
    lambda layer, ipu: poptorch.BeginBlock(layer, "first", ipu_id=ipu),
    lambda layer, ipu: poptorch.BeginBlock(layer.forward, "first", ipu_id=ipu),
    lambda layer, ipu: poptorch.BlockFunction("first", ipu_id=ipu)(layer),
])
def test_an_ipu_of_a_block_that_is_no_count_is_refused(begin: Any, ipu_id: Any) -> None:
    layer = nn.Linear(6, 2)
    blocks = begin(layer, ipu_id)
    with pytest.raises(poptorch.Error, match=f"'first': ipu_id must be a whole number from 0, got {ipu_id!r}"):
        poptorch.inferenceModel(lambda x: blocks(x), options())(batch(4)[0])


@pytest.mark.parametrize("wrap", [poptorch.inferenceModel, poptorch.trainingModel])
def test_a_class_in_place_of_a_model_is_told_from_one(wrap: Any) -> None:
    with pytest.raises(TypeError, match=r"got the class Classifier itself: make one, as by Classifier\(\)"):
        wrap(Classifier)


def test_a_class_in_place_of_an_optimiser_is_told_from_one() -> None:
    model = Classifier()
    with pytest.raises(AssertionError, match=r"the class SGD itself. Make one of it, as by .*SGD\(model.param"):
        poptorch.trainingModel(model, options(), torch.optim.SGD)
    assert type(model) is Classifier
    poptorch.trainingModel(model, options(), sgd(model))(*batch(4))


def test_a_missing_loss_is_followed_by_what_makes_one() -> None:
    class Own(Classifier):
        def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
            return (super().forward(x) - 1).square().mean()

    model = Own()
    before = twin_of(model).state_dict()
    with pytest.raises(poptorch.Error, match=r"Couldn't find a loss in graph! .*poptorch\.identity_loss\(loss, reduc"):
        poptorch.trainingModel(model, options(), sgd(model))(batch(4)[0])
    torch.testing.assert_close(dict(model.state_dict()), dict(before), rtol=0, atol=0)


def test_options_in_use_are_followed_by_how_to_change_a_copy() -> None:
    settings = options()
    poptorch.inferenceModel(Classifier(), settings)
    with pytest.raises(AttributeError, match=r"modify frozen Options: .* Change a copy of them, options\.clone\(\)"):
        settings.deviceIterations(3)
    settings.clone().deviceIterations(3)


@pytest.mark.parametrize(("proportion", "error", "words"), [
    ({"IPU0": 2.0}, ValueError, "'IPU0': expected above 0 and at most 1, got 2.0"),
    ({"IPU1": 0}, ValueError, "'IPU1': expected above 0 and at most 1, got 0"),
    ({"IPU0": "0.6"}, ValueError, "expected above 0 and at most 1, got '0.6'"),
    ({"IPU0": True}, ValueError, "got True"), ({"IPU": 0.5}, AssertionError, "as in 'IPU0', not 'IPU'"),
    ({"IPUx": 0.5}, AssertionError, "not 'IPUx'"), ({0: 0.5}, AssertionError, "not 0"),
])
def test_a_part_of_the_memory_that_is_none_is_refused_and_changes_nothing(
    proportion: Any, error: type[Exception], words: str,
) -> None:
    settings = options()
    settings.setAvailableMemoryProportion({"IPU0": 0.4})
    with pytest.raises(error, match=words):
        settings.setAvailableMemoryProportion(proportion)
    assert settings.available_memory_proportion == {0: 0.4}


def test_a_list_of_another_nesting_or_with_another_number_is_refused() -> None:
    class Nested(nn.Module):
        def forward(self, values: list[Any]) -> torch.Tensor:
            return values[0] + values[1][0] * values[2]

    x = batch(2)[0]
    step = poptorch.inferenceModel(Nested(), options())
    right = [x, [x], 2]
    torch.testing.assert_close(step(right), 3 * x)
    for wrong, words in (
        ([x, x, 2], r"Type mismatch for values\[1\]: expected <class 'list'> but got <class 'torch.Tensor'>"),
        ([x, [x], 3], r"Value mismatch for values\[2\]: expected 2 but got 3"),
        ([x, [x, x], 2], r"Length mismatch for values\[1\]: expected 1 elements but got 2"),
    ):
        with pytest.raises(poptorch.Error, match=words):
            step(wrong)
    torch.testing.assert_close(step(right), 3 * x)


@pytest.mark.parametrize(("make", "words"), [
    (lambda x: x.to_sparse(), "input x: tensors of layout torch.sparse_coo cannot be held by the IPU: call to_dense"),
    (lambda x: torch.nested.nested_tensor([x, x]), "input x: nested tensors cannot be held by the IPU: pad to one"),
    (lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), "input x: quantised tensors cannot be held"),
    (lambda x: x.to("meta"), "input x: meta tensors, which have no values, cannot be held by the IPU: make it on"),
])
def test_an_input_of_a_kind_that_the_device_does_not_hold_is_named_at_the_first_call(make: Any, words: str) -> None:
    model, x = Classifier(), batch(4)[0]
    step = poptorch.inferenceModel(model, options())
    with pytest.raises(poptorch.Error, match=words):
        step(make(x))
    torch.testing.assert_close(step(x), model(x).detach())


@pytest.mark.parametrize("mode", [poptorch.DataLoaderMode.Sync, poptorch.DataLoaderMode.Async])
def test_a_loader_that_yields_nothing_says_so(mode: Any, caplog: pytest.LogCaptureFixture) -> None:
    data = TensorDataset(torch.zeros(10, 2))
    if mode is poptorch.DataLoaderMode.Sync:
        assert len(poptorch.DataLoader(options(2, 3), data, batch_size=2, mode=mode)) == 0
    else:
        with pytest.raises(poptorch.Error, match="The Dataset is empty"):
            poptorch.DataLoader(options(2, 3), data, batch_size=2, mode=mode)
    [record] = caplog.records
    assert "The loader yields nothing: the dataset has 10 elements, and one step takes 12, " in record.getMessage()
    caplog.clear()
    repeating = RandomSampler(data, replacement=True, num_samples=24)
    assert len(poptorch.DataLoader(options(2, 3), data, batch_size=2, mode=mode, sampler=repeating)) == 2
    assert len(poptorch.DataLoader(options(), data, batch_size=10, mode=mode)) == 1
    assert not caplog.records


def test_a_file_of_torch_save_is_told_from_one_of_ours(tmp_path: Path) -> None:
    torch.save(Classifier().state_dict(), tmp_path / "weights.pt")
    with pytest.raises(AssertionError, match=r"it has no header: it is an archive, such as torch\.save writes"):
        poptorch.load(tmp_path / "weights.pt")


@pytest.mark.parametrize("is_training", [True, False])
def test_a_model_that_torch_compile_has_wrapped_is_run_as_what_it_wraps(is_training: bool) -> None:
    model = Classifier()
    twin, wrapped, (x, labels) = twin_of(model), torch.compile(model), batch(4)
    if not is_training:
        torch.testing.assert_close(poptorch.inferenceModel(wrapped, options())(x), model(x).detach())
        return
    poptorch.trainingModel(wrapped, options(), sgd(wrapped))(x, labels)
    F.cross_entropy(twin(x), labels).backward()
    sgd(twin).step()
    torch.testing.assert_close(dict(model.state_dict()), dict(twin.state_dict()))


@pytest.mark.parametrize("is_child", [True, False])
def test_a_wrapped_model_within_another_one_is_refused_by_its_class(is_child: bool) -> None:
    plain, x = Classifier(), batch(4)[0]
    inner = poptorch.inferenceModel(plain, options())

    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner: Any = inner if is_child else None

        def forward(self, x: torch.Tensor) -> Any:
            return (self.inner or inner)(x) * 2

    with pytest.raises(poptorch.Error, match="A Classifier that an executor wraps was called within a model that is"):
        poptorch.inferenceModel(Around(), options())(x)
    torch.testing.assert_close(inner(x), plain(x).detach())


def test_a_model_made_in_inference_mode_is_not_trained() -> None:
    with torch.inference_mode():
        model = Classifier()
    name = next(name for name, _ in model.named_parameters())
    with pytest.raises(poptorch.Error, match=rf"Parameter {name} was made in torch\.inference_mode\(\), where tensors"):
        poptorch.trainingModel(model, options(), sgd(model))(*batch(4))
    fresh = Classifier()
    fresh.load_state_dict(model.state_dict())
    poptorch.trainingModel(fresh, options(), sgd(fresh))(*batch(4))
