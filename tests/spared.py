"""What torch does for those who watch its compilations, and the tests leave out.

Once the guards of a frame are made, Dynamo empties the caches of the processor, by writing 32 MiB, and takes the time
of the guards. It writes all settings as JSON, twice for each compilation. AOT autograd makes twelve empty tensors for
the tracker of CUDA's random numbers. Whoever sets a seed has the stack read line by line, three times, for devices that
are not there. AOT autograd prints each graph of a training as text, and each mode of fake tensors reads the stack, for
words that nobody asks for. Dynamo looks for garbage after each compilation. Nothing of it decides what is compiled or
drawn, and it takes a third of the time of a test that compiles one op by Dynamo.
"""

from __future__ import annotations

import sys
import traceback
from types import ModuleType, SimpleNamespace

import torch
import torch._C._dynamo.guards
import torch._subclasses.fake_tensor
from torch._decomp.decompositions_for_rng import PhiloxState

SETTINGS = (
    "_compiler_config_for_logging", "_functorch_config_for_logging", "_get_dynamo_config_for_logging",
    "_scrubbed_inductor_config_for_logging",
)
"""Functions of ``torch._dynamo.utils`` that write settings; each may return None. Not all releases have all of them."""
DEVICES: tuple[ModuleType, ...] = (torch.cuda, torch.xpu, torch.mtia)
_EMPTY = torch.empty(0)


def spare() -> None:
    """Leave it out in this process from now on; again once Dynamo has been imported, for what is Dynamo's own."""
    for device in DEVICES:
        device.manual_seed_all = _no_seed  # type: ignore[attr-defined]
    PhiloxState.reset = _reset  # type: ignore[method-assign]
    torch._C._dynamo.guards.profile_guard_manager = _no_time  # type: ignore[assignment]  # Dynamo takes it from there
    torch._subclasses.fake_tensor.traceback = SimpleNamespace(  # type: ignore[assignment]
        extract_stack=_no_stack, format_list=traceback.format_list,
    )
    if (graphs := sys.modules.get("torch._functorch._aot_autograd.graph_compile")) is not None:
        graphs._log_joint_graph = _no_settings  # type: ignore[attr-defined]
        graphs._log_fw_bw_graphs = _no_graphs  # type: ignore[attr-defined]
    if (guards := sys.modules.get("torch._dynamo.guards")) is not None:
        guards.profile_guard_manager = _no_time  # type: ignore[attr-defined]
    if (settings := sys.modules.get("torch._dynamo.config")) is not None:
        settings.run_gc_after_compile = False  # type: ignore[attr-defined]
    if (logs := sys.modules.get("torch._dynamo.utils")) is not None:
        for name in SETTINGS:
            if hasattr(logs, name):
                setattr(logs, name, _no_settings)


def _no_seed(seed: int) -> None:
    """Stand for the seed of devices that are not there."""


def _no_time(*_: object) -> float:
    """Stand for the time that guards take."""
    return 0.0


def _no_settings(*_: object) -> None:
    """Stand for settings, or for a graph, as text."""


def _no_graphs(*_: object) -> tuple[None, None]:
    """Stand for a forward and a backward graph as text."""
    return None, None


def _no_stack() -> list[traceback.FrameSummary]:
    """Stand for the lines that led to a mode of fake tensors."""
    return []


def _reset(state: PhiloxState) -> None:
    """Reset a state as torch does, with one empty tensor for all: nobody writes into it."""
    state.seed = state.base_offset = _EMPTY
    state.relative_offset, state.offset_advanced_at_least_once = 0, False
