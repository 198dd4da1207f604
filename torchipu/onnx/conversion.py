"""``torchipu.from_onnx``: an ONNX model as a module, one operator of the file a submodule of the same name."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from torchipu.errors import UnsupportedOpError
from torchipu.onnx.converter import NEED_TORCHVISION, converter, has_torchvision
from torchipu.onnx.files import STANDARD, first_line, inputs_of, onnx_package, read_model, sized, with_shapes
from torchipu.onnx.same_types import OPERATORS
from torchipu.onnx.shape_operators import NotConstantError, number_in_place, tensors_of, with_numbers

WITH_BODIES = frozenset({"If", "Loop", "Scan", "SequenceMap"})
_STATES_OF_RECURRENCE = {"LSTM": (5, 6), "GRU": (5,), "RNN": (5,)}
"""By operator, the inputs that are states before the first step."""


def from_onnx(path: str | os.PathLike[str], sizes: Mapping[str, int] | None = None) -> nn.Module:
    """Return an ONNX model as a module of PyTorch's, in evaluation mode.

    It is called with the model's inputs in their order, or by name, and returns its output, or a tuple of them. What
    the file keeps as weights of floating point are parameters, so that a `TrainStep` trains them.

    Args:
        path: Of the file; weights that it keeps in others lie in the same folder.
        sizes: What sizes are that the file leaves open, by their names, as in ``{"batch": 4}``. A model that computes
            with its own sizes, as transformers do, is compiled only for sizes that are known; the module of one whose
            sizes are left open runs in eager PyTorch all the same.

    Raises:
        FileNotFoundError: There is no such file.
        ImportError: onnx, onnxscript or onnx2pytorch is not installed.
        OnnxError: The file is no ONNX model, or is damaged, or something that it names is missing.
        UnsupportedOpError: It has operators that cannot be converted, which are named.
        CaptureError: There is no size of a name.
    """
    model = read_model(path)
    return as_module(model, sized(model, sizes or {}))


def as_module(model: Any, shapes: Mapping[str, tuple[int | str, ...]]) -> nn.Module:
    """Return the module of a model whose inputs have these shapes.

    Args:
        model: An ``onnx.ModelProto``; it is changed.
        shapes: By input.
    """
    trained = {tensor.name for tensor in model.graph.initializer}
    refuse_operators(model)
    model = with_shapes(model, shapes)
    _leave_out_states_of_zeros(model.graph)
    return OnnxModel(_Conversion(model, trained).module()).eval()


def refuse_operators(model: Any) -> None:
    """Raise UnsupportedOpError where a model has operators that are no operators of the standard, or hold graphs."""
    known = {function.name for function in model.functions}
    strange = sorted({
        f"{node.domain}.{node.op_type}" for node in model.graph.node
        if node.domain not in STANDARD and node.op_type not in known
    })
    bodies = sorted({node.op_type for node in model.graph.node} & WITH_BODIES)
    drawn = set() if has_torchvision() else {node.op_type for node in model.graph.node} & NEED_TORCHVISION
    if strange or bodies or drawn:
        reasons = [f"{name}: of a domain of its own" for name in strange]
        reasons += [f"{name}: holds graphs" for name in bodies]
        reasons += [f"{name}: needs a torchvision that belongs to this torch" for name in sorted(drawn)]
        raise _lacking(reasons)


def _lacking(reasons: Sequence[str]) -> UnsupportedOpError:
    names = ", ".join(reason.partition(":")[0] for reason in reasons)
    return UnsupportedOpError(
        f"the model has operators that cannot be converted: {names}", detail="\n".join(reasons),
        remedy="export the model without them, or run it in PyTorch",
    )


def _leave_out_states_of_zeros(graph: Any) -> None:
    """Take states of zeros from recurrent operators: what is left out is zeros, and the converter knows only that."""
    onnx = onnx_package()
    weights = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        for index in _STATES_OF_RECURRENCE.get(node.op_type, ()):
            held = weights.get(node.input[index]) if index < len(node.input) else None
            if held is not None and not np.any(onnx.numpy_helper.to_array(held)):
                node.input[index] = ""
        while node.op_type in _STATES_OF_RECURRENCE and node.input and not node.input[-1]:
            del node.input[-1]


class OnnxModel(nn.Module):
    """A model of a file; ``network`` has an operator a line, of the same names.

    Args:
        network: What it computes.
    """

    def __init__(self, network: fx.GraphModule) -> None:
        super().__init__()
        self.network = network

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Return the model's output, or a tuple of them."""
        return self.network(*inputs, **named)


class Called(nn.Module):
    """A function as a module, for those that have no name in Python.

    Args:
        function: What to call.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        """Call it."""
        return self.function(*inputs)


class _Conversion:
    """Makes a graph of torch.fx of a model.

    Args:
        model: An ``onnx.ModelProto``, with constants folded.
        trained: Names of the weights that become parameters.
    """

    def __init__(self, model: Any, trained: set[str]) -> None:
        self.onnx = onnx_package()
        self.operations, self.constants = converter()
        self.model, self.proto = model, model.graph
        self.versions = {each.domain: each.version for each in model.opset_import}
        self.trained = trained
        self.weights = {tensor.name: tensor for tensor in self.proto.initializer}
        self.root = nn.Module()
        self.graph = fx.Graph()
        self.values: dict[str, fx.Node] = {}
        self.taken: set[str] = set()

    def module(self) -> fx.GraphModule:
        """Convert."""
        operators = self._operators()
        for value in inputs_of(self.model):
            self.values[value.name] = self.graph.placeholder(self._name(value.name))
        for node, operator in zip(self.proto.node, operators, strict=True):
            self._enter(node, operator)
        results = tuple(self._value(output.name) for output in self.proto.output)
        self.graph.output(results[0] if len(results) == 1 else results)
        return fx.GraphModule(self.root, self.graph, class_name=_identifier(self.proto.name) or "OnnxModel")

    def _operators(self) -> list[Any]:
        """Return what the converter makes of each node; all that it does not know are named at once."""
        try:
            return self._converted(self.proto)
        except Exception:  # of every kind: it tells by them what it lacks
            reasons = dict.fromkeys(filter(None, map(self._reason, self.proto.node)))
            if not reasons:
                raise
            raise _lacking(list(reasons)) from None

    def _converted(self, graph: Any) -> list[Any]:
        version = next(self.versions[domain] for domain in STANDARD if domain in self.versions)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="No explicit conversion", category=RuntimeWarning)
            warnings.filterwarnings("ignore", message="Model imports domains")
            return [operator for _, _, operator in self.operations.convert_operations(graph, version, 0, False)]

    def _reason(self, node: Any) -> str:
        """Return why a node alone cannot be converted, or nothing."""
        alone = self.onnx.GraphProto()
        alone.node.append(node)
        alone.initializer.extend(self.weights[name] for name in node.input if name in self.weights)
        try:
            self._converted(alone)
        except Exception as error:  # as above
            return f"{node.op_type}: {first_line(error)}"
        return ""

    def _enter(self, node: Any, operator: Any) -> None:
        """Add the call of an operator."""
        try:
            operator = Called(with_numbers(node.op_type, self._attributes(node), partial(self._number, node)))
            given: list[Any] = [self._value(name) for name in node.input[: tensors_of(node.op_type)]]
        except NotConstantError:
            operator = Called(OPERATORS[node.op_type]) if node.op_type in OPERATORS else operator
            given = self._given(node, operator)
        if isinstance(operator, partial) and operator.func is torch.cat:
            result = self.graph.call_function(torch.cat, (given,), dict(operator.keywords))
        elif isinstance(operator, nn.Identity):
            result = given[0]
        else:
            module = operator if isinstance(operator, nn.Module) else Called(operator)
            name = self._name(node.name or f"{node.op_type}_{node.output[0]}")
            self.root.add_module(name, module)
            result = self.graph.call_module(name, tuple(given))
        if not self._is(operator, self.constants.MULTIOUTPUT_LAYERS) and node.op_type not in ("Split", "TopK"):
            self.values[node.output[0]] = result
            return
        for index, output in enumerate(node.output):
            if output:
                self.values[output] = self.graph.call_function(_picked, (result, index))

    def _given(self, node: Any, operator: Any) -> list[Any]:
        """Return the inputs that the converter's module does not hold itself."""
        holds_weights = self._is(operator, self.constants.STANDARD_LAYERS)
        given = [
            self._taken(node, index) for index, name in enumerate(node.input)
            if not holds_weights or not name or name in self.values
        ]
        while given and given[-1] is None:
            given.pop()
        return given

    def _taken(self, node: Any, index: int) -> Any:
        """Return an input of a node: a value of the graph, or the numbers that its operator asks a constant for."""
        if not node.input[index]:
            return None
        try:
            return number_in_place(node.op_type, index, partial(self._number, node))
        except NotConstantError:
            return self._value(node.input[index])

    def _attributes(self, node: Any) -> dict[str, Any]:
        values = {each.name: self.onnx.helper.get_attribute_value(each) for each in node.attribute}
        return {name: value.decode() if isinstance(value, bytes) else value for name, value in values.items()}

    def _number(self, node: Any, index: int) -> Any:
        """Return the input of a node at a position, as numbers; None where it is left out."""
        if index >= len(node.input) or not node.input[index]:
            return None
        if node.input[index] not in self.weights:
            raise NotConstantError
        found = self.onnx.numpy_helper.to_array(self.weights[node.input[index]]).tolist()
        return None if found == [] and node.op_type == "Resize" else found

    @staticmethod
    def _is(operator: Any, kinds: tuple[type, ...]) -> bool:
        """Whether an operator is of some kinds, or a sequence with one of these in it."""
        if isinstance(operator, nn.Sequential):
            return any(isinstance(part, kinds) for part in operator.modules())
        return isinstance(operator, kinds)

    def _value(self, name: str) -> fx.Node:
        """Return the node of a value; that of a weight is made when it is first asked for."""
        if name not in self.values:
            value = torch.tensor(self.onnx.numpy_helper.to_array(self.weights[name]))
            held = self._name(name)
            if name in self.trained and value.is_floating_point():
                self.root.register_parameter(held, nn.Parameter(value))
            else:
                self.root.register_buffer(held, value)
            self.values[name] = self.graph.get_attr(held)
        return self.values[name]

    def _name(self, name: str) -> str:
        """Return a name that is one in Python too, and is not taken."""
        first = _identifier(name) or "value"
        free = first if first not in self.taken and not hasattr(nn.Module, first) else next(
            each for number in count(1) if (each := f"{first}_{number}") not in self.taken
        )
        self.taken.add(free)
        return free


def _picked(results: Any, index: int) -> Any:
    """Return one of an operator's results; one that has a single result may return it by itself."""
    return results[index] if isinstance(results, (tuple, list)) else results


def _identifier(name: str) -> str:
    """Return a name with what Python does not take replaced."""
    plain = re.sub(r"\W", "_", name, flags=re.ASCII).strip("_")
    return f"n{plain}" if plain[:1].isdigit() else plain
