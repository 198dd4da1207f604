"""Captured graphs as JSON data and tensors, and back: what executables and the cache of them hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from torchipu.capture.captured import Captured
from torchipu.ir.graph import Tensor
from torchipu.ir.serial import graph_from_data, graph_to_data


def capture_to_data(captured: Captured) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Return a capture as JSON data, and the values of its constants by name.

    Raises:
        TypeError: An op has an attribute that files cannot hold.
    """
    values = {f"constant/{tensor.name}": value for tensor, value in captured.constants.items()}
    data = {
        "graph": graph_to_data(captured.graph),
        "arguments": [tensor.name if tensor is not None else None for tensor in captured.arguments],
        "parameters": {name: tensor.name for name, tensor in captured.parameters.items()},
        "buffers": {name: tensor.name for name, tensor in captured.buffers.items()},
        "gradients": {name: tensor.name for name, tensor in captured.gradients.items()},
        "constants": [tensor.name for tensor in captured.constants],
        "loss": captured.loss.name if captured.loss is not None else None,
        "loss_scale": captured.loss_scale.name if captured.loss_scale is not None else None,
        "leaves": [leaf.name for leaf in captured.leaves if isinstance(leaf, Tensor)],
        "dtypes": [str(dtype).removeprefix("torch.") for dtype in captured.output_dtypes],
        "written": [[place, tensor.name] for place, tensor in captured.written.items()],
    }
    return data, values


def capture_from_data(data: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> Captured:
    """Return the capture that `capture_to_data` has written.

    Args:
        data: As JSON gave it.
        tensors: The constants by name, and whatever else the file holds.
    """
    graph = graph_from_data(data["graph"])
    known = {tensor.name: tensor for tensor in graph.inputs}
    known |= {tensor.name: tensor for op in graph.ops for tensor in op.outputs}
    known |= {t.name: t for t in graph.outputs}
    # Arguments that no op reads are not in the graph.
    unread = Tensor("unread", (), next(iter(known.values())).dtype) if known else None

    def named(names: Mapping[str, str]) -> dict[str, Tensor]:
        return {name: known[tensor] for name, tensor in names.items()}

    spec = torch.utils._pytree.tree_structure([0] * len(data["leaves"]))
    return Captured(
        graph=graph, arguments=tuple(known.get(name, unread) if name else None for name in data["arguments"]),
        parameters=named(data["parameters"]), buffers=named(data["buffers"]), gradients=named(data["gradients"]),
        constants={known[name]: tensors[f"constant/{name}"] for name in data["constants"]},
        loss=known[data["loss"]] if data["loss"] else None,
        loss_scale=known[data["loss_scale"]] if data["loss_scale"] else None, in_spec=spec, out_spec=spec,
        leaves=tuple(known[name] for name in data["leaves"]),
        output_dtypes=tuple(getattr(torch, name) for name in data["dtypes"]), generic_targets={},
        written={place: known[name] for place, name in data["written"]},
    )
