"""The page of ``torchipu operators``: every record of the op table, as Markdown."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import partial
from types import CodeType, FunctionType, ModuleType

import torchipu.ops  # noqa: F401  its records fill the op table
from torchipu.optable.codelet import Codelet
from torchipu.optable.fusion import FUSIONS
from torchipu.optable.spec import ANY, FLOATING, INTEGER, TABLE, OpSpec

_FAMILIES = "torchipu.ops"
_WITH_CODELETS = (_FAMILIES, "torchipu.device")
_NAMED_DTYPES = ((ANY, "all"), (FLOATING, "floating"), (INTEGER, "integer"), ((*INTEGER, *ANY[-1:]), "integer, bool"))

_OPENING = """\
# Operators

Written by `python -m torchipu operators > docs/operators.md`; do not edit. An operator of ATen that is not listed runs
through the generic codelet: ATen gives its value on the host, and an estimate its cycles; `strict_ops` refuses it.

- *types*: element types of floating or integer operands that the record serves: *floating* is half and float, *integer*
  stands for every signed type up to 64 bits and unsigned char, *all* for both and bool. Other types run generically.
- *serves*: "all" where the record takes every form of the operator; "most" where it looks at the operands, and leaves
  some forms to the generic codelet. A constraint raises an error instead.
- *codelets*: device code whose cycles the operator may cost; which of it depends on types and shapes. None for a view,
  which costs nothing until a consumer gathers it.
- *host*: how the value comes about there. *chain*: one instruction of a fused elementwise chain. *view*: strides over
  memory that exists. *kernel*: a kernel of its own. *Python*: a Python function.
  *joined*: also within one of the sequences at the end of the page.
"""
_JOINED = """\
## Sequences that the host computes in one go

Where nothing else reads what each hands to the next, and the kernel serves their sizes:

"""
_HEADINGS = ("operator", "types", "serves", "codelets", "host")


def page() -> str:
    """Return the page, one table for each family."""
    families: dict[str, list[OpSpec]] = defaultdict(list)
    for target in sorted(TABLE):
        families[family_of(TABLE[target])].append(TABLE[target])
    parts = [f"{_OPENING}\n{len(TABLE)} operators have a record.\n"]
    for family, specs in sorted(families.items()):
        rows = [_line(_HEADINGS), _line(["---"] * len(_HEADINGS)), *map(_row, specs)]
        parts.append(f"## {family.replace('_', ' ')}\n\n" + "\n".join(rows) + "\n")
    sequences = (" → ".join(f"`{target}`" for target in targets) for targets in sorted(FUSIONS))
    parts.append(_JOINED + "\n".join(f"- {sequence}" for sequence in sequences) + "\n")
    return "\n".join(parts)


def family_of(spec: OpSpec) -> str:
    """Return the name of the family's file: the one that most of the record's functions are from."""
    for function in (spec.emit, spec.instruction, spec.lower):
        module: str = getattr(function, "__module__", "")
        if module.startswith(_FAMILIES):
            return module.rpartition(".")[2]
    return "other"


def _row(spec: OpSpec) -> str:
    serves = "all" if spec.supports is OpSpec.__dataclass_fields__["supports"].default else "most"
    constraints = "; ".join(f"error: {constraint.message}" for constraint in spec.constraints)
    codelets = ", ".join(f"`{name}`" for name in sorted(codelets_of(spec.lower)))
    return _line((
        f"`{spec.target}`", _types(spec), f"{serves}; {constraints}" if constraints else serves,
        "none" if spec.is_view else codelets or "none", _host(spec),
    ))


def _types(spec: OpSpec) -> str:
    given = set(spec.dtypes)
    for dtypes, name in _NAMED_DTYPES:
        if given == set(dtypes):
            return name
    return ", ".join(dtype.text for dtype in ANY if dtype in given)


def _host(spec: OpSpec) -> str:
    how = "view" if spec.is_view else "chain" if spec.instruction is not None else "kernel"
    how = "Python" if spec.emit is None and spec.instruction is None else how
    drawn = ", random" if spec.is_random else ""
    joined = ", joined" if any(spec.target in targets for targets in FUSIONS) else ""
    return f"{how}{drawn}{joined}"


def _line(cells: tuple[str, ...] | list[str]) -> str:
    escaped = [cell.replace("|", "\\|") for cell in cells]
    return f"| {' | '.join(escaped)} |"


# ---------------------------------------------------------------------- what a lowering may use
def codelets_of(lowering: object) -> set[str]:
    """Return the names of the codelets that a lowering can reach: what it holds, and the functions that it calls.

    A lowering says which codelets an op becomes only once it has the op with its shapes; read from its code, the answer
    holds for all of them.
    """
    found: set[str] = set()
    seen: set[int] = set()
    pending = [lowering]
    while pending:
        value = pending.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Codelet):
            found.add(value.name)
        else:
            pending += _reached(value)
    return found


def _reached(value: object) -> Iterator[object]:
    """Return what a value holds or calls, within the families and what their lowerings share."""
    if isinstance(value, partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, (tuple, list)):
        yield from value
    elif isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, FunctionType) and value.__module__.startswith(_WITH_CODELETS):
        yield from (cell.cell_contents for cell in value.__closure__ or ())
        yield from value.__defaults__ or ()
        yield from _globals_of(value.__code__, vars(sys.modules[value.__module__]))


def _globals_of(code: CodeType, scope: Mapping[str, object]) -> Iterator[object]:
    """Return the globals that code names, and their attributes where they are modules of the families."""
    named = [scope[name] for name in code.co_names if name in scope]
    yield from named
    for module in named:
        if isinstance(module, ModuleType) and module.__name__.startswith(_WITH_CODELETS):
            yield from (vars(module)[name] for name in code.co_names if name in vars(module))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _globals_of(constant, scope)
