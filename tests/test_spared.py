"""What is left out of torch is asked for nowhere: torch still calls what stands in its place, and does the rest."""

from __future__ import annotations

import traceback
from collections import Counter
from typing import Any

import pytest
import torch
import torch._dynamo.guards
import torch._dynamo.utils
import torch._functorch._aot_autograd.graph_compile as graph_compile

from tests import spared

GRAPHS = ("_log_joint_graph", "_log_fw_bw_graphs")


def test_a_seed_is_set_without_a_look_at_the_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise AssertionError("the stack was formatted")

    monkeypatch.setattr(traceback, "format_stack", refuse)
    torch.manual_seed(3)
    drawn = torch.rand(4)
    assert torch.equal(drawn, torch.rand(4, generator=torch.Generator().manual_seed(3)))


def test_a_compilation_times_no_guards_writes_no_settings_and_no_graphs_and_resets_without_tensors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called: Counter[str] = Counter()

    def counted(owner: Any, name: str) -> None:
        function = getattr(owner, name)
        assert function.__module__ == spared.__name__, f"torch does {name} itself"

        def call(*args: Any) -> Any:
            called[name] += 1
            return function(*args)

        monkeypatch.setattr(owner, name, call)

    torch._dynamo.reset()
    counted(torch._dynamo.guards, "profile_guard_manager")
    counted(spared.PhiloxState, "reset")
    counted(torch._subclasses.fake_tensor.traceback, "extract_stack")
    for name in GRAPHS:
        counted(graph_compile, name)
    settings = [name for name in spared.SETTINGS if hasattr(torch._dynamo.utils, name)]
    for name in settings:
        counted(torch._dynamo.utils, name)
    found = torch.compile(lambda x: x + 1, backend="ipu")(torch.ones(3, requires_grad=True))
    assert found.tolist() == [2.0, 2.0, 2.0]
    assert not torch._dynamo.config.run_gc_after_compile
    assert set(called) == {"profile_guard_manager", "reset", "extract_stack", *GRAPHS, *settings}
