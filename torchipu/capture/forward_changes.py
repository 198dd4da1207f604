"""What a forward changes beside computing its results: attributes, lists, globals, and which tensor a buffer is.

Dynamo notes every such change, and leaves it out of the graph that is captured of a step. A buffer's new value becomes
a write into it; of all else the next call would know nothing, which is said with its name and line, or refused.
"""

from __future__ import annotations

import contextlib
import re
import traceback
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo.side_effects import SideEffects
from torch._dynamo.source import LocalSource
from torch._dynamo.variables.base import AttributeMutationExisting, ValueMutationExisting
from torch._dynamo.variables.tensor import TensorVariable
from torch._guards import TracingContext

from torchipu.capture.dynamo_places import (
    MISSING,
    attribute_of,
    cell_name,
    has_name,
    held_at,
    is_computed,
    is_read,
    is_same,
    item_of,
    items_of,
    name_of,
)
from torchipu.capture.fx_source import line_in
from torchipu.capture.process_wide import replaced
from torchipu.errors import CaptureError
from torchipu.ir.types import Source

_SAID_BY_TORCH = "While compiling, we found certain side effects happened in the model.forward"
_KINDS = {list: "list", dict: "dictionary", set: "set"}


@dataclass(frozen=True, slots=True)
class Rebound:
    """A buffer to which forward gives another tensor.

    Attributes:
        path: Of the module that has it; empty for the model itself.
        name: Its name there.
        source: The line that does so.
    """

    path: str
    name: str
    source: Source

    @property
    def full_name(self) -> str:
        """The buffer's name in the model."""
        return f"{self.path}.{self.name}" if self.path else self.name

    def write(self, buffer: torch.Tensor, value: Any) -> None:
        """Write the new value into the buffer, so that it is a state of the program.

        Raises:
            CaptureError: It is no tensor, or one of another size or type.
        """
        if isinstance(value, torch.Tensor) and value.shape == buffer.shape and value.dtype == buffer.dtype:
            buffer.copy_(value.detach())
            return
        raise CaptureError(
            f"forward gives the buffer {self.full_name}, {_of(buffer)}, the value {_of(value)}: a state of a program "
            "keeps its size and type", source=self.source,
            remedy=f"register {self.full_name} with the size and type of what forward gives it",
        )


@dataclass(frozen=True, slots=True)
class Change:
    """Something else that forward changes.

    Attributes:
        what: It, for messages.
        name: What a buffer in its place would be called.
        source: The line that does so.
        is_state: Whether forward reads it before and gives it a tensor that it has computed.
    """

    what: str
    name: str
    source: Source
    is_state: bool

    def tell(self) -> None:
        """Warn of it, or refuse it where the next call would compute something else.

        Raises:
            CaptureError: It is such a state.
        """
        remedy = (
            f'call self.register_buffer("{self.name}", ...) in the __init__ of the module that uses it: a buffer is a '
            "state of the program"
        )
        if self.is_state:
            raise CaptureError(
                f"forward reads {self.what} and gives it another value, which the next call would not see: it is "
                "neither a buffer nor an input", source=self.source, remedy=remedy,
            )
        text = (
            f"torchipu: forward changes {self.what}, which is no buffer: a program does not keep it, and every call "
            f"begins with what it held at the first one ({self.source}); {remedy}, or return the value from forward"
        )
        if self.source.file:
            warnings.warn_explicit(text, UserWarning, self.source.file, self.source.line)
        else:
            warnings.warn(text, stacklevel=2)


class Changes:
    """What Dynamo sees a forward change.

    Args:
        module: The model.

    Attributes:
        rebound: Its buffers that are other tensors afterwards.
        others: All else.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self.rebound: list[Rebound] = []
        self.others: list[Change] = []
        self._module = module
        self._paths = {id(member): path for path, member in module.named_modules()}
        self._buffers = {id(member._buffers): member for member in module.modules()}
        self._parameters = {id(member._parameters): member for member in module.modules()}
        self._lines: dict[tuple[int, str], Source] = {}

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Note what a capture through Dynamo changes, in place of its own warning."""
        store: Any = SideEffects.store_attr
        mutate: Any = SideEffects.mutation
        update: Any = SideEffects.codegen_update_mutated

        def stored(effects: Any, item: Any, name: str, *rest: Any, **named: Any) -> Any:
            self._lines[id(item), name] = _user_line()
            return store(effects, item, name, *rest, **named)

        def mutated(effects: Any, item: Any) -> Any:
            self._lines[id(item), ""] = _user_line()
            return mutate(effects, item)

        def updated(effects: Any, *rest: Any, **named: Any) -> Any:
            self._look(effects)
            return update(effects, *rest, **named)

        with (
            replaced(SideEffects, "store_attr", stored), replaced(SideEffects, "mutation", mutated),
            replaced(SideEffects, "codegen_update_mutated", updated), warnings.catch_warnings(),
        ):
            warnings.filterwarnings("ignore", _SAID_BY_TORCH)
            yield

    def tell(self) -> None:
        """Warn of what is changed beside buffers, or refuse it.

        Raises:
            CaptureError: Something is a state that the next call would not see.
        """
        for change in sorted(dict.fromkeys(self.others), key=lambda change: not change.is_state):
            change.tell()

    # ------------------------------------------------------------------ what Dynamo knows
    def _look(self, effects: Any) -> None:
        """Look through what was modified, but for arguments, such as those by name: each call has others."""
        self.rebound, self.others = [], []
        graph = effects.output_graph_weakref()
        for variable in effects.id_to_variable.values():
            kind = getattr(variable, "mutation_type", None)
            if variable.source is None or not effects.is_modified(variable) or not has_name(variable.source):
                continue
            held = held_at(graph, variable)
            if isinstance(kind, AttributeMutationExisting):
                for name, value in effects.store_attr_mutations.get(variable, {}).items():
                    self._attribute(graph, variable, held, name, value)
            elif isinstance(kind, ValueMutationExisting) and not isinstance(variable.source, LocalSource):
                self._content(graph, variable, held)

    def _attribute(self, graph: Any, variable: Any, held: Any, name: str, value: Any) -> None:
        """Note the attribute of an object, a global, or a variable of an enclosing function."""
        source, place = self._lines.get((id(variable), name), Source()), name_of(variable.source)
        if hasattr(variable, "pre_existing_contents"):  # a cell
            name, before = cell_name(graph, variable), attribute_of(held, "cell_contents")
            what, place = f"{name} of an enclosing function", f"{place}.cell_contents"
        elif type(variable).__name__ == "NewGlobalVariable":
            before, what = graph.root_tx.f_globals.get(name, MISSING), f"the global {name}"
        else:
            before, what = attribute_of(held, name), self._named(held, name, place)
            place = f"{place}.{name}"
        if not is_same(before, value, place):
            self._note(graph, what, name, source, place, before, value)

    def _content(self, graph: Any, variable: Any, held: Any) -> None:
        """Note what is put into a container: the buffers of a module, a list, a dictionary."""
        source, place = self._lines.get((id(variable), ""), Source()), name_of(variable.source)
        if id(held) in self._buffers:
            self._member(graph, self._buffers[id(held)], held, variable, source)
            return
        if id(held) in self._parameters:
            self._parameter(self._parameters[id(held)], held, variable, source)
            return
        kind = next((word for of, word in _KINDS.items() if isinstance(held, of)), "object")
        name = _last(place)
        what, items = f"the {kind} {_told(place)}", dict(items_of(variable))
        for key, value in items.items():
            before = item_of(held, key)
            at = f"{place}[{key!r}]"
            if before is MISSING or not is_same(before, value, at):
                self._item(graph, what, name, source, at, before, value)
        if not isinstance(held, (list, dict)) or len(held) > len(items):
            self.others.append(Change(what, name, source, False))

    def _member(self, graph: Any, member: Any, held: Any, variable: Any, source: Source) -> None:
        path = self._paths[id(member)]
        items = dict(items_of(variable))
        for name, value in items.items():
            place = f"{name_of(variable.source)}[{name!r}]"
            if name in held and held[name] is not None:
                if not is_same(held[name], value, place):
                    self._refuse_shared(member, name, source)
                    self.rebound.append(Rebound(path, name, source))
            elif not is_same(held.get(name, MISSING), value, place):
                self.others.append(Change(self._named(member, name, ""), name, source, False))
        for name in set(held) - set(items):
            raise CaptureError(
                f"forward removes the buffer {path + '.' if path else ''}{name}: a program keeps its states",
                source=source, remedy="leave it in place, or keep the value in a local variable",
            )

    def _parameter(self, member: Any, held: Any, variable: Any, source: Source) -> None:
        items = dict(items_of(variable))
        changed = [
            name for name, value in items.items()
            if not is_same(held.get(name, MISSING), value, f"{name_of(variable.source)}[{name!r}]")
        ]
        changed += sorted(set(held) - set(items))
        if changed:
            path = self._paths[id(member)]
            raise CaptureError(
                f"forward gives the parameter {path + '.' if path else ''}{changed[0]} another tensor, or removes it: "
                "a program keeps its weights", source=source,
                remedy="write into it under torch.no_grad(), as by copy_, or compute with a local variable",
            )

    def _refuse_shared(self, member: Any, name: str, source: Source) -> None:
        tensor = member._buffers[name]
        names = [full for full, one in self._module.named_buffers(remove_duplicate=False) if one is tensor]
        if len(names) > 1:
            raise CaptureError(
                f"forward gives the buffer {names[0]} another tensor, while {names[1]} stays what it was",
                source=source, remedy="register two buffers, or write into the one that both are, as by copy_",
            )

    def _item(
        self, graph: Any, what: str, name: str, source: Source, place: str, before: Any, value: Any,
    ) -> None:
        """Note an item of a container that is another one, or new."""
        is_state = before is not MISSING and is_read(graph, place) and is_computed(value)
        self.others.append(Change(_told(place) if is_state else what, name, source, is_state))

    def _note(
        self, graph: Any, what: str, name: str, source: Source, place: str, before: Any, value: Any,
    ) -> None:
        """Note an attribute or a variable that is another one, unless every call gives it the same."""
        has_changed, was_read = is_computed(value), is_read(graph, place)
        is_constant = not has_changed and (isinstance(value, TensorVariable) or value.is_python_constant())
        if is_constant and (before is MISSING or before is None or not was_read):
            return  # made once, or the same at each call
        self.others.append(Change(what, name, source, was_read and has_changed))

    def _named(self, held: Any, name: str, place: str) -> str:
        """Return what messages call an attribute."""
        if isinstance(held, type):
            return f"{name} of the class {held.__name__}"
        path = self._paths.get(id(held), _told(place)) if held is not MISSING else _told(place)
        of = f" of {type(held).__name__}" if held is not MISSING else ""
        return f"{path}.{name}{of}" if path else f"{name}{of}"


@contextlib.contextmanager
def buffers_returned(module: torch.nn.Module, rebound: Sequence[Rebound]) -> Iterator[None]:
    """Let a model return, beside its results, what its buffers are in the end."""
    own_forward = "forward" in module.__dict__
    begun: Callable[..., Any] = module.forward if own_forward else type(module).forward
    places = [(one.path.split(".") if one.path else [], one.name) for one in rebound]

    def forward(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        returned = begun(*args, **kwargs) if own_forward else begun(self, *args, **kwargs)
        values = []
        for path, name in places:
            member = self
            for part in path:
                member = member._modules[part]  # type: ignore[assignment]
            values.append(member._buffers[name])
        return returned, values

    # As its class's where that is so already: of a forward of the object's own, torch 2.11 takes states for constants.
    own, kind = module.__dict__.get("forward", MISSING), type(module)
    if own is MISSING:
        made = type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})
        object.__setattr__(module, "__class__", made)
    else:
        object.__setattr__(module, "forward", types.MethodType(forward, module))
    try:
        yield
    finally:
        if own is MISSING:
            object.__setattr__(module, "__class__", kind)
        else:
            object.__setattr__(module, "forward", own)


def _user_line() -> Source:
    """Return the line of the model that Dynamo is at."""
    return line_in("".join(traceback.format_list(TracingContext.extract_stack())))


# ---------------------------------------------------------------------- words
def _told(place: str) -> str:
    """Return a place as a user writes it, without the model in front."""
    text = re.sub(r"^L\['\w+'\]\.?", "", place)
    text = re.sub(r"^G\['(\w+)'\]", r"\1", text)
    return re.sub(r"_modules\['([^']+)'\]", r"\1", text)


def _last(place: str) -> str:
    """Return the last name of a place."""
    names = re.findall(r"[A-Za-z]\w*", _told(place))
    return names[-1] if names else "state"


def _of(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
