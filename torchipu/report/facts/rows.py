"""The tables of a report, a class for the rows of each. ``profile.pop`` has a table with these columns for each."""

from __future__ import annotations

from typing import NamedTuple


class Fact(NamedTuple):
    """A number or a word about the whole program.

    Attributes:
        name: Such as ``cycles_per_update``.
        value: As JSON.
        unit: ``cycles``, ``B``, ``samples/s`` ... or nothing.
        confidence: ``measured``, ``modelled``, ``estimate``, or ``exact`` for what is no prediction.
    """

    name: str
    value: str
    unit: str
    confidence: str


class Operation(NamedTuple):
    """An op, over all runs of an iteration.

    Attributes:
        number: From 0, in the order in which the program first reaches them.
        name: Of its first result.
        kind: Of its record; ``generic`` without one.
        target: ATen overload.
        leg: ``forward``, ``backward`` or ``update``.
        block: Block of the user.
        ipu: Where it runs.
        stage: Pipeline stage.
        module: Path of the module whose forward held it.
        file: Of the user's line; empty where unknown.
        line: From 1; 0 where unknown.
        code: The line's text.
        result: Element type and sizes of the first result.
        flops: Two for each multiplication of a product, one for each element that other arithmetic computes.
        runs: Of the op.
        cycles: All of the op: compute, exchange and sync.
        compute: Cycles.
        exchange: Cycles.
        sync: Cycles.
        exchanged_bytes: That its exchanges move.
        code_bytes: Of its codelets, on a tile.
        is_recomputed: Whether the backward runs it again.
        confidence: ``modelled``, or ``estimate`` where the op has no record.
        recomputes: Name of the op that it computes again; empty for others.
        callers: JSON list of ``[file, line, code]``: the user's lines that led to this one, the outermost first.
    """

    number: int
    name: str
    kind: str
    target: str
    leg: str
    block: str
    ipu: int
    stage: int
    module: str
    file: str
    line: int
    code: str
    result: str
    flops: int
    runs: int
    cycles: int
    compute: int
    exchange: int
    sync: int
    exchanged_bytes: int
    code_bytes: int
    is_recomputed: bool
    confidence: str
    recomputes: str
    callers: str


class Function(NamedTuple):
    """A function of the program.

    Attributes:
        name: ``0F`` is the forward of stage 0.
        cycles: Of one run.
        runs: In an iteration.
        recompute: Cycles among those of one run that compute forward ops again.
    """

    name: str
    cycles: int
    runs: int
    recompute: int


class Step(NamedTuple):
    """A superstep of a function, or a part of it.

    Attributes:
        function: Where it is.
        number: From 0, in order.
        category: ``compute``, ``exchange``, ``sync``, ``link``, ``all-reduce`` or ``host``.
        name: Compute set, stream or kind.
        operation: Number of the op; -1 for none.
        begin: Cycle from the begin of the function.
        cycles: Of one run.
        runs: In one run of the function.
        overlaps: Whether it runs beside the others.
        exchanged_bytes: That it moves in one run.
        vertices: That run.
        codelets: Their names.
        tile_balance: Mean of the cycles of all tiles over those of the slowest, 0 to 1.
        program: Number of its program.
        cycles_by_tile: Pattern of the cycles of one run; -1 where no vertices run.
    """

    function: str
    number: int
    category: str
    name: str
    operation: int
    begin: int
    cycles: int
    runs: int
    overlaps: bool
    exchanged_bytes: int
    vertices: int
    codelets: str
    tile_balance: float
    program: int
    cycles_by_tile: int


class Run(NamedTuple):
    """A run of a function in an iteration.

    Attributes:
        number: From 0.
        ipu: Where it runs.
        function: Which one; empty for what is no function, such as copies between IPUs.
        action: Such as ``0F3``.
        micro_batch: From 0; -1 for none.
        kind: ``forward``, ``backward``, ``all-reduce``, ``scaling``, ``update``, ``link`` or ``transfer``.
        begin: Cycle.
        end: Cycle after the last.
        recompute: Cycles from its begin on that compute forward ops again.
    """

    number: int
    ipu: int
    function: str
    action: str
    micro_batch: int
    kind: str
    begin: int
    end: int
    recompute: int


class Variable(NamedTuple):
    """A variable of the program.

    Attributes:
        number: From 0.
        name: As in the program's text.
        ipu: Whose tiles hold it.
        dtype: Element type.
        shape: Sizes, with commas.
        role: What it is to the model.
        bytes: Of all copies on all tiles.
        depth: Copies.
        always: Whether it is held all the time.
        off_chip: Whether it lies in Streaming Memory.
        begin: First superstep of liveness that holds it.
        end: The last.
        address: In each of its tiles.
        address_end: Byte after its last.
        operation: Number of the op that makes it; -1 for none.
    """

    number: int
    name: str
    ipu: int
    dtype: str
    shape: str
    role: str
    bytes: int
    depth: int
    always: bool
    off_chip: bool
    begin: int
    end: int
    address: int
    address_end: int
    operation: int


class Share(NamedTuple):
    """Bytes of a variable on some tiles that follow each other.

    Attributes:
        variable: Its number.
        first_tile: The first of them.
        end_tile: The tile after the last.
        bytes: On each.
    """

    variable: int
    first_tile: int
    end_tile: int
    bytes: int


class Tile(NamedTuple):
    """A tile at its own peak.

    Attributes:
        ipu: Its IPU.
        tile: Its number.
        including_gaps: Bytes up to which it is filled.
        excluding_gaps: Bytes in use.
        always: Bytes that are held all the time.
        step: Superstep of liveness at the peak; 0 where nothing passing is held.
    """

    ipu: int
    tile: int
    including_gaps: int
    excluding_gaps: int
    always: int
    step: int


class TileCategory(NamedTuple):
    """Bytes of a tile at its peak by what they are for.

    Attributes:
        ipu: Its IPU.
        tile: Its number.
        category: ``weights``, ``code`` ...; ``gap`` for what lies unused.
        bytes: More than 0.
    """

    ipu: int
    tile: int
    category: str
    bytes: int


class LiveStep(NamedTuple):
    """A superstep of liveness.

    Attributes:
        step: Its number; the same on all IPUs.
        ipu: Where vertices run.
        function: In which function.
        name: Compute set.
        operation: Number of the op; -1 for none.
        live_bytes: On all tiles, of what is not held all the time.
        fullest_bytes: How far the fullest tile is filled.
        temporary_bytes: Of the vertices, on each tile that runs some; among both of these.
        vertices_by_tile: Pattern of the vertices that need them.
        control_bytes: Control code and vertex state on each tile that runs some; 0 where these are what an earlier
            step has brought.
    """

    step: int
    ipu: int
    function: str
    name: str
    operation: int
    live_bytes: int
    fullest_bytes: int
    temporary_bytes: int
    vertices_by_tile: int
    control_bytes: int


class Exchange(NamedTuple):
    """An exchange between the tiles of an IPU; those that have the same code are one.

    Attributes:
        number: From 0.
        ipu: Whose tiles exchange.
        variables: JSON list of numbers of the variables that are sent.
        bytes: That are moved in one run.
        busiest_bytes: That the busiest tile receives.
        fragments: Contiguous pieces that it receives.
        code_bytes: Of code on each tile of the IPU.
    """

    number: int
    ipu: int
    variables: str
    bytes: int
    busiest_bytes: int
    fragments: int
    code_bytes: int


class Setting(NamedTuple):
    """An option or a fact of the environment.

    Attributes:
        kind: ``options``, ``environment``, or the file that says it: ``app.json`` or ``framework.json``.
        name: Of the option.
        value: As text.
        usual: The default; the same text where it is not changed.
    """

    kind: str
    name: str
    value: str
    usual: str


class Advice(NamedTuple):
    """What would make a program better.

    Attributes:
        number: From 0, what gains most first.
        rule: Short name of what was found.
        finding: What was found, with figures.
        remedy: What to do.
        option: What to set, as it is written; empty where no option does it.
        gain: What the model predicts of it; empty where it was not tried.
        file: Of the user's line; empty where there is none.
        line: From 1; 0 where there is none.
    """

    number: int
    rule: str
    finding: str
    remedy: str
    option: str
    gain: str
    file: str
    line: int


class Flow(NamedTuple):
    """A value that an op takes from another.

    Attributes:
        source: Number of the op that computes it.
        target: Number of the op that takes it.
        tensor: Its name.
        bytes: Of the value.
    """

    source: int
    target: int
    tensor: str
    bytes: int


class Alternative(NamedTuple):
    """A change nearby that was compiled, with what the model predicts of it.

    Attributes:
        number: From 0; the first is the program as it is.
        change: What is changed, in words.
        option: What to set, as it is written; empty for the program as it is.
        fits: Whether every tile holds what it needs.
        fullest_tile_bytes: Of all IPUs; 0 where the change is refused.
        cycles_per_update: Cycles; 0 where the change is refused.
        samples_per_second: Of all replicas; 0 where the change is refused.
        command: Shell command that predicts it for a script; empty where no option does it. Where the change is
            refused, the reason.
    """

    number: int
    change: str
    option: str
    fits: bool
    fullest_tile_bytes: int
    cycles_per_update: int
    samples_per_second: float
    command: str


class HostTime(NamedTuple):
    """Where the time of the host went since the program was compiled.

    Attributes:
        number: From 0, the longest first.
        name: Of a kernel, an ATen overload, or what was waited for.
        kind: ``kernel``, ``aten``, ``exchange``, ``python`` (what surrounds the engine), ``loader`` (waits for a
            batch of a ``DataLoader``), or ``between calls`` (everything else since the call before).
        calls: How often.
        microseconds: Altogether.
        share: Of all rows, 0 to 1.
        gflops: Achieved; 0 where it computes nothing that is counted.
        gbytes: Achieved GB/s of operands and results; 0 where unknown.
        confidence: ``measured``.
    """

    number: int
    name: str
    kind: str
    calls: int
    microseconds: float
    share: float
    gflops: float
    gbytes: float
    confidence: str


class TensorNumerics(NamedTuple):
    """Magnitudes of a result in the last call.

    Attributes:
        tensor: Its name.
        operation: Number of the op that makes it; -1 where the device program has none of it.
        elements: How many, over all micro-batches.
        overflows: Elements that are infinite, or floats beyond what a half holds.
        nans: Elements that are no number.
        underflow_share: Share of the elements that are not zero which a half would turn into zero, 0 to 1.
        smallest: Power of two below the smallest magnitude that is not zero; 0 where all are zero.
        largest: Largest finite magnitude.
        exponents: JSON list of ``[exponent, count]``: magnitudes from 2^exponent on, without zeros, infinities and NaN.
    """

    tensor: str
    operation: int
    elements: int
    overflows: int
    nans: int
    underflow_share: float
    smallest: float
    largest: float
    exponents: str


class CompileEvent(NamedTuple):
    """Something that happened before the program could run.

    Attributes:
        number: From 0.
        name: Of the pass, the function or the program.
        kind: ``capture``, ``pass``, ``plan``, ``recompilation``, ``graph break``, ``eager frame`` or ``cache hit``.
        milliseconds: That it took; 0 where it was not timed.
        detail: The reason, such as the guard that failed, with its line.
    """

    number: int
    name: str
    kind: str
    milliseconds: float
    detail: str


class StageRow(NamedTuple):
    """A stage of the pipeline.

    Attributes:
        number: From 0.
        ipu: Where it runs.
        blocks: Names of its blocks, with commas.
        forward: Cycles of a micro-batch's forward.
        backward: Cycles of its backward.
        recompute: Cycles of the backward that compute the forward again.
        stashes: Variables of which it holds copies for several micro-batches.
        stash_bytes: Of all their copies on all tiles.
        depth: Most copies of one of them.
        is_critical: Whether its IPU, which is busy longest, spends most time in it: all others wait for it.
    """

    number: int
    ipu: int
    blocks: str
    forward: int
    backward: int
    recompute: int
    stashes: int
    stash_bytes: int
    depth: int
    is_critical: bool


class Program(NamedTuple):
    """A program in Poplar's sense: what an entry point or a function is made of.

    Attributes:
        number: From 0, in the order in which they are written down.
        parent: Number of the one that holds it; -1 for entry points and functions.
        type: ``OnTileExecute``, ``DoExchange``, ``Sequence`` ..., as Poplar names them.
        name: Of an entry point, function, compute set or stream, or its kind.
        function: That a call runs; empty for others.
        repeats: How often it runs what it holds.
        ipu: Where it runs; -1 where that is not one.
        to_device: Whether a stream goes to the device.
    """

    number: int
    parent: int
    type: str
    name: str
    function: str
    repeats: int
    ipu: int
    to_device: bool


class ProgramVariable(NamedTuple):
    """A variable that a program reads or writes.

    Attributes:
        program: Its number.
        variable: Its number.
    """

    program: int
    variable: int


class Vertices(NamedTuple):
    """Vertices of one codelet in a compute set.

    Attributes:
        program: Number of the program that runs them.
        codelet: Their codelet.
        vertices: How many.
        fields: Variables that each is connected to.
        cycles: Of the slowest.
        by_tile: Pattern of how many run on each tile.
    """

    program: int
    codelet: str
    vertices: int
    fields: int
    cycles: int
    by_tile: int


class Codelet(NamedTuple):
    """Code that vertices run.

    Attributes:
        codelet: Its name.
        ipu: An IPU with vertices of it.
        bytes: Of code on each tile of the IPU, which all hold it.
        vertices: Of all compute sets on the IPU.
        by_tile: Pattern of these on each tile.
    """

    codelet: str
    ipu: int
    bytes: int
    vertices: int
    by_tile: int


class Pattern(NamedTuple):
    """A part of numbers by tile, which many steps have in common; tiles without a part have 0.

    Attributes:
        pattern: Its number.
        first_tile: The first of tiles that follow each other.
        end_tile: The tile after the last.
        value: Of each of them.
    """

    pattern: int
    first_tile: int
    end_tile: int
    value: int


TABLES: dict[str, type[NamedTuple]] = {
    "facts": Fact, "operations": Operation, "functions": Function, "steps": Step, "runs": Run, "variables": Variable,
    "shares": Share, "tiles": Tile, "tile_categories": TileCategory, "liveness": LiveStep, "settings": Setting,
    "advice": Advice, "flows": Flow, "alternatives": Alternative, "host": HostTime, "numerics": TensorNumerics,
    "compile": CompileEvent, "stages": StageRow,
    "programs": Program, "program_variables": ProgramVariable, "vertices": Vertices, "codelets": Codelet,
    "exchanges": Exchange, "patterns": Pattern,
}
"""Rows by table."""
