"""Whatever is wrong with a device program, the machine notices: it refuses it, or its values differ from eager's."""

from __future__ import annotations

import functools
from itertools import islice
from typing import Any

import numpy as np
import pytest

from tests.device.damage import KINDS, some
from tests.device.test_machine import ALL_SHARED, OFF, close, trained
from tests.device.trained import Trained
from torchipu.errors import DeviceProgramError
from torchipu.ir.program import Executable

GRAPHS: dict[str, dict[str, Any]] = {
    "pipelined": {"ipus": (0, 1, 2), "gradient_accumulation": 5, "device_iterations": 2},
    "sharded over replicas": {"ipus": (0, 1), "gradient_accumulation": 2, "execution": "sharded", "replicas": 2,
                              "device_iterations": 2},
    "phases off chip": {"ipus": (0, 0, 0), "gradient_accumulation": 2, "execution": "serial_phased",
                        "device_iterations": 2},
    "shared out": {"replicas": 2, "gradient_accumulation": 2, "device_iterations": 2, **ALL_SHARED},
    "all off chip, nothing recomputed": {
        "ipus": (0, 1), "gradient_accumulation": 3, "recompute": "none", "activation_location": OFF,
        "weight_location": OFF, "device_iterations": 2,
    },
}


def graph(name: str) -> Trained:
    return trained(**GRAPHS[name])


def ran(name: str, executable: Executable, *, on_tiles: bool) -> dict[object, np.ndarray]:
    """Return all that a run leaves: states by name, and what was streamed to the host by stream and moment."""
    run = graph(name)
    machine = run.tile_machine(executable) if on_tiles else run.machine(executable)
    machine.run()
    return {**machine.states(), **machine.results}


@functools.cache
def expected(name: str, *, on_tiles: bool) -> dict[object, np.ndarray]:
    return ran(name, graph(name).executable, on_tiles=on_tiles)


def noticed(name: str, executable: Executable, *, on_tiles: bool) -> str:
    """Say how the damage shows; empty if it does not."""
    try:
        found = ran(name, executable, on_tiles=on_tiles)
    except DeviceProgramError as error:
        return str(error)
    wanted = expected(name, on_tiles=on_tiles)
    if found.keys() != wanted.keys():
        return f"streams to the host differ: {found.keys() ^ wanted.keys()}"
    differing = [key for key, value in wanted.items() if not np.allclose(found[key], value, rtol=1e-6, atol=1e-9)]
    return f"{differing} differ" if differing else ""


@pytest.mark.parametrize("name", GRAPHS)
def test_the_whole_program_trains_as_eager_does(name: str) -> None:
    close(graph(name))


@pytest.mark.whole
@pytest.mark.suffices(on_tiles=[False])  # tests/device/tiles/test_vertex_damage.py has damage to tiles
@pytest.mark.parametrize("on_tiles", [False, True], ids=["variables", "tiles"])
@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_noticed(kind: str, on_tiles: bool, is_thorough: bool) -> None:
    names, first = list(GRAPHS), list(KINDS).index(kind) % len(GRAPHS)
    damages = (
        (name, what, damaged)
        for name in names[first:] + names[:first] for what, damaged in some(KINDS[kind](graph(name).executable))
    )
    done = 0
    for name, what, damaged in islice(damages, None if is_thorough else 1):
        assert noticed(name, damaged, on_tiles=on_tiles), f"{kind} ({what}) in the program {name!r} shows nowhere"
        done += 1
    assert done, f"no program of these can be damaged so: {kind}"
