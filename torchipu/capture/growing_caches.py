"""Caches of generation, which hold one token more at each call: of any length from the first capture that has one.

Dynamo takes a size for fixed until it has seen another one. A cache of `transformers` that grows has another size at
each call, so that a first capture of it, for one length alone, would serve one token.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch._dynamo.source import AttrSource, GetItemSource
from torch._dynamo.variables import builder
from torch._guards import ChainedSource, Source

_GROWING = "DynamicLayer"
"""Class of `transformers.cache_utils` whose ``keys`` and ``values`` grow in their last dimension but one."""
_FIXED = "cross_attention_cache"
"""Attribute of a cache of such layers that hold what an encoder has made, and do not grow."""
_MASKS = ("attention_mask", "decoder_attention_mask")
"""Arguments beside such a cache that have a column for each of its tokens and the new ones."""


def register() -> None:
    """Let Dynamo ask of each tensor whether it grows before it takes its sizes for fixed."""
    plain = builder._automatic_dynamic
    if plain.__module__ == __name__:
        return

    def automatic_dynamic(value: Any, tx: Any, source: Source, *args: Any, **kwargs: Any) -> Any:
        dim = _growing(value, tx, source)
        if dim is not None:
            torch._dynamo.maybe_mark_dynamic(value, dim)
        return plain(value, tx, source, *args, **kwargs)

    builder._automatic_dynamic = automatic_dynamic  # type: ignore[assignment]


def _growing(value: torch.Tensor, tx: Any, source: Source) -> int | None:
    """Return the dimension in which a tensor is longer at each call, or None."""
    library = sys.modules.get("transformers.cache_utils")
    if library is None or not isinstance(source, ChainedSource):
        return None
    growing = getattr(library, _GROWING, None)
    if isinstance(source, AttrSource) and source.member in ("keys", "values") and value.dim() > 2:
        is_layer = _FIXED not in source.name and type(_found(source.base, tx)) is growing
        return value.dim() - 2 if is_layer else None
    if isinstance(source, GetItemSource) and source.index in _MASKS and value.dim() == 2:
        given = _found(source.base, tx)
        cache = given.get("past_key_values") if isinstance(given, dict) else None
        layers = getattr(getattr(cache, "self_attention_cache", cache), "layers", ())
        return 1 if any(type(layer) is growing and layer.is_initialized for layer in layers) else None
    return None


def _found(source: Source, tx: Any) -> object:
    """Return what lies at a source, or None."""
    try:
        return tx.output.resolve_source_value(source)
    except Exception:  # also with a torch that has no such method: sizes are then fixed at first
        return None
