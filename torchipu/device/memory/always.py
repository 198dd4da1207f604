"""What a tile holds all the time: states, stashes, streams, and the program itself."""

from __future__ import annotations

import numpy as np

from torchipu.device.memory.liveness import Exchanged, Lifetime, Liveness, Moment
from torchipu.device.memory.shares import ALIGNMENT_BYTES, Shares, TileBytes
from torchipu.ir.types import Role
from torchipu.target import Target

MAX_EXCHANGE_CODE_BYTES = 7_000  # the largest seen for one scattered exchange; ipu_hardware.md 3.6
TEMPORARIES, GAP = "temporaries", "gap"
CATEGORIES = (
    "weights", "optimiser state", "stashes", "streams and links", "code", "exchange code", "control", "vertex state",
    "stacks",
    TEMPORARIES, GAP,
)
EXECUTED = ("code", "exchange code")
"""Categories that lie in the region that a tile executes from."""
LASTING = ("weights", "optimiser state", "code", "control", "vertex state", "stacks")
"""Categories that hardly depend on how much a call gives."""
PROGRAM = (*EXECUTED, "control", "vertex state", "stacks")
"""Categories that hold no values."""


class Always:
    """Bytes by tile that are held all the time, by category.

    Args:
        liveness: Of the program.
        shares: Of its variables.
        target: The machine.

    Attributes:
        ordinary: For each IPU, by category.
        interleaved: For each IPU, those of variables in interleaved memory, which ``ordinary`` lacks; by category.
        control_by_moment: Control code and vertex state of each moment on each of its tiles; 0 where it calls what an
            earlier one has brought.
        code_by_exchange: Code of each exchange of the trace, on each tile of its IPU.
    """

    def __init__(self, liveness: Liveness, shares: Shares, target: Target) -> None:
        self.target = target
        self._shares = shares
        self._code_bytes = liveness.executable.code_bytes
        self._outlined = liveness.executable.outlined
        ipus = range(liveness.executable.num_ipus)
        self.ordinary, self.interleaved = ([self._nothing() for _ in ipus] for _ in range(2))
        for lifetime in liveness.lifetimes:
            variable = lifetime.variable
            copies = variable.depth if lifetime.always else variable.depth - 1
            if copies:
                kinds = self.interleaved if variable in liveness.trace.interleaved else self.ordinary
                kinds[variable.ipu][_category(lifetime)] += copies * shares.of(variable)
        self.control_by_moment = self._add_code(liveness.trace.moments)
        self.code_by_exchange: dict[Exchanged, int] = {}
        for key, sources in liveness.trace.exchanges.items():
            held = sum(shares.extent(variable)[2] for variable in sources)
            self.code_by_exchange[key] = exchange_code_bytes(min(key.busiest_bytes, held), key.fragments)
            self.ordinary[key.ipu]["exchange code"] += self.code_by_exchange[key]
        for here in self.ordinary:
            here["stacks"] += target.stack_bytes

    def _nothing(self) -> dict[str, TileBytes]:
        return {name: np.zeros(self.target.num_tiles, np.int64) for name in CATEGORIES}

    def _add_code(self, moments: list[Moment]) -> list[int]:
        """Add code of each codelet on an IPU, and control code and vertex state of each compute set; return the latter.

        Sets of the same codelet, on the same tiles, of the same sizes are one function, which layers that repeat and
        ops that are recomputed call: PopART outlines them, and each is there once.
        """
        seen: set[tuple[object, ...]] = set()
        same: set[tuple[object, ...]] = set()
        added = [0] * len(moments)
        for number, moment in enumerate(moments):
            group, here = moment.group, self.ordinary[moment.ipu]
            if (moment.ipu, group.codelet) not in seen:
                seen.add((moment.ipu, group.codelet))
                here["code"] += self._code_bytes.get(group.codelet, 0)
            by_identity = (moment.ipu, group.codelet, id(group.runs), id(group.work))
            if by_identity in same and self._outlined:
                continue
            same.add(by_identity)
            key = (moment.ipu, group.codelet, self._shares.number(group.runs), tuple(sorted(group.work.items())))
            if key not in seen or not self._outlined:
                seen.add(key)
                control = self.target.control_bytes_per_compute_set + group.control_bytes
                state = self.target.state_bytes_per_compute_set + group.state_bytes
                tiles = self._shares.on_tiles_of(group)
                here["control"] += tiles * control
                here["vertex state"] += tiles * state
                added[number] = control + state
        return added

    def executed_by_tile(self, ipu: int) -> TileBytes:
        """Return the bytes on each tile of what has to lie in the region that is executed from."""
        return total_of(self.ordinary[ipu], EXECUTED)

    def program_by_tile(self, ipu: int) -> TileBytes:
        """Return the bytes of code, control and stacks on each tile, rounded up to the alignment."""
        return -(-total_of(self.ordinary[ipu], PROGRAM) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def total_of(bytes_by_category: dict[str, TileBytes], names: tuple[str, ...] = CATEGORIES) -> TileBytes:
    """Return the bytes by tile of some categories together."""
    total: TileBytes = np.sum([bytes_by_category[name] for name in names], axis=0)
    return total


def exchange_code_bytes(sent_bytes: int, fragments: int) -> int:
    """Return the code of one exchange on a tile: a word for each burst of 64 words, 12 bytes for each fragment.

    Args:
        sent_bytes: What a tile sends. What many tiles receive it sends once, so that it is no more than what the tile
            holds of what is moved, however much the busiest tile receives.
        fragments: Pieces that it receives.

    Source: profiles of BERT and ViT, and what an exchange instruction covers; ``ipu_hardware.md`` 1.4 and 3.6.
    """
    return min(MAX_EXCHANGE_CODE_BYTES, 4 * -(-sent_bytes // 256) + 12 * fragments)


def _category(lifetime: Lifetime) -> str:
    """Return the category of a variable, or of the copies of it that are always live."""
    role = lifetime.variable.role
    if role is Role.OPTIMISER_STATE:
        return "optimiser state"
    if role.is_state or role in (Role.CONSTANT, Role.HYPERPARAMETER):
        return "weights"
    return "streams and links" if lifetime.always else "stashes"
