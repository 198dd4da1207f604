"""C made of the table of kernels: structures of their numbers, constants, and arrays of their functions."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import sys
from enum import IntEnum
from pathlib import Path
from types import ModuleType
from typing import Any

KERNELS = Path("torchipu/_kernels")


def load_table(folder: Path = KERNELS / "table") -> ModuleType:
    """Import the table by itself, without the package that it is part of."""
    spec = importlib.util.spec_from_file_location(
        "kernel_table", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    for name in [name for name in sys.modules if name.partition(".")[0] == spec.name]:
        del sys.modules[name]
    table = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(table)
    return table


def write_sources(table: ModuleType, kernels: Path, folder: Path) -> list[Path]:
    """Write the C that the table gives, and leave a file as it is whose contents would not change.

    Args:
        table: What ``load_table`` returned.
        kernels: Where the bodies are.
        folder: Where to write.

    Returns:
        The C files that are to be compiled.
    """
    table.all_kernels()  # which refuses a name that is there twice
    sources, names = [], []
    for name, family in table.families().items():
        write(folder / "table" / f"{name}.h", header_of(name, family))
        records = table.kernels_of(family)
        if not records:
            continue
        if not (kernels / f"{name}_body.h").is_file():
            sys.exit(f"torchipu: table/{name}.py has kernels, and no {kernels / name}_body.h with functions")
        sources.append(folder / f"{name}.c")
        names.append(name)
        write(sources[-1], source_of(name, family, records, (kernels / f"{name}.h").is_file()))
    write(folder / "table" / "all.h", listing_of(names))
    for body in sorted(kernels.glob("*_tiles_body.h")):
        sources.append(folder / f"{body.name.removesuffix('_body.h')}.c")
        write(sources[-1], source_of_tiles(body.name))
    return sources


def write(path: Path, text: str) -> None:
    """Write a file unless it holds the text already: what is compiled from it is then still new enough."""
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def header_of(name: str, family: ModuleType) -> str:
    """Return the header of a family: constants, and a structure for each class of numbers."""
    defined, others = classes_of(family)
    guard = f"TORCHIPU_TABLE_{name.upper()}_H"
    parts = [f"/* Made of table/{name}.py. */", f"#ifndef {guard}", f"#define {guard}", "#include <stdint.h>"]
    parts += [f'#include "table/{other}.h"' for other in others]
    parts += constants_of(family)
    parts += [structure_of(each) for each in defined]
    return "\n".join([*parts, "#endif", ""])


def classes_of(family: ModuleType) -> tuple[list[type[Any]], list[str]]:
    """Return the classes of numbers that a module defines, and the modules from which it takes others."""
    named = [value for value in vars(family).values() if isinstance(value, type) and hasattr(value, "_fields")]
    own = [each for each in named if each.__module__ == family.__name__]
    others = {each.__module__.rpartition(".")[2] for each in named if each.__module__ != family.__name__}
    return own, sorted(others - {"kernel"})


def constants_of(family: ModuleType) -> list[str]:
    """Return what C sees of the module's own constants, with ``TI_`` before their names.

    Integers and enumerations become enumerators; a tuple of names becomes a macro that applies another one to each.
    """
    lines = []
    for name in assigned(family):
        value = vars(family)[name]
        if type(value) is int:
            lines.append(f"enum {{ TI_{name} = {value} }};")
        elif isinstance(value, tuple) and value and all(isinstance(each, str) for each in value):
            lines.append(f"#define TI_{name}(X) " + " ".join(f"X({each})" for each in value))
    for name, value in vars(family).items():
        if isinstance(value, type) and issubclass(value, IntEnum) and value.__module__ == family.__name__:
            members = ", ".join(f"TI_{snake(name).upper()}_{each.name} = {each.value}" for each in value)
            lines.append(f"enum {{ {members} }};")
    return lines


def assigned(family: ModuleType) -> list[str]:
    """Return the names in capitals that a module assigns itself."""
    targets = [
        target
        for statement in ast.parse(inspect.getsource(family)).body
        for target in (
            statement.targets if isinstance(statement, ast.Assign)
            else [statement.target] if isinstance(statement, ast.AnnAssign) else []
        )
    ]
    return [
        name.id for target in targets for name in (target.elts if isinstance(target, ast.Tuple) else [target])
        if isinstance(name, ast.Name) and name.id.isupper()
    ]


def structure_of(kind: type[Any]) -> str:
    """Return the C structure that lies over the numbers of a class."""
    fields = sys.modules[kind.__module__.rpartition(".")[0]].kernel.fields(kind)
    if not fields:
        return ""
    hints = kind.__annotations__.values()
    number = "double" if any("float" in str(hint) for hint in hints) else "int64_t"
    # A structure of nothing but a last array is none in C: GCC takes one of length 0.
    ends = "[0]" if len(fields) == 1 else "[]"
    members = "".join(
        f" {number if each.kind is None else snake(each.kind.__name__)} {each.name}"
        f"{'' if not each.is_array else ends if each.length is None else f'[{each.length}]'};"
        for each in fields
    )
    return f"typedef struct {{{members} }} {snake(kind.__name__)};"


def snake(name: str) -> str:
    """Return ``MatmulInts`` as ``matmul_ints``."""
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).removeprefix("_")


def source_of(name: str, family: ModuleType, records: list[Any], has_header: bool) -> str:
    """Return the C file of a family: its body for each instruction set, and the array of its kernels.

    A family that says ``FOR_AVX2_ALONE`` is compiled for that one, which every machine with AVX-512 has too; one that
    says ``FOR_BFLOATS_ALONE`` for processors that multiply bfloat16, and has no functions elsewhere.
    """
    first = [f'#include "{name}.h"'] if has_header else []
    alone = next((each for each in ("AVX2", "BFLOATS") if getattr(family, f"FOR_{each}_ALONE", False)), "")
    record = f"TI_RECORD_{alone}" if alone else "TI_RECORD"
    return "\n".join([
        f"/* Made of table/{name}.py. */", '#include "isa.h"', *first, f'#include "table/{name}.h"',
        f'#define TI_BODY "{name}_body.h"', *([f"#define TI_{alone}_ALONE"] if alone else []), '#include "isa_build.h"',
        f"const ti_record ti_table_{name}[] = {{",
        *(
            f'  {record}({each.name}, "{each.layout[0]}", "{each.layout[1]}")'
            f"  /* {name}_body.h has to define TI_KERNEL({each.name}), which table/{name}.py names */"
            for each in records
        ),
        "  {0}", "};", "",
    ])


def source_of_tiles(body: str) -> str:
    """Return the C file of functions that several families call, for each instruction set."""
    return f'/* Made for {body}. */\n#include "isa.h"\n#define TI_BODY "{body}"\n#include "isa_build.h"\n'


def listing_of(names: list[str]) -> str:
    """Return the header through which the engine finds the kernels of all families."""
    return "\n".join([
        "/* Made of the table of kernels. */", '#include "isa.h"',
        *(f"extern const ti_record ti_table_{name}[];" for name in names),
        f"static const ti_record *const TI_TABLES[] = {{{''.join(f'ti_table_{name}, ' for name in names)}0}};", "",
    ])
