"""Host plans for sizes that are known at the call: made once for all that decide alike, then numbers."""

import copy
from dataclasses import fields, replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from torchipu.backend import COUNTS, ipu_backend
from torchipu.errors import ExecutionError
from torchipu.host import sized_plans
from torchipu.host.executor import GraphExecutor
from torchipu.host.planner import Planner
from torchipu.host.steps import Ending
from torchipu.host.storage import Place
from torchipu.ir.size import Size
from torchipu.optable.host_tensor import HostTensor, Rounding


@pytest.fixture(autouse=True)
def fresh():
    """Dynamo counts compilations by code, which all containers of torch's share."""
    torch._dynamo.reset()


@pytest.fixture
def emitted(monkeypatch):
    """Collect the planners that emit steps with sizes in them."""
    planners = []
    plain = Planner.emitted

    def counted(planner):
        if any(isinstance(size, Size) for tensor in planner.graph.inputs for size in tensor.shape):
            planners.append(planner)
        return plain(planner)

    monkeypatch.setattr(Planner, "emitted", counted)
    return planners


class Attention(nn.Module):
    """Heads, a mask by size, a normalisation and a residual, on ``[N, T, 32]``."""

    def __init__(self):
        super().__init__()
        self.before, self.after, self.norm = nn.Linear(32, 96), nn.Linear(32, 32), nn.LayerNorm(32)

    def forward(self, x):
        rows, length, _ = x.shape
        q, k, v = self.before(self.norm(x)).view(rows, length, 3, 4, 8).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.after(mixed.transpose(1, 2).reshape(rows, length, 32)) + x


def images():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, stride=2, padding=1),
        nn.GroupNorm(4, 16), nn.GELU(), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5),
    )


class Ordering(nn.Module):
    """What sorts, cumulates and draws together, on ``[N, M]``."""

    def forward(self, x):
        joined = torch.cat([x.sort(-1).values + x.cumsum(-1), x.topk(2, -1).values], -1)
        return joined.std(-1) + functional.pad(x, (1, 2)).mean(-1) + x.flip(-1).roll(1, 0)[:, 0] + x.softmax(0).sum(-1)


class Pooled(nn.Module):
    """Saves for the backward a part of a tensor, which lies with gaps as wide as a size says, on ``[N, T, 8]``."""

    def __init__(self):
        super().__init__()
        self.before, self.after = nn.Linear(8, 64), nn.Linear(64, 64)

    def forward(self, x):
        hidden = functional.gelu(self.before(x))
        return torch.tanh(self.after(hidden[:, 0])) + self.after(hidden).mean(1)


def channels_last(*shape):
    return torch.randn(shape).to(memory_format=torch.channels_last)


CASES = {
    "attention": (Attention, lambda rows, length: torch.randn(rows, length, 32)),
    "images": (images, lambda rows, side: torch.randn(rows, 3, side, side + 1)),
    "channels last": (images, lambda rows, side: channels_last(rows, 3, side, side + 1)),
    "ordering": (Ordering, torch.randn),
    "parts": (Pooled, lambda rows, length: torch.randn(rows, length, 8)),
    "given parts": (Pooled, lambda rows, length: torch.randn(rows, length + 3, 24)[:, 1:-2, 3:19:2]),
    "repeated": (Pooled, lambda rows, length: torch.randn(1, length, 8).expand(rows, -1, -1)),
    "rows": (lambda: nn.GRU(8, 16, batch_first=True), lambda rows, length: torch.randn(rows, length, 8)),
}
SIZES = ((2, 20), (3, 33), (3, 35), (5, 9))


def described(plan):
    """Return all of a plan that a run of it depends on, with its allocations numbered as if all of them were used."""
    used = [one for one in plan.allocations if one.first >= 0 or one.place is not Place.ARENA]
    numbers = {one.number: place for place, one in enumerate(used)}

    def shown(value):
        if isinstance(value, HostTensor):
            assert type(value) is HostTensor
            return replace(value, buffer=numbers.get(value.buffer, -1))  # -1: in the scratch of each thread alone
        if isinstance(value, (tuple, list)):
            return [shown(one) for one in value]
        if isinstance(value, (Ending, Rounding)):
            return [shown(getattr(value, one.name)) for one in fields(value)]
        return value

    steps = [
        (step.kernel and step.kernel.name, shown(step.outputs), shown(step.inputs), tuple(step.ints),
         tuple(step.scalars), step.items, step.grain, step.scratch_bytes, shown(step.endings), step.rounds,
         step.reads_outputs, step.together, step.samples and (step.samples.count, step.samples.strides))
        for step in plan.steps
    ]
    ops = [op and (op.target, [tensor.shape for tensor in op.outputs], dict(op.attrs)) for op in plan.ops_by_step]
    allocations = [(one.num_bytes, one.place, one.index, one.offset_bytes) for one in used]
    constants = {numbers[number]: value for number, value in plan.constants.items()}
    return (steps, ops, allocations, plan.segments, shown(plan.outputs), plan.output_is_direct, plan.over_inputs,
            constants, plan.arena_bytes, plan.prepared_bytes)


def first(result):
    return result[0] if isinstance(result, tuple) else result


@pytest.fixture
def made(monkeypatch):
    """Pairs of what is in a plan of formulas with numbers in it, and in the plan of these numbers."""
    made = []
    sized_plan = GraphExecutor._sized_plan

    def compared(executor, strides, edge):
        found = sized_plan(executor, strides, edge)
        assert found is not None
        plain = Planner(
            executor.sized.graph(), input_strides=strides, frozen=executor.frozen, is_alone=executor.is_alone,
            edge=edge,
        ).plan()
        made.append((described(found), described(plain)))
        return found

    monkeypatch.setattr(GraphExecutor, "_sized_plan", compared)
    return made


@pytest.mark.parametrize("name", CASES)
def test_a_plan_of_formulas_is_with_numbers_the_plan_of_these_numbers(name, made):
    model, data = CASES[name][0](), CASES[name][1]
    run, judge = torch.compile(model, backend=ipu_backend, dynamic=True), copy.deepcopy(model).double()
    for sizes in SIZES:
        x = data(*sizes).requires_grad_()
        exact = x.detach().double().requires_grad_()
        model.zero_grad()
        found, expected = first(run(x)), first(judge(exact))
        torch.testing.assert_close(found.double(), expected, rtol=2e-4, atol=2e-4)
        found.square().sum().backward()
        expected.square().sum().backward()
        torch.testing.assert_close(x.grad.double(), exact.grad, rtol=2e-3, atol=2e-3)
    assert len(made) == 2 * len(SIZES)
    for found, plain in made:
        assert found == plain


@pytest.mark.parametrize(("kind", "width"), [(Attention, 32), (Pooled, 8)])
def test_a_size_that_decides_alike_emits_nothing(kind, width, monkeypatch):
    emitted = []
    plain = Planner.emitted
    monkeypatch.setattr(Planner, "emitted", lambda planner: emitted.append(planner.graph) or plain(planner))
    model = kind()
    run = torch.compile(model, backend=ipu_backend, dynamic=True)
    for length in (40, 41, 42, 43):
        x = torch.randn(2, length, width)
        torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-4)
        run(x).sum().backward()
        if length == 40:
            assert len(emitted) == 2
    assert len(emitted) == 2
    assert all(isinstance(graph.inputs[0].shape[0], (int, Size)) for graph in emitted)


class Wide(nn.Module):
    """Attention of two heads of 64 and two linear layers, on ``[N, T, 128]``: sizes decide how products are cut."""

    def __init__(self):
        super().__init__()
        self.before, self.wide, self.after = nn.Linear(128, 384), nn.Linear(128, 512), nn.Linear(512, 128)

    def forward(self, x):
        rows, length, _ = x.shape
        q, k, v = self.before(x).view(rows, length, 3, 2, 64).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(rows, length, 128)
        return self.after(functional.gelu(self.wide(mixed)))


def check_training_at(length, model, run, judge):
    """Compare result and gradients of a compiled model on `[2, length, 128]` with those of its judge in float64."""
    x = torch.randn(2, length, 128)
    model.zero_grad()
    judge.zero_grad()
    found, expected = run(x), judge(x.double())
    torch.testing.assert_close(found.double(), expected, rtol=2e-4, atol=2e-4)
    found.square().sum().backward()
    expected.square().sum().backward()
    for weight, exact in zip(model.parameters(), judge.parameters(), strict=True):
        torch.testing.assert_close(weight.grad.double(), exact.grad, rtol=2e-3, atol=2e-3)


def test_sizes_that_pack_operands_cut_sums_or_leave_few_rows_emit_nothing(made, emitted):
    model = Wide()
    run, judge = torch.compile(model, backend=ipu_backend, dynamic=True), copy.deepcopy(model).double()
    # Rows as they lie; so few that a product is one of dot products; sums of several chunks; panels; rows packed ahead,
    # and not any more; panels of matrices of a batch.
    for length in (20, 8, 42, 75, 142, 193, 260):
        check_training_at(length, model, run, judge)
    assert len(emitted) == 2
    for found, plain_plan in made:
        assert found == plain_plan
    packing = [[name for name, *_ in found[0] if "pack" in str(name)] for found, _ in made]
    assert len({tuple(names) for names in packing}) > 3


@pytest.mark.parametrize("dtype", [torch.half, torch.bfloat16])
def test_sums_that_become_halves_are_those_of_the_plan_of_their_numbers(dtype, made):
    weight = torch.randn(64, 64, dtype=dtype)
    run = torch.compile(lambda x: ((x @ weight).relu().sum(0), x.sum(0), x.sum(1)), backend=ipu_backend, dynamic=True)
    for rows in (40, 8, 300, 1200, 3000):
        x = torch.randn(rows, 64, dtype=dtype)
        exact = x.double()
        for found, expected in zip(
            run(x), ((exact @ weight.double()).relu().sum(0), exact.sum(0), exact.sum(1)), strict=True,
        ):
            torch.testing.assert_close(found.double(), expected, rtol=2e-2, atol=2e-1)
    for found, plain_plan in made:
        assert found == plain_plan


def test_sizes_that_cut_products_and_sums_into_other_blocks_emit_nothing(made, emitted):
    model = Wide()
    run, judge = torch.compile(model, backend=ipu_backend, dynamic=True), copy.deepcopy(model).double()
    for length in (90, 101, 113, 126):  # tiles of 32 columns and of 96, and sums of 5 to 7 chunks
        check_training_at(length, model, run, judge)
    assert len(emitted) == 2
    assert len(made) == 8
    for found, plain_plan in made:
        assert found == plain_plan


def test_sizes_that_cut_the_gradients_of_a_normalisation_into_other_sums_emit_nothing(emitted):
    model = nn.LayerNorm(24)
    run, judge = torch.compile(model, backend=ipu_backend, dynamic=True), copy.deepcopy(model).double()
    for length in (6, 9, 300, 700, 9000):  # partial sums of 1 and of several chunks, of 16, of more and of 256 rows
        x = torch.randn(2, length, 24)
        model.zero_grad()
        judge.zero_grad()
        run(x).square().sum().backward()
        judge(x.double()).square().sum().backward()
        for weight, exact in zip(model.parameters(), judge.parameters(), strict=True):
            torch.testing.assert_close(weight.grad.double(), exact.grad, rtol=1e-3, atol=1e-3)
    assert len(emitted) == 2


class Encoder(nn.Module):
    """A layer over ``[N, T]`` tokens with positions from a table and a mask; sizes of its own are 64, 128 and 256."""

    def __init__(self):
        super().__init__()
        self.table, self.places = nn.Embedding(7, 64), nn.Embedding(256, 64)
        self.register_buffer("numbers", torch.arange(256)[None])
        self.before, self.after, self.norm = nn.Linear(64, 192), nn.Linear(64, 64), nn.LayerNorm(64)
        self.wide, self.narrow = nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, tokens):
        rows, length = tokens.shape
        x = self.table(tokens) + self.places(self.numbers[:, :length])
        q, k, v = self.before(x).view(rows, length, 3, 2, 32).permute(2, 0, 3, 1, 4)
        mask = (tokens != 0)[:, None, None, :].expand(rows, 1, length, length)
        mixed = functional.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).reshape(rows, length, 64)
        x = self.norm(x + self.after(mixed))
        return x + self.narrow(functional.gelu(self.wide(x)))


def test_lengths_that_are_widths_of_the_model_or_fill_its_table_need_no_new_passes_and_plans(emitted):
    torch.manual_seed(0)
    model = Encoder().eval()
    run, judge = torch.compile(model, backend=ipu_backend, dynamic=True), copy.deepcopy(model).double()
    before = copy.copy(COUNTS)
    with torch.no_grad():
        # Their products with the batch are widths, too; items of attention are of other numbers of queries.
        for length in (20, 29, 32, 48, 64, 65, 128, 200, 256):
            tokens = torch.randint(7, (2, length)).index_fill_(1, torch.tensor(0), 1)
            torch.testing.assert_close(run(tokens).double(), judge(tokens), rtol=2e-4, atol=2e-4)
    assert COUNTS.passes - before.passes == 1
    assert COUNTS.device_programs - before.device_programs == 1
    assert len(emitted) == 1


def test_what_cannot_be_planned_with_sizes_is_planned_for_each(monkeypatch, caplog):
    plain = Planner.emitted

    def emitted(planner):
        if any(isinstance(size, Size) for tensor in planner.graph.inputs for size in tensor.shape):
            raise AttributeError("a number that has bits")
        return plain(planner)

    monkeypatch.setattr(Planner, "emitted", emitted)
    run = torch.compile(lambda x: x.softmax(-1).sum(0), backend=ipu_backend, dynamic=True)
    with caplog.at_level("INFO", "torchipu.sizes"):
        for rows in (3, 5, 7):
            x = torch.randn(rows, 4)
            torch.testing.assert_close(run(x), x.softmax(-1).sum(0))
    assert "a number that has bits" in caplog.text
    assert caplog.text.count("each set of sizes is planned by itself") == 1


def test_what_takes_each_number_as_it_is_is_soon_planned_for_each(monkeypatch):
    monkeypatch.setattr(sized_plans, "MOST_MISSES", 3)
    plain, tried = Planner.emitted, []

    def emitted(planner):
        sizes = [size for tensor in planner.graph.inputs for size in tensor.shape if isinstance(size, Size)]
        tried.append([int(size) for size in sizes])
        return plain(planner)

    monkeypatch.setattr(Planner, "emitted", emitted)
    run = torch.compile(lambda x: x.exp().sum(0), backend=ipu_backend, dynamic=True)
    for rows in range(3, 11):
        x = torch.randn(rows, 64)
        torch.testing.assert_close(run(x), x.exp().sum(0))
    assert len([sizes for sizes in tried if sizes]) == 3
    assert len(tried) == 8


def test_the_text_of_an_error_has_the_numbers_of_the_call():
    def chosen(table, indices):
        return functional.embedding(indices, table) * 2

    run = torch.compile(chosen, backend=ipu_backend, dynamic=True)
    for rows in (6, 7, 9):
        table, indices = torch.randn(rows, 4), torch.arange(rows)
        torch.testing.assert_close(run(table, indices), 2 * table)
    with pytest.raises(ExecutionError, match=r"expected 'indices' from 0 to 7, of a tensor of \[8, 4\]"):
        run(torch.randn(8, 4), torch.full((8,), 8))
