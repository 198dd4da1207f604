"""Operators of the user's that write into their arguments, as ones that return what they would have written.

A program holds values, and no memory that an operator could write into. The name of one of these says which operator it
is of, so that a capture that another process has made finds it too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

NAMESPACE = "torchipu_functional"
_JOINT, _COUNTS = "__of__", "__writes__"
_ALIAS = re.compile(r"\(\w+!?(?: -> [^)]*)?\)")
"""How a schema says that an argument is written into, or that a result shows one."""
_library = torch.library.Library(NAMESPACE, "FRAGMENT")


def written_by(overload: torch._ops.OpOverload) -> list[str]:
    """Return the names of the arguments that an operator writes into."""
    return [one.name for one in overload._schema.arguments if one.alias_info is not None and one.alias_info.is_write]


def target_of(overload: torch._ops.OpOverload, counts: Sequence[int]) -> str:
    """Return the name of what stands for an operator, such as ``torchipu_functional.mine__of__fill.default``.

    Args:
        overload: The operator.
        counts: How many tensors it is given for each argument that it writes into: 1, the length of a list, or 0 for
            None.
    """
    namespace, name = overload._schema.name.split("::")
    told = "" if all(count == 1 for count in counts) else _COUNTS + "_".join(map(str, counts))
    return f"{NAMESPACE}.{namespace}{_JOINT}{name}{told}.{overload._overloadname}"


@cache
def operator(target: str) -> torch._ops.OpOverload:
    """Return what takes the arguments of an operator, and returns its results and what it wrote into each tensor.

    Args:
        target: Its name, by `target_of`.

    Raises:
        AttributeError: Nobody has registered the operator that it stands for.
    """
    _, joint, variant = target.split(".")
    namespace, _, rest = joint.partition(_JOINT)
    name, _, counts = rest.partition(_COUNTS)
    overload: torch._ops.OpOverload = getattr(getattr(getattr(torch.ops, namespace), name), variant)
    schema = overload._schema
    written = written_by(overload)

    def run(*args: Any, **kwargs: Any) -> Any:
        given = {one.name: value for one, value in zip(schema.arguments, args, strict=False)} | kwargs
        copies = {name: _copied(given[name]) for name in written if name in given}
        by_place = {one.name for one in schema.arguments if not one.kwarg_only}
        named = given | copies
        results = overload(
            *[named[one.name] for one in schema.arguments if one.name in by_place and one.name in named],
            **{name: value for name, value in named.items() if name not in by_place},
        )
        kept = () if not schema.returns else (results,) if len(schema.returns) == 1 else tuple(results)
        everything = (*kept, *(one for copy in copies.values() for one in _tensors(copy)))
        return everything if len(everything) > 1 else everything[0]

    full_name = joint if variant == "default" else f"{joint}.{variant}"
    arguments = _ALIAS.sub("", str(schema)).partition("(")[2].rpartition(") -> ")[0]
    num_written = sum(map(int, counts.split("_"))) if counts else len(written)
    returned = [str(one.type) for one in schema.returns] + ["Tensor"] * num_written
    _library.define(f"{full_name}({arguments}) -> ({', '.join(returned)})")
    _library.impl(full_name, run, "CompositeExplicitAutograd")
    made: torch._ops.OpOverload = getattr(getattr(getattr(torch.ops, NAMESPACE), joint), variant)
    return made


def _copied(value: Any) -> Any:
    """Return a copy of a tensor, of each tensor of a list, or None."""
    if isinstance(value, (list, tuple)):
        return [_copied(one) for one in value]
    return None if value is None else value.clone()


def _tensors(value: Any) -> list[torch.Tensor]:
    """Return the tensors that an argument is given."""
    return [one for one in (value if isinstance(value, list) else [value]) if one is not None]
