"""Which block each op belongs to while a model is captured, and what is refused of blocks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from contextvars import ContextVar

from torch.fx import traceback

from torchipu.capture.block import BLOCK_KEY
from torchipu.device.schedule import make_schedule
from torchipu.errors import ScheduleError
from torchipu.ir.graph import Op
from torchipu.ir.types import Leg
from torchipu.poptorch._logging import logger
from torchipu.poptorch.capturing import answered_at_capture
from torchipu.poptorch.options.strategies import PipelinedExecution, _IExecutionStrategy, num_forward_stages
from torchipu.poptorch.poptorch_core import createPoptorchError

BEFORE_ALL_BLOCKS = "0 (no block)"
"""Block of ops that run before any block begins; they belong to IPU 0."""
NO_BLOCK = "(outside of any block)"
"""Block of ops that run after a ``with Block`` has ended and before another begins; they belong nowhere."""


class _Placing:
    """The blocks of one run of a model.

    Args:
        strategy: How blocks become stages.

    Attributes:
        ipus: IPU of each block in the order in which they began.
        names: Name of each.
    """

    def __init__(self, strategy: _IExecutionStrategy) -> None:
        self.strategy = strategy
        self.ipus: list[int] = []
        self.names: list[str] = []
        self.num_regions = 0
        self._next_id = 0
        self._ids: dict[int, str] = {}
        self._stage_by_name: dict[str, int] = {}
        strategy.onStart()
        _annotate(BEFORE_ALL_BLOCKS, 0)

    def automatic_id(self) -> str:
        """Return the next automatic name: "0", "1", ..."""
        self._next_id += 1
        return str(self._next_id - 1)

    def restart_ids(self) -> None:
        """Begin automatic names from "0" again."""
        self._next_id = 0

    def id_of(self, hook: object) -> str:
        """Return the automatic name of a module, the same each time that it runs."""
        return self._ids.get(id(hook)) or self._ids.setdefault(id(hook), self.automatic_id())

    def begin(self, block_id: str, ipu_id: int | None) -> None:
        """Begin a block.

        Raises:
            Error: The IPU is none.
        """
        if ipu_id is not None and (not isinstance(ipu_id, int) or isinstance(ipu_id, bool) or ipu_id < 0):
            raise createPoptorchError(
                f"Block {block_id!r}: ipu_id must be a whole number from 0, got {ipu_id!r}. Count the IPUs of the "
                "model from 0, or leave ipu_id out"
            )
        stage = self.strategy.placement(block_id, ipu_id)
        ipu = stage._ipu_id if stage._ipu_id is not None else ipu_id
        if ipu is None:
            ipu = self.strategy.default_ipu(stage)
            logger.debug("No IPU specified for block %s: default to stage_id %d", block_id, ipu)
        self.strategy.check_ipu(stage, ipu)
        self.ipus.append(ipu)
        self.names.append(block_id)
        logger.debug(
            "Starting block id=%s stage=%d phase=%d ipu=%d", block_id, stage._stage_id, stage._phase_id, ipu
        )
        _annotate(self._name(block_id), ipu)

    def _name(self, block_id: str) -> str:
        """Return the block's name in the graph; a return to it from another IPU is a stage, and a name, of its own."""
        stage = num_forward_stages(self.ipus)
        name = block_id
        while self._stage_by_name.setdefault(name, stage) != stage:
            name = f"{block_id} (stage {stage})" if name == block_id else f"{name}'"
        return name

    def end(self) -> None:
        """End a block: what follows belongs to none."""
        _annotate(NO_BLOCK, None)


_PLACING: ContextVar[_Placing | None] = ContextVar("placing", default=None)


@answered_at_capture
def placing_now() -> _Placing | None:
    """Return the placing of the capture that runs at this moment."""
    return _PLACING.get()


def number_of_region() -> int:
    """Return the next number for a region of the model, the same in every run of it; 0 outside of a capture."""
    placing = placing_now()
    if placing is None:
        return 0
    placing.num_regions += 1
    return placing.num_regions - 1


def _annotate(name: str, ipu: int | None) -> None:
    """Let all ops from now on carry a block."""
    # A new dictionary, since the nodes of ops before hold the old one.
    traceback.current_meta["custom"] = {**traceback.current_meta.get("custom", {}), BLOCK_KEY: (name, ipu)}


@contextlib.contextmanager
def placing(strategy: _IExecutionStrategy) -> Iterator[_Placing]:
    """Let blocks take effect within; an executor wraps this around each run of a model that is captured.

    Args:
        strategy: How blocks become stages.

    Yields:
        What was placed, to be read at the end.
    """
    with traceback.annotate({}):
        placed = _Placing(strategy)
        token = _PLACING.set(placed)
        try:
            yield placed
        finally:
            _PLACING.reset(token)


def refuse_ops_outside(ops: Iterable[Op]) -> None:
    """Refuse ops between the end of one block and the beginning of the next.

    Args:
        ops: Ops of a graph, of which those of the forward are asked.

    Raises:
        Error: There is such an op; the first one is named, with the user's line.
    """
    for op in ops:
        if op.leg is Leg.FORWARD and op.block is not None and op.block[0] == NO_BLOCK:
            raise createPoptorchError(
                "No active Block, all the ops must belong to a Block\n"
                f"  op      {op.target}, which comes after the end of a Block\n"
                f"  source  {op.source}\n"
                "  do      put it into a Block too, or begin one there: poptorch.Block.start(name, ipu_id=...)"
            )


def warn_of_unused(strategy: _IExecutionStrategy, begun: Iterable[str]) -> None:
    """Warn of blocks that a strategy lists and that never began: a name may be misspelt.

    Args:
        strategy: That of the program.
        begun: Names of the blocks that began.
    """
    names = dict.fromkeys(begun)
    unused = [name for name in strategy.listed_blocks() if name not in names]
    if unused:
        logger.warning(
            "The execution strategy lists blocks that the model never begins: %s. Those that it begins: %s",
            ", ".join(map(repr, unused)), ", ".join(map(repr, names)) or "none",
        )


def check_depth(
    strategy: _IExecutionStrategy, ipus: list[int], *, gradient_accumulation: int, device_iterations: int,
    is_training: bool,
) -> None:
    """Refuse a pipeline that one call cannot fill.

    Args:
        strategy: Only pipelines are concerned.
        ipus: IPU of each block in the order in which they began.
        gradient_accumulation: Micro-batches of a weight update.
        device_iterations: Micro-batches of an inference call.
        is_training: Which of the two counts.

    Raises:
        Error: It is too small.
    """
    stages = num_forward_stages(ipus)
    if not isinstance(strategy, PipelinedExecution) or stages == 1:
        return
    if is_training:
        total = 2 * stages - 1
        if gradient_accumulation < total:
            raise createPoptorchError(
                "poptorch.Options().Training.gradientAccumulation must be greater than or equal to the number of "
                f"pipeline stages ({total}) when using poptorch.PipelinedExecution. Please note that a model with "
                f"{stages} pipeline stages in PopTorch will have an additional {total - stages} stages when training. "
                f"It is {gradient_accumulation}; poptorch.ShardedExecution has no such limit."
                + _grid(ipus, gradient_accumulation, is_training=True)
            )
    elif device_iterations < stages:
        raise createPoptorchError(
            "poptorch.Options().deviceIterations must be greater than or equal to the number of pipeline stages "
            f"({stages}) when using poptorch.PipelinedExecution. It is {device_iterations}; "
            "poptorch.ShardedExecution has no such limit." + _grid(ipus, device_iterations, is_training=False)
        )


def _grid(ipus: list[int], micro_batches: int, *, is_training: bool) -> str:
    """Return the schedule of a pipeline that is too short, with an arrow where it runs out of micro-batches."""
    ipu_by_stage = [0]
    for ipu in ipus:
        if ipu != ipu_by_stage[-1]:
            ipu_by_stage.append(ipu)
    try:
        make_schedule(len(ipu_by_stage), ipu_by_stage, micro_batches, "pipelined", is_training)
    except ScheduleError as error:
        return "".join(f"\n  {line}" for line in error.detail.splitlines())
    return ""
