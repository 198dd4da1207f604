"""Processes say what collectives they have compiled before they run them: gloo ends a process where sizes differ."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from torchipu.errors import ExecutionError
from torchipu.ir.graph import Graph, Op, walk_ops
from torchipu.optable.collective import ALL_TO_ALL, PATTERNS, POINT_TO_POINT, is_collective

_KEY = "torchipu/collective"
_BEGUN: Counter[str] = Counter()
"""Collectives that programs of this process have begun, by the name of their group."""


class Agreement:
    """The collectives of a program, in order, and whether other processes have compiled the same ones.

    The first process that comes to the n-th collective of a group with a program that it has just compiled writes down
    what it is; the others compare. Nobody waits: a process that has compiled nothing new has nothing to say.

    Args:
        graph: The program's.
    """

    def __init__(self, graph: Graph) -> None:
        self.ops = [
            op for op in walk_ops(graph.ops) if is_collective(op) and PATTERNS[op.target] != POINT_TO_POINT
        ]
        self.is_new = True

    def reach(self) -> None:
        """Before a run: compare, if it is the first, with what the other processes of each group have written.

        Raises:
            ExecutionError: A process has another collective, or other shapes, in the same place.
        """
        if self.is_new:
            with contextlib.suppress(RuntimeError, NotImplementedError, ValueError):
                # A group without numbers, or a store that does not compare, of the user's own: nothing is compared.
                self._compare(dist.distributed_c10d._get_default_store())
            self.is_new = False
        _BEGUN.update(str(op.attrs["group_name"]) for op in self.ops)

    def _compare(self, store: Any) -> None:
        for key, op in self._places():
            mine = f"rank {dist.get_rank()}: {describe(op)}"
            found: Any = store.compare_set(key, "", mine)
            first = (found.decode() if isinstance(found, bytes) else str(found)) or mine
            if first.partition(": ")[2] != describe(op):
                said = f"{first}\n{mine}"
                store.set(_difference_key(op), said)
                raise different(op, said)

    def _places(self) -> Iterator[tuple[str, Op]]:
        """Yield each collective with its place: how many its group has begun before it, of programs and in all.

        Where processes differ in either, because some have sent messages in between or run some code in eager, their
        places are not compared.
        """
        counts: dict[str, int] = {}
        begun = _BEGUN.copy()
        resolve: Any = torch._C._distributed_c10d._resolve_process_group
        for op in self.ops:
            name = str(op.attrs["group_name"])
            if name not in counts:
                counts[name] = resolve(name)._get_sequence_number_for_group()
            yield f"{_KEY}/{name}/{counts[name]}/{begun[name]}", op
            counts[name] += 1
            begun[name] += 1


def different(op: Op, said: str, where: str = "") -> ExecutionError:
    """Return the error of processes that have compiled different graphs.

    Args:
        op: This process's collective.
        said: What each of two processes has, a line for each.
        where: What the message begins with.
    """
    return ExecutionError(
        f"{where}the processes have compiled different collectives for group {op.attrs['group_name']!r}",
        source=op.source, block=op.placement, detail=said,
        remedy="give all of them the same model and inputs of the same shapes; what only some ranks do must hold no "
        "collective",
    )


def difference(op: Op) -> str:
    """Return what another process has found to be different in a collective's group; empty where none has."""
    try:
        store = dist.distributed_c10d._get_default_store()
        return store.get(_difference_key(op)).decode() if store.check([_difference_key(op)]) else ""
    except (RuntimeError, NotImplementedError, ValueError):  # it has gone with the process that kept it
        return ""


def _difference_key(op: Op) -> str:
    return f"{_KEY}/different/{op.attrs['group_name']}"


def describe(op: Op) -> str:
    """Return what must be the same on all processes: operator, shapes, element types, arguments."""
    shapes = "" if PATTERNS[op.target] == ALL_TO_ALL else ", ".join(
        f"{tensor.dtype.text}[{','.join(map(str, tensor.shape))}]" for tensor in op.inputs
    )
    arguments = "".join(f" {name}={op.attrs[name]}" for name in ("reduce_op", "src") if name in op.attrs)
    return f"{op.target.split('.')[1]}({shapes}){arguments}"
