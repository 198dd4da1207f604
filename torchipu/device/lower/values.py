"""Which function makes a value, which ones read it, and what storage it shares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torchipu.ir.graph import Graph, Op, Placement, Tensor
from torchipu.ir.types import Leg
from torchipu.optable.collective import WAIT
from torchipu.optable.control import formals_of
from torchipu.optable.marks import NO_OVERLAP, OVERLAP
from torchipu.optable.spec import spec_of

BROADCAST = "broadcast"  # the function that sends states to further IPUs before the first cycle

# Ops of the update that all IPUs finish before those that follow begin: the sum over replicas, each IPU's share of what
# concerns all gradients, and the scale that follows from the shares. What is left updates weights (U).
NORMS = "N"
PHASES: Mapping[str, str] = {
    "all_reduce": "R", "sum_squares": NORMS, "add_sums": "C", "join_counts": "C", "clip_scale": "C", "unscale": "C",
    "adapt_loss_scale": "C",
}
BEFORE_NORMS: Mapping[str, str] = {"unscale": "R", "clip_values": NORMS}
"""Where gradients are bounded one by one before their norm is taken."""
UPDATE = "U"

# Views whose elements lie in the order of their operand's; the others are laid out anew by who reads them.
KEEPS_ORDER = frozenset(
    f"aten.{name}" for name in (
        "view.default", "_unsafe_view.default", "reshape.default", "unsqueeze.default", "squeeze.default",
        "squeeze.dim", "squeeze.dims", "alias.default", "detach.default", "flatten.using_ints", "unflatten.int",
    )
) | {"torchipu.checkpoint.default", "torchipu.nop.default", "torchipu.print_tensor.default",
     "torchipu.overlap.default", WAIT}


def function_of(op: Op) -> str:
    """Return the name of the function that an op is lowered into."""
    placement = _placement_of(op)
    if placement.leg is Leg.UPDATE:
        phases = BEFORE_NORMS if op.attrs.get("before_norm") else PHASES
        phase = phases.get(op.kind, UPDATE)
        return f"{phase}{placement.ipu}"
    return f"{placement.stage}{placement.leg.value}"


class Flow:
    """Storage behind each tensor, the function that makes it and the functions that use it.

    Views share storage with their operand, the next value of a state with the state.

    Args:
        graph: A placed graph.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.alias: dict[Tensor, Tensor] = {}
        self.maker: dict[Tensor, str] = {}
        self.home: dict[Tensor, int] = {}
        self.uses: dict[tuple[Tensor, int], dict[str, None]] = {}
        self.returned: list[tuple[Tensor, Tensor]] = []
        self.inputs = set(graph.inputs)
        self.views: set[int] = set()
        self.seen: dict[Tensor, Op] = {}
        self.permuted: set[Tensor] = set()
        self.overlaps: dict[Tensor, str] = {}
        self.means: set[Tensor] = set()  # over micro-batches; replicas take their mean, not their sum
        self._follow(graph.ops)
        self._join_states()

    def _follow(self, ops: Iterable[Op]) -> None:
        """Note what ops make and use, and what the graphs that they run do."""
        for op in ops:
            if is_view(op):
                self.views.add(id(op))
                self.seen.update(dict.fromkeys(op.outputs, op))
                self.alias.update(dict.fromkeys(op.outputs, self.storage(op.inputs[0])))
                if op.kind == OVERLAP and op.attrs["mode"] != NO_OVERLAP:
                    self.overlaps[self.storage(op.inputs[0])] = str(op.attrs["mode"]).removeprefix(f"{OVERLAP}_")
                if op.target not in KEEPS_ORDER or op.inputs[0] in self.permuted:
                    self.permuted.update(op.outputs)
                continue
            name, ipu = function_of(op), ipu_of(op)
            for operand in op.inputs:
                stored = self.storage(operand)
                self.home.setdefault(stored, ipu)
                self.uses.setdefault((stored, ipu), {})[name] = None
            for result in op.outputs:
                self.maker[result] = name
                self.home[result] = ipu
            if is_in_place(op):
                self.alias[op.outputs[0]] = self.storage(op.inputs[0])
            if op.kind == "accumulate_mean":
                self.means.add(op.outputs[0])
                self.alias[op.outputs[1]] = self.storage(op.inputs[2])  # the count
            if is_all_reduce(op):
                # What other IPUs are sent is the sum.
                self.maker[self.storage(op.inputs[0])] = name
            for body in op.bodies:
                for formal, held, is_row in formals_of(op, body):
                    if is_row:
                        self.maker[formal], self.home[formal] = name, ipu
                        continue
                    self.alias[formal] = self.storage(held)
                    if held in self.seen:  # what reads the one inside sees as much of the storage as outside
                        self.seen[formal] = _same(op, held, formal)
                        if held in self.permuted:
                            self.permuted.add(formal)
                self._follow(body.ops)

    def storage(self, tensor: Tensor) -> Tensor:
        """Return the tensor whose storage holds a value."""
        return self.alias.get(tensor, tensor)

    def results(self) -> dict[Tensor, None]:
        """Return what the graph's results are, or are views of."""
        found: dict[Tensor, None] = {}
        for tensor in self.graph.outputs:
            while tensor in self.seen:
                tensor = self.seen[tensor].inputs[0]
            found[tensor] = None
        return found

    def _join_states(self) -> None:
        """Let the next value of a state take the state's storage; where it cannot, it is copied back."""
        joined: dict[Tensor, Tensor] = {}
        for state, value in self.graph.updates:
            stored = self.storage(value)
            if stored is state:
                continue
            fits = (
                stored in self.maker and stored not in joined and stored.dtype is state.dtype
                and stored.num_elements == state.num_elements
                and self.home[stored] == self.home.setdefault(state, self.home[stored])
            )
            if fits:
                joined[stored] = state
            else:
                self.returned.append((state, stored))
        self.alias.update({tensor: joined[stored] for tensor, stored in self.alias.items() if stored in joined})
        self.alias.update(joined)


def _same(op: Op, held: Tensor, formal: Tensor) -> Op:
    """Return a view that shows a tensor of a body as the one outside."""
    return Op("alias", (held,), (formal,), target="aten.alias.default", operands=("self",), source=op.source,
              placement=op.placement, leg=op.leg)


def is_in_place(op: Op) -> bool:
    """Whether an op's first result overwrites its first operand."""
    spec = spec_of(op)
    return spec is not None and spec.is_in_place


def is_all_reduce(op: Op) -> bool:
    """Whether an op adds a value up over the replicas."""
    return op.kind == "all_reduce"


def is_view(op: Op) -> bool:
    """Whether an op's result shares the storage of its first operand."""
    spec = spec_of(op)
    return spec is not None and spec.is_view and bool(op.inputs)


def ipu_of(op: Op) -> int:
    """Return the IPU of an op."""
    return _placement_of(op).ipu


def _placement_of(op: Op) -> Placement:
    if op.placement is None:
        raise ValueError(f"op {op.kind} is not placed")
    return op.placement
