"""Graphs of any size by torch.compile: one capture and one set of graph passes, and the values of eager in float64."""

import copy
import gc
import logging
import math

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.nn import functional

from torchipu.backend import COUNTS, any_size, ipu_backend, symbolic
from torchipu.backend.any_size import specialise
from torchipu.backend.symbolic import SymbolicGraph
from torchipu.capture.symbols import Symbols
from torchipu.compiler import compile_graph
from torchipu.errors import OutOfTileMemoryError
from torchipu.host.bound_plan import BoundPlan
from torchipu.host.sized_plans import SizedPlans
from torchipu.ir.garbage import THRESHOLDS
from torchipu.ir.sizes import settled
from torchipu.ir.text import format_graph

TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}


@pytest.fixture(autouse=True)
def fresh():
    """Dynamo counts compilations by code, which all containers of torch's share."""
    torch._dynamo.reset()


class Attention(nn.Module):
    """Heads, a causal mask by size, a normalisation, and a residual."""

    def __init__(self):
        super().__init__()
        self.norm, self.project, self.out = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.project(self.norm(x)).view(batch, length, 3, 2, 4).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-1, -2)) / 2
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(later, float("-inf")).softmax(-1)
        return x + self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))


class Broadcasts(nn.Module):
    """Concatenations, slices, reductions and sums of different ranks."""

    def forward(self, x, y):
        joined = torch.cat([x, y, x[1:]], 0)
        position = torch.arange(joined.shape[0]).unsqueeze(1)
        return joined * position + joined.mean(0, keepdim=True), joined.amax(1), joined.flatten()[::2].sum()


def images():
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 4, 3, stride=2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2),
    )


CASES = {
    "a classifier by its batch": (
        lambda: nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 3), nn.LogSoftmax(-1)),
        [(7, 6), (5, 6), (33, 6), (1, 6), (6, 6)],
    ),
    "attention by batch and length": (
        Attention, [(2, 3, 8), (3, 5, 8), (5, 5, 8), (4, 17, 8), (1, 9, 8), (3, 1, 8)],
    ),
    "images by their size": (
        images, [(2, 3, 8, 8), (3, 3, 9, 9), (2, 3, 10, 7), (3, 3, 6, 21)],
    ),
}


def judge(run, model, args):
    """Compare results and gradients with those of eager in float64."""
    ours = [arg.clone().requires_grad_() for arg in args]
    exact = [arg.double().requires_grad_() for arg in args]
    twin = copy.deepcopy(model).double()
    model.zero_grad()
    got, expected = run(*ours), twin(*exact)
    got, expected = (value if isinstance(value, tuple) else (value,) for value in (got, expected))
    for mine, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(mine.double(), theirs, **TOLERANCE)
    sum((value * value).sum() for value in got).backward()
    sum((value * value).sum() for value in expected).backward()
    pairs = [*zip(ours, exact, strict=True), *zip(model.parameters(), twin.parameters(), strict=True)]
    for mine, theirs in pairs:
        torch.testing.assert_close(mine.grad.double(), theirs.grad, **TOLERANCE)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dynamic", [True, None], ids=["dynamic", "as torch finds"])
def test_trainings_of_all_sizes_are_those_of_eager(name, dynamic):
    make, shapes = CASES[name]
    torch.manual_seed(0)
    model = make()
    run = torch.compile(model, backend=ipu_backend, dynamic=dynamic, fullgraph=True)
    for shape in shapes:
        judge(run, model, [torch.randn(shape)])


def test_results_of_several_sizes_are_those_of_eager():
    model = Broadcasts()
    run = torch.compile(model, backend=ipu_backend, dynamic=True, fullgraph=True)
    for rows, more in ((3, 2), (4, 4), (2, 7), (9, 2), (5, 3)):
        judge(run, model, [torch.randn(rows, 4), torch.randn(more, 4)])


def test_all_sizes_share_one_capture_and_one_set_of_passes():
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3), nn.Softmax(-1))
    run = torch.compile(model, backend=ipu_backend, dynamic=True, fullgraph=True)
    before = copy.copy(COUNTS)
    with torch.no_grad():
        for batch in range(2, 42):
            x = torch.randn(batch, 6)
            torch.testing.assert_close(run(x), model(x), **TOLERANCE)
    assert COUNTS.graphs - before.graphs == 1
    assert COUNTS.passes - before.passes == 1
    assert COUNTS.programs - before.programs == 40
    assert COUNTS.device_programs - before.device_programs <= 4
    with torch.no_grad():
        run(torch.randn(17, 6))
    assert COUNTS.programs - before.programs == 40


class Heads(nn.Module):
    """Attention whose backward is given transposed, expanded and sliced views."""

    def __init__(self):
        super().__init__()
        self.project, self.scale = nn.Linear(8, 24), nn.Parameter(torch.ones(2))

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = [part.view(batch, length, 2, 4).transpose(1, 2) for part in self.project(x).chunk(3, -1)]
        scores = (q @ k.transpose(-1, -2)).softmax(-1) * self.scale[:, None, None].expand(2, length, length)
        return (scores @ v)[:, :, : length // 2].transpose(1, 2).flatten(2)


class Channels(nn.Module):
    """A convolution of what is transposed, by which an expanded view is multiplied."""

    def __init__(self):
        super().__init__()
        self.conv, self.gain = nn.Conv1d(8, 8, 3, padding=1), nn.Parameter(torch.ones(8))

    def forward(self, x):
        y = self.conv(x.transpose(1, 2))
        return torch.bmm(y, y.transpose(1, 2)) @ self.gain[None, :, None].expand(len(x), -1, x.shape[1]).tanh()


def written_slices(x):
    """Replace the first half of the steps, and scale the second one where it lies."""
    half = x.shape[1] // 2
    y = x.clone()
    y[:, :half] = 1.5
    y[:, half:] *= x[:, : x.shape[1] - half]
    return torch.slice_scatter(y, x[:, 1:half] * 3, 1, 0, half - 1).sin()


def part_of_a_mask(x):
    """Mask scores by the corner of a larger mask, and add the first positions of more."""
    length = x.shape[1]
    later = torch.ones(64, 64, dtype=torch.bool).triu(1)[:length, :length]
    placed = x + torch.linspace(0, 1, 64)[:length, None]
    return (placed @ x.transpose(1, 2)).masked_fill(later, float("-inf")).softmax(-1) @ placed[:, -length:]


OF_ALL_SIZES = {
    "saved views of heads": Heads, "saved views of channels": Channels, "writes into slices": lambda: written_slices,
    "slices up to a size": lambda: part_of_a_mask,
    "quotients of sizes in strides": lambda: lambda x: torch.cat(
        [x[:, : x.shape[1] // 2].sin().transpose(1, 2)] * 2, 2),
    "variances over a size": lambda: lambda x: (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True) + x.var(0).sum(),
    "factors made of sizes": lambda: lambda x: x.sin() * (1 / (x.shape[0] * x.shape[1])) + x / math.sqrt(x.shape[1]),
    "powers of sizes": lambda: lambda x: x.tanh() * x.shape[1] ** -0.5 * (x.shape[0] / 3) ** 2,
    "interpolation from any size to one": lambda: lambda x: functional.interpolate(
        x.transpose(1, 2), size=9, mode="linear"),
    "checked matrices": lambda: lambda x: torch.linalg.solve(x.transpose(1, 2) @ x + 9 * torch.eye(8), x[:, 0]),
    "one element of channels-last images": lambda: lambda x: functional.adaptive_avg_pool2d(
        x[:, None].expand(-1, 3, -1, -1).to(memory_format=torch.channels_last).cos(), 1),
    "one element of rows": lambda: lambda x: functional.adaptive_avg_pool1d(x.transpose(1, 2), 1),
    "LSTM": lambda: First(nn.LSTM(8, 5, num_layers=2, batch_first=True)),
    "GRU": lambda: First(nn.GRU(8, 5, bidirectional=True, batch_first=True)),
    "RNN": lambda: First(nn.RNN(8, 5, nonlinearity="relu", batch_first=True)),
}


class First(nn.Module):
    """The first result of a layer that has several."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)[0]


def judge_function(run, function, x):
    """Compare a function of one tensor, and its gradient, with eager's in float64 or, with constants, in float32."""
    if isinstance(function, nn.Module):
        judge(run, function, [x])
        return
    ours, exact = x.clone().requires_grad_(), x.clone().requires_grad_()
    got, expected = run(ours), function(exact)
    torch.testing.assert_close(got, expected, **TOLERANCE)
    (got * got).sum().backward()
    (expected * expected).sum().backward()
    torch.testing.assert_close(ours.grad, exact.grad, **TOLERANCE)


@pytest.mark.parametrize("name", OF_ALL_SIZES)
@pytest.mark.parametrize("dynamic", [True, None], ids=["dynamic", "as torch finds"])
def test_a_training_is_captured_once_for_all_sizes(name, dynamic):
    torch.manual_seed(0)
    function = OF_ALL_SIZES[name]()
    run = torch.compile(function, backend=ipu_backend, dynamic=dynamic, fullgraph=True)
    sizes = [(5, 14), (7, 18), (9, 22), (13, 26)]  # that equal nothing else in the model
    for number, (batch, length) in enumerate(sizes):
        before = copy.copy(COUNTS)
        judge_function(run, function, torch.randn(batch, length, 8))
        if number >= 2:  # torch itself has found what changes
            assert (COUNTS.graphs, COUNTS.passes) == (before.graphs, before.passes)
            assert COUNTS.programs == before.programs + 2


def test_roots_of_sizes_are_computed_anew_for_other_sizes():
    roots = []

    def function(x):
        roots.append(torch.sym_sqrt(x.shape[0] * x.shape[1]))
        return x * 2

    graph = make_fx(function, tracing_mode="symbolic")(torch.randn(3, 5))
    symbols = Symbols(any_size.placeholders(graph))
    root = symbols.read(roots[-1])
    assert settled(root, symbols.sizes.numbers([2, 8])) == 4


def test_a_pass_that_decides_by_a_size_runs_again():
    """A slice of all rows is no slice: for fewer rows than it takes, and for more, the graph is another one."""
    run = torch.compile(lambda x: x[:4] * 2, backend=ipu_backend, dynamic=True, fullgraph=True)
    for rows in (6, 3, 4, 9, 2, 5):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(run(x), x[:4] * 2)


@pytest.mark.parametrize("name", CASES)
def test_graphs_are_those_of_a_capture_with_these_sizes(name, monkeypatch):
    make, shapes = CASES[name]
    model, compared = make(), []
    settled = symbolic.SymbolicGraph.program

    def program(self, arguments):
        made = settled(self, arguments)
        imported = self.recipe.imported(specialise(self.module, arguments))
        static = compile_graph(imported.graph, self.recipe.options, self.recipe.target).graph
        compared.append((kinds_and_shapes(made.executor.sized.graph()), kinds_and_shapes(static)))
        return made

    monkeypatch.setattr(symbolic.SymbolicGraph, "program", program)
    run = torch.compile(model, backend=ipu_backend, dynamic=True, fullgraph=True)
    for shape in shapes[:3]:
        run(torch.randn(shape, requires_grad=True)).sum().backward()
    assert len(compared) == 6
    for ours, theirs in compared:
        assert ours == theirs


def kinds_and_shapes(graph):
    return [(op.kind, op.target, [t.shape for t in op.inputs], [t.shape for t in op.outputs]) for op in graph.ops]


@pytest.mark.parametrize("mode", ["symbolic", "fake"])
def test_unknown_sizes_are_those_of_tensors_or_numbers(mode):
    """Dynamo gives each size as a number too; other captures need not."""
    graph = make_fx(lambda x: x * 2, tracing_mode=mode)(torch.randn(3, 4))
    assert any_size.has_unknown_sizes(graph) == (mode == "symbolic")


def test_marks_and_the_argument_dynamic_are_torchs():
    def graphs(dynamic, mark, sizes):
        torch._dynamo.reset()
        run = torch.compile(lambda x: functional.gelu(x) * x.shape[0], backend=ipu_backend, dynamic=dynamic)
        before = COUNTS.graphs
        for size in sizes:
            x = torch.randn(size, 3)
            if mark:
                torch._dynamo.mark_dynamic(x, 0)
            torch.testing.assert_close(run(x), functional.gelu(x) * size)
        return COUNTS.graphs - before

    assert graphs(False, False, (4, 5, 6)) == 3
    assert graphs(True, False, (4, 5, 6)) == 1
    assert graphs(None, False, (4, 5, 6)) == 2
    assert graphs(None, True, (4, 5, 6)) == 1


def test_a_number_that_has_no_formula_is_captured_for_each_size():
    def scaled(x):
        return torch.relu(x) * math.log(x.shape[0])

    run = torch.compile(scaled, backend=ipu_backend, dynamic=True)
    before = COUNTS.programs
    for rows in (4, 5, 9):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(run(x), scaled(x))
    assert COUNTS.programs == before + 3


@pytest.mark.parametrize("between", [
    lambda x, w: torch.fft.irfft(torch.fft.rfft(x) * torch.fft.rfft(w).conj()),  # saves complex numbers
    lambda x, w: torch.view_as_real(torch.complex(x, w.expand_as(x)) * torch.fft.fft(x)).square(),
    lambda x, w: (x.double() * w.double().exp()).float(),  # saves doubles, which the device holds as floats
    lambda x, w: torch.fft.rfft(x).abs()[:, x.argsort(1)[0] % 4] * w[:1],  # saves places, held as int32
])
def test_what_is_saved_for_the_backward_is_taken_for_the_type_that_the_graph_says(between):
    run = torch.compile(between, backend=ipu_backend)
    for rows in (3, 5, 6):
        given = [torch.randn(rows, 8), torch.randn(8)]
        ours, exact = ([value.to(dtype).requires_grad_() for value in given] for dtype in (torch.float, torch.double))
        found, expected = run(*ours), between(*exact)
        torch.testing.assert_close(found.double(), expected.double(), **TOLERANCE)
        gradients = (torch.autograd.grad(result.square().sum(), values)
                     for result, values in ((found, ours), (expected, exact)))
        for one, other in zip(*gradients, strict=True):
            torch.testing.assert_close(one.double(), other, **TOLERANCE)


class Rotated(nn.Module):
    """Positions by complex multiplication with a buffer, and a result that is complex."""

    def __init__(self):
        super().__init__()
        self.register_buffer("angles", torch.polar(torch.ones(6, 4), torch.arange(24.0).view(6, 4) / 7))
        self.out = nn.Linear(8, 8)

    def forward(self, x):
        turned = torch.view_as_complex(x.view(-1, 6, 4, 2)) * self.angles
        return self.out(torch.view_as_real(turned).flatten(2)), turned.conj()


@pytest.mark.skipif(not hasattr(ShapeEnv, "error_on_new_guards"), reason="torch does not say what it decides by a size")
@pytest.mark.parametrize(("make", "given"), [
    (Rotated, lambda rows: torch.randn(rows, 48)),
    (
        lambda: lambda x: torch.fft.irfft(torch.fft.rfft(x) * torch.fft.rfft(x[:1]).conj(), n=14),
        lambda rows: torch.randn(rows, 12),
    ),
    (lambda: lambda x: (x * (1 + 2j)).exp().abs(), lambda rows: torch.randn(rows, 3, dtype=torch.complex64)),
    (lambda: lambda x: x.T @ x, lambda rows: torch.randn(rows, 3, dtype=torch.complex64)),
    (lambda: lambda x: torch.complex(x, x + 1).sum(0), lambda rows: torch.randn(rows, 3)),
])
def test_complex_numbers_are_captured_once_for_all_sizes(make, given):
    model = make()
    run = torch.compile(model, backend=ipu_backend, fullgraph=True)
    exact = copy.deepcopy(model).double() if isinstance(model, nn.Module) else model
    for rows in (3, 5, 11, 13):
        x = given(rows)
        wide = x.to(torch.complex128 if x.is_complex() else torch.double)
        if isinstance(model, nn.Module):
            exact.angles = model.angles.to(torch.complex128)
        passes = COUNTS.passes
        for value in (x, wide):
            value.requires_grad_()
        found, expected = ([*results] if isinstance(results, tuple) else [results] for results in (run(x), exact(wide)))
        for one, other in zip(found, expected, strict=True):
            assert one.dtype is {torch.complex128: torch.complex64, torch.double: torch.float}[other.dtype]
            torch.testing.assert_close(one.to(other.dtype), other, **TOLERANCE)
        ours, theirs = (
            torch.autograd.grad(sum(one.abs().square().sum() for one in results), value)[0]
            for results, value in ((found, x), (expected, wide))
        )
        torch.testing.assert_close(ours.to(theirs.dtype), theirs, rtol=1e-3, atol=1e-3)
    assert COUNTS.passes == passes


def test_a_transform_over_a_size_is_captured_for_each_and_nobody_is_told(caplog):
    run = torch.compile(lambda x: torch.fft.fft(x, dim=0).abs(), backend=ipu_backend)
    for rows in (3, 5, 6):
        x = torch.randn(rows, 2)
        torch.testing.assert_close(run(x).double(), torch.fft.fft(x.double(), dim=0).abs(), **TOLERANCE)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_images_of_all_sizes_are_one_compilation_on_one_thread_too():
    """There eager PyTorch computes large images by other code: each layer was guarded on 20,480 elements."""
    layers = [layer for _ in range(10) for layer in (nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(1))]
    model = nn.Sequential(nn.Conv2d(2, 8, 3, padding=1), *layers, nn.Conv2d(8, 4, 3, padding=1))
    before, frames = torch.get_num_threads(), []

    def counting(graph, inputs):
        frames.append(graph)
        return ipu_backend(graph, inputs)

    compiled = torch.compile(model, backend=counting)
    torch.set_num_threads(1)
    try:
        for side in (16, 48, 64, 90, 104, 20):
            images = torch.randn(1, 2, side, side + 4, requires_grad=True)
            torch._dynamo.mark_dynamic(images, (2, 3))
            compiled(images).square().mean().backward()
            twin = images.detach().double().requires_grad_()
            copy.deepcopy(model).double()(twin).square().mean().backward()
            torch.testing.assert_close(images.grad.double(), twin.grad, rtol=1e-3, atol=1e-7)
    finally:
        torch.set_num_threads(before)
    assert len(frames) == 1


def test_as_many_classes_as_a_size_fix_no_size():
    def route(x, choice):  # experts with room for half of the tokens
        room = x.shape[0] // 2
        return functional.one_hot(choice % room, room).float() @ x[:room], functional.one_hot(choice, num_classes=9)

    run = torch.compile(route, backend=ipu_backend, fullgraph=True)
    before = COUNTS.graphs
    for rows in (4, 6, 7, 8, 11):
        x, choice = torch.randn(rows, 3), torch.randint(9, (2, 5))
        found, expected = run(x, choice), route(x, choice)
        torch.testing.assert_close(found, expected)
    assert COUNTS.graphs == before + 2  # as given first, and of any size


def test_the_collector_looks_seldom_while_a_new_size_is_planned(monkeypatch):
    seen = {}

    def watched(kind, name):
        plain = getattr(kind, name)

        def watch(*args, **kwargs):
            seen[kind, name] = gc.get_threshold()
            return plain(*args, **kwargs)

        monkeypatch.setattr(kind, name, watch)

    run = torch.compile(lambda x: (x * 2).sum(0), backend=ipu_backend, dynamic=True)
    run(torch.randn(3, 4))
    for kind, name in ((SymbolicGraph, "program"), (SizedPlans, "plan"), (BoundPlan, "__init__")):
        watched(kind, name)
    before = gc.get_threshold()
    run(torch.randn(5, 4))
    assert len(seen) == 3
    assert all(threshold >= THRESHOLDS for threshold in seen.values())
    assert gc.get_threshold() == before


def test_an_empty_batch_is_one_more_size():
    model = nn.Linear(4, 2)
    run = torch.compile(model, backend=ipu_backend, dynamic=True)
    for rows in (3, 0, 5):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(run(x), model(x))


def test_new_sizes_are_told_under_recompiles(monkeypatch):
    told = []
    monkeypatch.setattr(any_size._RECOMPILES, "debug", lambda text, *rest: told.append(text % rest))
    run = torch.compile(lambda x: x * x.shape[0], backend=ipu_backend, dynamic=True)
    for rows in (4, 6, 4):
        run(torch.ones(rows, 2))
    (line,) = told
    assert line.startswith("Recompiling for the IPU, in a graph of any size, for inputs")
    assert "[6, 2]" in line


def test_why_each_size_is_captured_by_itself_is_told(monkeypatch, caplog):
    caplog.set_level(logging.INFO, "torchipu.sizes")
    monkeypatch.setattr(logging.getLogger("torchipu"), "propagate", True)  # torch's handlers may have it to themselves
    torch.compile(lambda x: torch.fft.fft(x).real, backend=ipu_backend, dynamic=True)(torch.ones(4, 6))
    (told,) = caplog.records
    assert "each set of sizes is captured by itself: NoFormula:" in told.getMessage()
    assert "complex numbers" in told.getMessage()
    assert told.exc_info is None

    caplog.clear()

    def place_only_ints(graph, *rest):
        raise TypeError("an int is needed")

    monkeypatch.setattr(symbolic, "place_graph", place_only_ints)
    x = torch.randn(3, 5)
    torch.testing.assert_close(torch.compile(lambda x: x * 3, backend=ipu_backend, dynamic=True)(x), x * 3)
    (told,) = caplog.records
    assert told.getMessage().endswith("TypeError: an int is needed")
    assert told.exc_info is not None


def test_a_size_that_does_not_fit_is_refused_as_the_first_is():
    run = torch.compile(lambda x: (x @ x.t()).softmax(-1).sum(), backend=ipu_backend, dynamic=True)
    run(torch.randn(64, 16))
    run(torch.randn(96, 16))
    with pytest.raises(OutOfTileMemoryError):
        run(torch.randn(24000, 16))


def test_an_input_that_alone_grows_is_refused_where_it_does_not_fit():
    run = torch.compile(lambda x: x.sum(0), backend=ipu_backend, dynamic=True)
    for rows in (8, 1000):
        run(torch.ones(rows, 16))
    with pytest.raises(OutOfTileMemoryError):
        run(torch.empty(20_000_000, 16))  # 1.28 GB, which nobody writes or reads: an IPU has 0.92


def test_text_of_a_graph_in_symbols_names_them(monkeypatch):
    texts = []
    place = symbolic.place_graph
    monkeypatch.setattr(symbolic, "place_graph", lambda graph, *rest: texts.append(format_graph(graph)) or place(
        graph, *rest))
    run = torch.compile(lambda x, y: torch.cat([x, y]) * 2, backend=ipu_backend, dynamic=True)
    run(torch.ones(4, 3), torch.ones(5, 3))
    (text,) = texts
    assert " + " in text
