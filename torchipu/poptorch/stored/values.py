"""Arguments, results and optimisers as JSON data, and back, without anything that executes."""

from __future__ import annotations

import collections
import enum
import numbers
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from torchipu.poptorch import enums
from torchipu.poptorch.arguments.structure import parser_of, registered
from torchipu.poptorch.poptorch_core import createPoptorchError

OPTIMISERS: Mapping[str, type[torch.optim.Optimizer]] = {
    "SGD": torch.optim.SGD, "Adam": torch.optim.Adam, "AdamW": torch.optim.AdamW, "RMSprop": torch.optim.RMSprop,
}

ATTRIBUTES = (
    "loss_scaling", "velocity_scaling", "use_combined_accum", "accum_type", "velocity_accum_type",
    "first_order_momentum_accum_type", "second_order_momentum_accum_type", "max_grad_norm", "max_weight_norm",
    "bias_correction", "use_tf_variant",
)
"""What optimisers of PopTorch have beside their groups."""


def to_data(value: Any) -> Any:
    """Return a nested value as JSON data; of its tensors only size and type.

    Raises:
        Error: It holds an object of a class that files do not know.
    """
    if isinstance(value, torch.Tensor):
        return {"tensor": list(value.shape), "dtype": _dtype_name(value.dtype)}
    if isinstance(value, enum.Enum):
        return {"enum": [type(value).__name__, value.name]}
    if isinstance(value, torch.dtype):
        return {"torch": _dtype_name(value)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, numbers.Real):  # of numpy
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    kind = type(value)
    if kind in (tuple, list, set, frozenset):
        return {kind.__name__: [to_data(member) for member in value]}
    if kind in (dict, collections.OrderedDict):
        name = "dict" if kind is dict else "ordered"
        return {name: [[to_data(key), to_data(member)] for key, member in value.items()]}
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return {"named": [_path_of(kind), list(kind._fields), [to_data(member) for member in value]]}
    if parser_of(value) is not None and not isinstance(value, (tuple, list, dict, set)):
        return {"object": [_path_of(kind), [[name, to_data(member)] for name, member in _state(value)]]}
    raise createPoptorchError(f"An object of class {kind.__qualname__} cannot be stored in an executable file")


def _path_of(kind: type) -> list[str]:
    return [kind.__module__, kind.__qualname__]


def _state(value: Any) -> list[tuple[str, Any]]:
    """Return the attributes of an object, those in slots too."""
    slots = [name for kind in type(value).__mro__ for name in _names(vars(kind).get("__slots__", ()))]
    kept = [(name, getattr(value, name)) for name in slots if hasattr(value, name) and not name.startswith("__")]
    return [*vars(value).items(), *kept] if hasattr(value, "__dict__") else kept


def _names(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _loaded(module: str, name: str) -> Any:
    """Return a class by its name if the program has loaded its module already: a file must not cause imports."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _named(path: Sequence[str], fields: Sequence[str], members: Sequence[Any]) -> Any:
    kind = _loaded(*path)
    if isinstance(kind, type) and issubclass(kind, tuple) and list(getattr(kind, "_fields", ())) == list(fields):
        return kind(*members)
    return collections.namedtuple(path[1].rpartition(".")[2], fields)(*members)


def _object(path: Sequence[str], state: Sequence[tuple[str, Any]]) -> Any:
    """Return an object of a class with a parser, made without a call of its own."""
    known = {tuple(_path_of(kind)): kind for kind in registered()}
    kind = known.get(tuple(path)) or _loaded(*path)
    if not isinstance(kind, type) or not any(issubclass(kind, other) for other in registered()):
        raise createPoptorchError(
            f"The file holds an object of class {path[1]}: import {path[0]} and call poptorch.registerCustomArgParser "
            "for it before the file is loaded"
        )
    value: Any = object.__new__(kind)
    for name, member in state:
        object.__setattr__(value, name, member)
    return value


def from_data(data: Any) -> Any:
    """Return the value that `to_data` has written; its tensors have no memory."""
    if not isinstance(data, dict):
        return data
    if "tensor" in data:
        return torch.empty(data["tensor"], dtype=getattr(torch, data["dtype"]), device="meta")
    (kind, content), = data.items()
    match kind:
        case "enum":
            return getattr(enums, content[0])[content[1]]
        case "torch":
            return getattr(torch, content)
        case "tuple":
            return tuple(from_data(member) for member in content)
        case "list":
            return [from_data(member) for member in content]
        case "set":
            return {from_data(member) for member in content}
        case "frozenset":
            return frozenset(from_data(member) for member in content)
        case "dict":
            return {from_data(key): from_data(member) for key, member in content}
        case "ordered":
            return collections.OrderedDict((from_data(key), from_data(member)) for key, member in content)
        case "named":
            return _named(content[0], content[1], [from_data(member) for member in content[2]])
        case "object":
            return _object(content[0], [(name, from_data(member)) for name, member in content[1]])
    raise ValueError(f"unknown kind of value {kind!r}")


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# ---------------------------------------------------------------------- optimisers
def optimiser_to_data(
    optimizer: torch.optim.Optimizer, model: torch.nn.Module,
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Return an optimiser as data, and its tensors by name.

    Args:
        optimizer: Of torch.optim or poptorch.optim.
        model: Owner of its parameters.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    state = torch.optim.Optimizer.state_dict(optimizer)
    tensors: dict[str, torch.Tensor] = {}
    numbers: dict[str, Any] = {}
    for index, entries in state["state"].items():
        for key, value in entries.items():
            if isinstance(value, torch.Tensor):
                tensors[f"optimizer/{index}/{key}"] = value
            else:
                numbers[f"{index}/{key}"] = to_data(value)
    groups = [{name: to_data(value) for name, value in group.items() if name != "params"}
              for group in optimizer.param_groups]
    parameters = [[names.get(id(parameter), "") for parameter in group["params"]] for group in optimizer.param_groups]
    kind = type(optimizer)
    extra = {name: to_data(getattr(optimizer, name)) for name in ATTRIBUTES if hasattr(optimizer, name)}
    variable = getattr(optimizer, "variable_attrs", None)
    return {
        "class": kind.__name__, "is_ours": not kind.__module__.startswith("torch."), "groups": groups,
        "parameters": parameters, "numbers": numbers, "attributes": extra,
        "variable": None if variable is None else sorted(variable._variable),
    }, tensors


def optimiser_from_data(
    data: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], model: torch.nn.Module,
) -> torch.optim.Optimizer:
    """Return the optimiser of a file, over the parameters of a model."""
    kinds: Mapping[str, Any] = OPTIMISERS
    if data["is_ours"]:
        from torchipu.poptorch import optim

        kinds = {name: getattr(optim, name) for name in ("SGD", "Adam", "AdamW", "RMSprop", "LAMB")}
    parameters = dict(model.named_parameters())
    groups = [
        {"params": [parameters[name] for name in names if name], **{k: from_data(v) for k, v in group.items()}}
        for names, group in zip(data["parameters"], data["groups"], strict=True)
    ]
    known = {"params", "lr", "momentum", "dampening", "weight_decay", "nesterov", "betas", "eps", "amsgrad", "alpha",
             "centered"}
    first = {name: value for name, value in groups[0].items() if name in known and name != "params"}
    kind = kinds[data["class"]]
    optimizer: torch.optim.Optimizer = kind([{"params": group["params"]} for group in groups], **_accepted(kind, first))
    for made, group in zip(optimizer.param_groups, groups, strict=True):
        made.update({name: value for name, value in group.items() if name != "params"})
    flat = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for name, tensor in tensors.items():
        if name.startswith("optimizer/"):
            _, index, key = name.split("/", 2)
            optimizer.state[flat[int(index)]][key] = tensor
    for name, value in data["numbers"].items():
        index, key = name.split("/", 1)
        optimizer.state[flat[int(index)]][key] = from_data(value)
    for name, value in data["attributes"].items():
        setattr(optimizer, name, from_data(value))
    if data["variable"] is not None:
        optimizer.variable_attrs._variable = set(data["variable"])  # type: ignore[attr-defined]
    return optimizer


def _accepted(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    import inspect

    names = inspect.signature(kind).parameters
    return {name: value for name, value in values.items() if name in names}
