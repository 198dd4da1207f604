"""The figures by which reliability is told: least, goal, and where each comes from."""

from __future__ import annotations

from dataclasses import dataclass

from tests.report.features import OWN, POPVISION, count_of


@dataclass(frozen=True, slots=True)
class Row:
    """A figure.

    Attributes:
        what: Is counted.
        least: What must be.
        goal: What is aimed at.
        runs: Names of `tests.reliability.runs.RUNS`, with a text of what each found, in braces by its names.
        tests: Files and tests below ``tests`` that hold it.
        said: What no run tells.
    """

    what: str
    least: str
    goal: str
    runs: tuple[tuple[str, str], ...] = ()
    tests: tuple[str, ...] = ()
    said: str = ""


_FUZZED = "{ok:,} of {programs:,} right, {wrong} wrong, {error} errors, {crash} crashes, {hang} hangs; " \
          "each seed once, by the version of its day"
_REACHED = "by those of `make test` and the processes that they start: {all reached:,} of {all lines:,} lines of " \
           "functions; readers {readers reached:,} of {readers lines:,}, cache {cache reached:,} of {cache lines:,}, " \
           "memory {memory reached:,} of {memory lines:,}, schedule {schedule reached:,} of {schedule lines:,}"
# By coverage 7.17 with --branch, in the process of the tests alone: what others run that they start is not counted.
_BRANCHES = "with branches 99 of 100 of `stored`, `cache` and `device/schedule.py` by the tests nearest to them; " \
            "elsewhere not measured"
ROWS = (
    Row("float32 samples of OpInfo, forward and backward: wrong, error, crash, hang",
        "three operators of four pass whole, the others are refused; 0, 0, 0, 0",
        "19 operators of 20 pass whole, in other types too; all gradients",
        (("opinfo", "{wrong}, {error}, {crash}, {hang} of {samples:,} samples ({right:,} right, {refused} refused, "
                    "{of torch} that torch itself does not trace); {whole} of {operators} operators pass whole"),)),
    Row("wrong arguments of OpInfo: the kind of exception that eager raises, or ours", "690 of 696, no crash", "all",
        (("error_inputs", "{same:,} of {inputs:,}; {of torch} more that the graph of torch does not refuse so "
                          "either, {other} of another kind, {accepted} accepted"),)),
    Row("modules and optimisers of torch's own databases, one step and three, beside eager", "100 of 114 and 10 of 15",
        "all that eager has on the CPU",
        (("modules", "{modules right} of {modules} modules, {optimisers right} of {optimisers} optimisers"),)),
    Row("models of NNSmith, forward and backward: mismatches", "0 of 10,000", "0 of a million",
        (("nnsmith", _FUZZED),)),
    Row("random programs with views, writes, halves and blocks: mismatches", "0 of 50,000",
        "to the last bit, beside the machine that judges",
        (("graphs", _FUZZED), ("wide", "of a wide vocabulary: " + _FUZZED), ("large", "of large sizes: " + _FUZZED),
         ("special", "on NaN, infinities, ties, the ends of integers and nothing: " + _FUZZED),
         ("networks", "convolution networks in training, with checkpoints and compiled autograd: " + _FUZZED))),
    Row("faults put into the code that the tests catch", "19 of 20, of 300", "all in numerics, memory, schedule, files",
        (("mutants", "{caught} of {mutants} caught, {nearest} of them by the tests nearest to them; each once, by the "
                     "version of its day, {as it is} of them in files as they are now"),)),
    Row("size of a failing program once it is cut down", "5 nodes or fewer, within 60 s",
        "the tile and the superstep that differ first", (), ("fuzz/test_fuzz.py",)),
    Row("bytes that differ between runs that must agree", "0 over 200 models and 8 conditions",
        "0 across machines with other vector units",
        (("determinism", "{differ} of {comparisons:,} comparisons ({models} models, {conditions} conditions)"),)),
    Row("device programs, superstep by superstep, beside the slow machine", "1,000 programs, no divergence",
        "a million supersteps of random programs", (), ("device/tiles", "device/test_damage.py"),
        "; 3 of 100 of the random programs above run on the bytes of the tiles too"),
    Row("rounding to half: all floats, all halves", "no difference", "all pairs, 8-bit floats too", (),
        ("numerics/test_rounding.py", "numerics/test_fp8.py")),
    Row("stochastic rounding, given the random bits", "as gfloat rounds", "the same where products are written back",
        (), ("numerics/test_rounding.py",)),
    Row("stochastic rounding, seen from outside: unbiased", "wrong variants noticed, no false alarm",
        "independent between tiles and calls", (), ("numerics/test_rounding.py", "numerics/test_rounding_in_steps.py")),
    Row("random bits beside published answers", "equal", "a statistical suite", (), ("kernels/test_random.py",)),
    Row("hostile files: code executed", "0 of 200; nothing in a static scan", "signed executables",
        (("files", "{executed} of {files:,} files, {readers} readers; {wrong} without a clear error; each seed "
                   "once, by the version of its day"),),
        ("security/test_static_scan.py",)),
    Row("readers of files fed with changed ones: errors that are none of ours", "0 of ten million",
        "a day, led by coverage", (("files", "{wrong} of {files:,}"),)),
    Row("truncations and changed bytes noticed", "all, on three files", "all, on each kind of file", (),
        ("catalogue/test_files.py", "cache/test_store.py")),
    Row("writers of the compile cache killed: damaged reads, lost entries", "0 and 0 of 1,000", "power cuts too",
        (("kills", "{corrupt} of {reads:,} reads damaged, {lost} of {committed:,} entries lost, {kills:,} kills"),
         ("naive_kills", "control, a writer that overwrites: {naive corrupt:,} of {naive reads:,} damaged"))),
    Row("the n-th call of open, write, read, fsync, rename, unlink fails", "every n: no crash, nothing torn",
        "memory too", (), ("cache/test_store.py", "report/test_nth_call.py")),
    Row("several instances: killed, stopped, failing at any moment", "120 of 120 end with cause and rank, soon",
        "and go on from the checkpoint, bit for bit",
        (("faults", "{cases} of {all cases} run, {wrong} not as they must be; each by the version of its day"),)),
    Row("instances that disagree", "12 of 12 an error on every rank before anything is exchanged", "the same", (),
        ("distributed/test_handshake.py",)),
    Row("findings of sanitizers over the kernels, engine and threads", "0", "0 without the interpreter's lock too",
        (("checked", "address, undefined behaviour: {failed} of {tests:,} tests of kernels"),
         ("races", "ThreadSanitizer on the pool: {races} races in 3 x {programs:,} programs, of which workers "
                   "took {away:,} chunks"),
         ("memcheck", "valgrind, with AVX2: {findings} findings with a kernel among the callers in {files} of "
                      "{all files} files of tests of kernels, {tests} tests, {failed} failed; each file once, by the "
                      "version of its day"))),
    Row("threads and forks", "0 wrong of 8 x 1,000 calls, 0 hangs of 100 loaders", "without the interpreter's lock",
        (("callers", "{wrong} wrong of {calls:,} calls in {threads} threads, {failed} threads failed"),
         ("forks", "{hangs} hangs and {wrong} wrong of {loaders} loaders"))),
    Row("state of the process that importing changes", "0 of 12 kinds", "the same", (), ("test_packaging.py",)),
    Row("memory", "no more than 1 MiB over 100,000 calls", "flat over a million",
        (("memory", "{grown} of {doors} doors grew by more over {calls:,} calls each"),)),
    Row("Ctrl-C", "within 0.5 s running and 1 s compiling, 50 moments each, all as before and usable", "the same",
        (("interrupts",
          "slowest of {compile} in torch.compile {compile slowest, s} s, of {capture} in the capture of a step "
          "{capture slowest, s} s, of {step} in a step {step slowest, s} s; {compile state changed} + "
          "{capture state changed} + {step state changed} states changed, {compile not usable after} + "
          "{capture not usable after} + {step not usable after} not usable after; in callbacks of torch's that drop "
          "what is raised: {compile dropped by torch} + {capture dropped by torch} + {step dropped by torch} more"),)),
    Row("deep graphs", "3,000 layers", "100,000 nodes", (), ("catalogue/test_models.py",)),
    Row("catalogue of bad input and faults", "104 of 104", "every message with what, where, why, what to do", (),
        ("catalogue",), "; [faults.md](faults.md) says which"),
    Row("a report in Chromium", "no request, no console error, no finding of axe", "five million events", (),
        ("report/browser",)),
    Row("traces: slices counted, events written", "equal", "the same", (), ("report/test_invariants.py",)),
    Row("features of PopVision", "30 of 36", "all, and 8 of our own", (), ("report/test_features.py",),
        f"; {count_of(POPVISION)} of {len(POPVISION)}, and {count_of(OWN)} of {len(OWN)} of our own: "
        "[report_features.md](report_features.md) says where"),
    Row("lines and branches that tests reach", "all of readers, cache, memory, schedule; 9 of 10 elsewhere",
        "every condition", (("reached", _REACHED),), said=_BRANCHES),
)
"""All, in the order of their numbers."""
