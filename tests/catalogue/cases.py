"""The cases of the catalogue: what is done to torchipu, and what its user must get."""

from __future__ import annotations

from dataclasses import dataclass

INPUTS, MODELS, OPTIONS, RUNNING, FILES, PROCESSES, TOOLS = PARTS = (
    "Inputs", "Models and operators", "Options and placement", "Running", "Files and caches",
    "Processes and data loading", "Reports, environment, installation",
)


@dataclass(frozen=True, slots=True)
class Case:
    """One of the catalogue.

    Attributes:
        number: Its own, for good: a case that goes leaves a gap.
        part: One of `PARTS`.
        what: What is done.
        outcome: What the user gets.
    """

    number: int
    part: str
    what: str
    outcome: str


def _numbered(*parts: tuple[str, tuple[tuple[str, str], ...]]) -> dict[int, Case]:
    """Return the cases by their numbers, which run through all parts."""
    rows = [(part, what, outcome) for part, cases in parts for what, outcome in cases]
    return {number: Case(number, *row) for number, row in enumerate(rows, start=1)}


CASES = _numbered(
    (INPUTS, (
        ("an input whose strides are not those of a fresh tensor: transposed, stepped, expanded, channels last, with "
         "an offset", "the result of eager"),
        ("an input that torch keeps conjugated or negated by a bit", "the result of eager"),
        ("an input, an intermediate or a batch without elements", "the result of eager"),
        ("an input without elements, through PopTorch", "PopTorch's refusal, with the shape"),
        ("an input of no dimensions", "the result of eager; PopTorch counts it as a batch of one"),
        ("inputs that are numbers, strings, None, or tensors nested in lists, dicts and classes",
         "the result of eager; PopTorch refuses another value than that of the capture"),
        ("an input of float64", "float32 inside, float64 outside and one warning; refused under strict"),
        ("integers beyond 32 bits", "the result of eager; PopTorch, whose integers have 32, refuses with "
         "value, place and input"),
        ("a complex, quantised, sparse, nested or meta tensor", "the result of eager, or a refusal with the kind"),
        ("an input of bfloat16", "float32 inside, bfloat16 outside and one warning; refused under strict"),
        ("an input that wants a gradient", "the gradient of eager; PopTorch takes it out of the graph"),
        ("an input of inference mode, or of memory that cannot be written", "the result of eager, input untouched"),
        ("a forward that writes into its input", "the input holds what eager writes; a step warns that it does not"),
        ("two inputs in the same memory, one of them written", "what eager does, or a refusal"),
        ("an output that is an input, or a view of one, or shares memory with another", "memory shared as in eager"),
        ("a result that is kept while the model runs on", "it keeps its values"),
        ("a batch of an asynchronous loader that is kept after the next",
         "documented: it is written anew, and clone() keeps"),
        ("an input that no tile memory holds", "out of memory at compile time, with bytes and limit"),
        ("inputs with NaN and infinities", "NaN and infinities where eager has them"),
    )),
    (MODELS, (
        ("operators that no table knows", "one refusal that names all of them and their lines"),
        ("a known operator with a type or argument that it does not take", "a refusal that names the argument"),
        ("CTC loss without reduction, through PopTorch", "PopTorch's refusal"),
        ("CTC loss with targets in one row", "a refusal that says how to pad them; never another loss"),
        ("recurrent layers that PopTorch lacks", "eager's result or PopTorch's words"),
        ("interpolation that PopTorch lacks", "eager's result or PopTorch's words"),
        ("branches on values, .item(), print, nonzero", "a break of the graph that is counted; strict refuses"),
        ("a Python branch on a tensor, through PopTorch", "PopTorch's refusal, with the line"),
        ("logging, clipping and hooks within a Lightning step", "done, or refused with the method"),
        ("random operators", "the same bits for the same seed"),
        ("train() or eval() after the first call", "torch.compile compiles again; PopTorch keeps the first"),
        ("a buffer that forward assigns anew, through PopTorch", "PopTorch's refusal with the way out"),
        ("a buffer that forward removes, through PopTorch", "PopTorch's refusal"),
        ("a buffer that replicas write", "a refusal that names the option"),
        ("parameters that two modules share", "still shared after a step, held once"),
        ("a parameter that is replaced or resized after the first call", "compiled again, eager's result"),
        ("a model without parameters, results or ops", "eager's result"),
        ("3,000 layers in a row", "a result, without RecursionError"),
        ("more recompilations than Dynamo allows", "one warning that eager goes on; strict refuses"),
        ("Dynamo told to suppress errors", "a warning that eager computed"),
        ("backward() called by the user, through PopTorch", "PopTorch's refusal"),
        ("several losses, none, or one that is not the last op", "a refusal that names identity_loss"),
        ("an autograd Function or custom op of the user's that fails", "the user's own error"),
        ("a pass of torchipu that fails", "an error that says it is a defect, with a script that repeats it"),
    )),
    (OPTIONS, (
        ("a batch that replicas, accumulation and iterations do not divide", "a refusal with the sizes that would do"),
        ("a dataset that the batch does not divide", "a warning with what is left; silent when it is dropped"),
        ("a block that is listed and never runs", "a warning or refusal with its name"),
        ("a block that runs and is not listed", "a refusal with its name and those known"),
        ("a block in two stages", "a refusal with the stages"),
        ("ops outside all blocks", "on the first IPU, or a refusal that names the op"),
        ("a module that is put into a second block", "a refusal"),
        ("an IPU that the system does not have, or below 0", "a refusal with the IPUs there are"),
        ("IPUs that are no power of two", "rounded up where asked, else refused with the option"),
        ("more IPUs than a system has", "a refusal with both numbers"),
        ("too little accumulation or too few iterations for the pipeline", "a refusal with the least"),
        ("stages without an IPU", "a refusal with the stage"),
        ("options that change after they were used", "a refusal that names clone()"),
        ("an unknown option", "a refusal with the nearest name"),
        ("options of the wrong type or out of range", "a refusal with value and range"),
        ("a model that is wrapped twice, or none", "PopTorch's refusal"),
        ("engine options in the environment that are no JSON object", "a warning with the place; they are ignored"),
    )),
    (RUNNING, (
        ("overflow, division by zero or NaN with exceptions on", "an error with op, line, place and value; weights as "
         "before"),
        ("overflow, division by zero or NaN with exceptions off", "NaN or infinity, counted"),
        ("another shape, type or number of inputs after PopTorch compiled", "PopTorch's refusal with both shapes"),
        ("another shape or type of inputs after torch.compile compiled", "compiled again, eager's result"),
        ("labels left out, or arguments too many", "a refusal with the name or number"),
        ("a program that tile memory does not hold", "out of memory with tile, bytes, variables and advice"),
        ("calls that need a compiled program before there is one", "a refusal that says so"),
        ("weights written on the host after the first call", "taken at the next call, or one warning that they are "
         "not"),
        ("an optimiser of another kind, or with attributes unknown", "a refusal with both kinds"),
        ("Ctrl-C at any moment", "KeyboardInterrupt; the next call works"),
        ("threads that call one model at once", "eager's result for each"),
        ("a call of the model from its own hook", "a refusal, or eager's result"),
        ("an exception in a CPU op or in a dataset", "that exception, with its own lines"),
    )),
    (FILES, (
        ("an executable cut or with a flipped bit", "a refusal that names the file and what is damaged"),
        ("a file of a newer format", "a refusal with both versions"),
        ("a file of an older format", "read, or a refusal that says to write it again"),
        ("an executable for another target, or with other options", "a refusal that names each difference"),
        ("a pickle, an archive, a folder, a pipe, an empty or a huge file", "a refusal; nothing is executed"),
        ("an executable that was saved without its model, loaded with it", "a refusal that names the other call"),
        ("weights that do not fit the program", "a refusal with the first name and both shapes"),
        ("a place that is missing, read-only or full", "OSError with the path; the old file stays"),
        ("a cache folder that cannot be used or is not one's own", "one warning, and no cache"),
        ("a damaged entry of the cache", "compiled again, the entry is replaced"),
        ("a disk that fills while an entry is written", "one warning, training goes on"),
        ("processes that compile the same program at once", "each right, and no damaged entry"),
        ("the holder of a cache's lock killed or frozen", "the others go on"),
        ("two versions of torchipu with one cache", "neither takes the other's entries"),
        ("an entry that is removed while it is read", "compiled again"),
    )),
    (PROCESSES, (
        ("a worker that is killed", "all end, and the rank and signal are told"),
        ("a worker that is frozen", "an error after the timeout, with the rank"),
        ("a worker that raises", "its own lines first"),
        ("seeds that differ between processes that shuffle", "refused on every rank"),
        ("shapes, models or options that differ between processes", "refused on every rank, with the values"),
        ("replicas that the processes do not divide", "a refusal with both numbers"),
        ("an address in use, or a rank that never comes", "an error with address and ranks"),
        ("a launcher that is killed", "its processes end"),
        ("workers forked after the model has run", "no hang"),
        ("a loader's worker that dies or raises, an empty dataset", "an error with the worker's lines"),
        ("batch samplers and iterable datasets with several processes", "PopTorch's words"),
    )),
    (TOOLS, (
        ("the report of a run that failed or ran out of memory", "a page of what there is, marked as incomplete"),
        ("layers whose names are scripts or in other alphabets", "a page that shows them as text"),
        ("a profile that is newer, cut or being written", "an error, or what there is"),
        ("another torch, kernels that are not built, a CPU without AVX2", "an error with versions and what to do"),
        ("python -O, -W error, no home, no terminal, a plain locale, paths with spaces", "a step as usual"),
    )),
)
