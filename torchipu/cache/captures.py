"""Captures of models in the compile cache: their keys, and what a file holds of one.

An entry is found in two steps. Its key is all that is known before a capture: the model as an object, the arguments,
options, settings of torch, versions. What Dynamo looked at beyond that, globals and functions that the model calls,
stands in the entry as places with a digest of what was found there; only where the same is found again is it used.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import sys
import sysconfig
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch._dynamo.config as dynamo_config
import torch._functorch.config as functorch_config
from torch.utils import _pytree as pytree

import torchipu
from torchipu.cache.described import Describer, OpaqueError, layout_of, ordered
from torchipu.cache.looked_at import Frame, Places, noting
from torchipu.cache.operators import refuse_foreign_operators
from torchipu.cache.store import Store
from torchipu.cache.structures import structure_from_data, structure_to_data
from torchipu.cache.versions import surroundings
from torchipu.capture.captured import Captured
from torchipu.capture.tensor_classes import is_derived
from torchipu.ir.graph import Tensor
from torchipu.options import Options
from torchipu.stored.captures import capture_from_data, capture_to_data

logger = logging.getLogger("torchipu.cache")

SOURCES = ("capture", "cache", "ir", "ops", "optable", "stored", "step", "_kernels/table", "fp8", "options")
"""Our own folders on which a capture depends: a version that is worked at is another one after each change."""
MOST_VARIANTS = 8
"""Entries of one key that are looked at: they differ in what the model found outside itself."""
OWN_AFFAIRS = ("seed", "host_threads", "process_group", "pipeline_group", "dump", "verify")
"""Options that no graph depends on."""

Capturing = Callable[[], Captured]


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """A capture that is wanted.

    Attributes:
        module: The model.
        args: Of one micro-batch.
        kwargs: Of one micro-batch.
        options: Of the compilation.
        facts: What else the capture depends on, as text.
    """

    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    options: Options
    facts: str


def fetch(request: Request, capture: Capturing, hits: list[str] | None = None) -> Captured:
    """Return a capture from the cache; else make it, and enter it where it can be found again.

    Args:
        request: What is to be captured.
        capture: Makes it.
        hits: Gets the folder where the capture came from there.

    Raises:
        Exception: What ``capture`` raises, as it is.
    """
    store = Store.usable()
    if store is None:
        return capture()
    try:
        describer, key = _key_of(request)
    except (OpaqueError, TypeError) as reason:
        logger.debug("%s is not cached: %s", type(request.module).__name__, reason)
        return capture()
    found = _found(store, key, request, describer)
    if found is not None:
        logger.debug("the capture of %s comes from %s", type(request.module).__name__, store.folder)
        if hits is not None:
            hits.append(str(store.folder))
        return found
    with noting() as noted, _heard() as told:
        captured = capture()
    if any(str(one.message).startswith("torchipu") for one in told):
        logger.debug("a capture is not cached that a warning of ours came with")
        return captured
    _enter(store, key, request, captured, noted, describer)
    return captured


@contextmanager
def _heard() -> Iterator[list[warnings.WarningMessage]]:
    """Yield a list that gets the warnings that are given meanwhile; they are given on afterwards."""
    told: list[warnings.WarningMessage] = []
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            yield told
    finally:
        for one in told:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)


# ---------------------------------------------------------------------- keys
def _key_of(request: Request) -> tuple[Describer, str]:
    """Return the digest of all that is known before a capture, and who has described it.

    Raises:
        OpaqueError: The model or an argument cannot be described.
        TypeError: Arguments are nested in a way that is not cached.
    """
    leaves, spec = pytree.tree_flatten((request.args, dict(request.kwargs)))
    model = request.module
    held = [*model.parameters(), *model.buffers()]
    describer = Describer([*held, *(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))])
    described = {
        field.name: getattr(request.options, field.name) for field in dataclasses.fields(request.options)
        if field.name not in OWN_AFFAIRS
    }
    parts = (
        surroundings(SOURCES), request.facts, describer.deep(model), structure_to_data(spec),
        [_described(leaf, describer) for leaf in leaves],
        [describer.deep(described)], _state_of_torch(),
    )
    return describer, hashlib.sha256(repr(parts).encode("utf-8", "backslashreplace")).hexdigest()


def _described(leaf: Any, describer: Describer) -> str:
    """Return what a capture depends on of an argument: of a tensor not its values.

    Raises:
        OpaqueError: It cannot be described, or is of a class of tensors that may do anything.
    """
    if is_derived(leaf):
        raise OpaqueError(f"tensors of {type(leaf).__name__} may compute anything")
    return layout_of(leaf) if isinstance(leaf, torch.Tensor) else describer.deep(leaf)


def _state_of_torch() -> str:
    """Return settings of torch that a graph may depend on.

    Raises:
        OpaqueError: A mode is active that may do anything.
    """
    from torch.overrides import _get_current_function_mode_stack
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    if _get_current_function_mode_stack() or _get_current_dispatch_mode_stack():
        raise OpaqueError("a mode of torch is active")
    if torch._C._autograd._top_saved_tensors_default_hooks(False) is not None:
        raise OpaqueError("hooks of saved tensors are active")
    hooks = torch.nn.modules.module
    if hooks._global_forward_hooks or hooks._global_forward_pre_hooks or hooks._global_backward_hooks:
        raise OpaqueError("hooks of all modules are active")
    backends = torch.backends
    return repr((
        torch.get_default_dtype(), torch.get_default_device(), torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), torch.is_autocast_cache_enabled(),
        torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.get_float32_matmul_precision(), torch.get_num_threads(), backends.mkldnn.is_available(),
        backends.mkldnn.enabled, backends.cuda.flash_sdp_enabled(), backends.cuda.math_sdp_enabled(),
        backends.cuda.mem_efficient_sdp_enabled(),
        ordered(dynamo_config.save_config_portable()), ordered(functorch_config.save_config_portable()),
        sys.flags.optimize,
    ))


# ---------------------------------------------------------------------- entries
def _found(store: Store, key: str, request: Request, describer: Describer) -> Captured | None:
    """Return the capture of an entry of this key where everything outside the model is as it was, or None."""
    frame = None
    for name in store.names(key)[:MOST_VARIANTS]:
        texts = store.read_texts(name)
        if texts is None:
            continue
        try:
            frame = frame or Frame(request.module, request.args, request.kwargs)
            if _seen_digest(json.loads(texts["places"]), frame, describer) != texts["seen"]:
                continue
        except OpaqueError as reason:
            logger.debug("the entry %s does not fit: %s", name, reason)
            continue
        except (KeyError, ValueError, TypeError):
            continue  # a damaged header: the checksum tells so below
        entry = store.read(name)
        if entry is not None and entry[1] == texts:
            return _captured_of(entry[0], entry[1], request)
    return None


def _seen_digest(places: Mapping[str, Any], frame: Frame, describer: Describer) -> str:
    """Return the digest of what is found at places.

    Raises:
        OpaqueError: Something is not there.
    """
    told = Places(places["table"], places["wanted"]).seen(frame, describer)
    code = describer.of_code(frame.code)
    return hashlib.sha256(repr((code, told)).encode("utf-8", "backslashreplace")).hexdigest()


def _enter(
    store: Store, key: str, request: Request, captured: Captured, noted: Sequence[Any], describer: Describer,
) -> None:
    """Write a capture, where all that it depends on can be told."""
    try:
        if len(noted) != 1:
            raise OpaqueError("it was captured in another way")
        refuse_foreign_operators(captured.graph)
        frame = Frame(request.module, request.args, request.kwargs)
        output = noted[0].graph_capture_output
        places = Places.of_guards(list(output.output_graph.guards), frame)
        held = {"table": places.table, "wanted": places.wanted}
        held = json.loads(json.dumps(held))
        seen = _seen_digest(held, frame, describer)
        _refuse_unseen_code(output.traced_code, describer.codes)
        data, tensors = _data_of(captured)
    except (OpaqueError, TypeError) as reason:
        logger.debug("the capture of %s is not cached: %s", type(request.module).__name__, reason)
        return
    texts = {
        "what": f"{type(request.module).__name__}, {captured.graph.name}, {len(captured.graph.ops)} ops",
        "places": json.dumps(held), "seen": seen, "capture": json.dumps(data),
    }
    store.write(f"{key}-{seen[:16]}", tensors, texts)


def _refuse_unseen_code(traced: Sequence[types.CodeType], described: set[types.CodeType]) -> None:
    """Raise OpaqueError where code was captured that no description covers, nor a version."""
    covered = set(_with_inner(described))
    for code in traced:
        if code not in covered and not _is_versioned(code.co_filename):
            raise OpaqueError(f"{code.co_qualname} of {code.co_filename} is reached in a way that is not seen")


def _with_inner(codes: set[types.CodeType]) -> Iterator[types.CodeType]:
    for code in codes:
        yield code
        yield from _with_inner({one for one in code.co_consts if isinstance(one, types.CodeType)})


@cache
def _is_versioned(file: str) -> bool:
    """Whether a file belongs to torch, torchipu or Python, whose versions are part of each key."""
    roots = (torch.__path__[0], torchipu.__path__[0], sysconfig.get_path("stdlib"))
    is_installed = "site-packages" in Path(file).parts[len(Path(roots[2]).parts):]
    own = any(Path(file).is_relative_to(root) for root in roots[:2])
    return own or file.startswith("<frozen ") or (Path(file).is_relative_to(roots[2]) and not is_installed)


# ---------------------------------------------------------------------- a capture as data
def _data_of(captured: Captured) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Return a capture as JSON data, and its constants.

    Raises:
        TypeError: It holds something that has no place there.
    """
    data, tensors = capture_to_data(captured)
    data["results"] = structure_to_data(captured.out_spec)
    data["members"] = [_leaf_to_data(leaf) for leaf in captured.leaves]
    data["generic"] = dict(captured.generic_targets)
    return data, tensors


def _leaf_to_data(leaf: object) -> list[Any]:
    if isinstance(leaf, Tensor):
        return ["tensor", leaf.name]
    if leaf is None or type(leaf) in (bool, int, float, str):
        return ["constant", leaf]
    raise TypeError(f"a result of type {type(leaf).__name__} is not cached")


def _captured_of(
    tensors: Mapping[str, torch.Tensor], texts: Mapping[str, str], request: Request,
) -> Captured | None:
    """Return the capture of an entry; None where the classes of its results are not loaded."""
    try:
        data = json.loads(texts["capture"])
        captured = capture_from_data(data, tensors)
        known = {tensor.name: tensor for tensor in captured.graph.outputs}
        leaves = tuple(known[what] if kind == "tensor" else what for kind, what in data["members"])
        results = structure_from_data(data["results"])
    except (KeyError, ValueError, TypeError, IndexError, AttributeError) as error:
        logger.warning("an entry of the compile cache is not used: %s", error)
        return None
    spec = pytree.tree_structure((request.args, dict(request.kwargs)))
    return dataclasses.replace(
        captured, in_spec=spec, out_spec=results, leaves=leaves, generic_targets=data["generic"],
    )
