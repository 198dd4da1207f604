"""Places that Dynamo looked at are found again as Python finds them, and what is no place is refused."""

from __future__ import annotations

import ast
import builtins
import functools
import json
import types

import pytest
import torch

from torchipu.cache.described import Describer, OpaqueError
from torchipu.cache.looked_at import Frame, Places

SCALE = [7, 8]


class Holding(torch.nn.Module):
    """Holds members of all kinds that places lead to."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.pair, self.index, self.key = {"a": 1, "b": [3, 4]}, (5, 6), 1, "b"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * SCALE[0]


EXPRESSIONS = (
    "L['x']", "L['self'].table", "L['self'].table['b'][1]", "L['self'].pair[L['self'].index]", "G['SCALE'][0]",
    "type(L['self'])", "dict(L['self'].table)", "list(L['self'].pair)", "tuple(L['self'].table['b'])",
    "dict.keys(L['self'].table)", "list(dict.keys(L['self'].table))[0]", "G['__builtins_dict__in_frame']['len']",
    "dict.__getitem__(L['self'].table, 'a')", "dict.__getitem__(L['self'].table, L['self'].key)",
    "list.__getitem__(L['self'].table['b'], 0)", "list.__getitem__(L['self'].table['b'], L['self'].index)",
    "tuple.__getitem__(L['self'].pair, 0)", "tuple.__getitem__(L['self'].pair, L['self'].index)",
)


@pytest.fixture
def frame() -> Frame:
    return Frame(Holding(), (torch.ones(1),), {})


def table_of(expression: str, frame: Frame) -> tuple[Places, int]:
    """Return the places of an expression, as they come back from a file, and its number."""
    places = Places()
    number = places._place(ast.parse(expression, mode="eval").body, frame)
    return Places(json.loads(json.dumps(places.table)), [[number, False]]), number


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_a_place_leads_to_what_python_finds(expression: str, frame: Frame) -> None:
    names = {"L": frame.locals, "G": {**frame.globals, "__builtins_dict__in_frame": vars(builtins)}}
    expected = Describer().shallow(eval(expression, names))
    (seen,) = table_of(expression, frame)[0].seen(frame, Describer())
    assert seen.partition(" =")[0] == expected.partition(" =")[0]


@pytest.mark.parametrize("expression", [
    "L['x'] + 1", "open('file')", "L['self'].table.get('a')", "L['self'].pair[0.5]", "G['__import_nowhere'].relu",
])
def test_what_is_no_place_is_refused(expression: str, frame: Frame) -> None:
    with pytest.raises(OpaqueError):
        table_of(expression, frame)


@pytest.mark.parametrize("expression", ["L['y']", "L['self'].nothing", "L['self'].pair[2]", "L['self'].table['c']"])
def test_a_place_that_is_not_there_is_told(expression: str, frame: Frame) -> None:
    places, _ = table_of(expression, frame)
    with pytest.raises(OpaqueError, match=r"there is no L y|a place is not there"):
        places.seen(frame, Describer())


def test_places_of_one_object_are_told_from_those_of_equal_ones(frame: Frame) -> None:
    model = frame.locals["self"]
    model.first, model.second = model.table["b"], model.table["b"]
    places = Places()
    numbers = [places._place(ast.parse(f"L['self'].{name}", mode="eval").body, frame) for name in ("first", "second")]
    places.wanted = [[number, False] for number in numbers]
    shared = places.seen(frame, Describer())
    model.second = list(model.first)
    apart = places.seen(frame, Describer())
    assert shared[0] == shared[1] == apart[0] != apart[1]


def test_guards_of_a_kind_that_is_not_known_are_refused(frame: Frame) -> None:
    guard = types.SimpleNamespace(create_fn_name=lambda: "A_NEW_KIND", name="L['x']", create_fn=None)
    with pytest.raises(OpaqueError, match="guards of kind A_NEW_KIND are not known"):
        Places.of_guards([guard], frame)


def test_a_forward_that_is_no_python_function_has_no_frame() -> None:
    model = torch.nn.Module()
    model.forward = functools.partial(torch.add, torch.ones(1))  # type: ignore[method-assign, assignment]
    with pytest.raises(OpaqueError):
        Frame(model, (torch.ones(1),), {})
