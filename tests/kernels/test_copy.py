"""Views, copies and fills against eager PyTorch, bit for bit."""

from __future__ import annotations

import math

import pytest
import torch

from tests.kernels.elem_planner import DTYPES, MiniPlanner, run_op
from torchipu.ops import view
from torchipu.optable.host_tensor import HostTensor

SOURCES = {
    "dense": lambda: torch.randn(4, 6, 10), "permuted": lambda: torch.randn(10, 6, 4).permute(2, 1, 0),
    "long": lambda: torch.randint(0, 9, (4, 6, 10)), "half": lambda: torch.randn(4, 6, 10).half(),
    "bool": lambda: torch.rand(4, 6, 10) > 0.5,
    "expanded": lambda: torch.randn(4, 1, 10).expand(4, 6, 10),
}


def check(target: str, *args: object, **kwargs: object) -> None:
    """Compare with eager for 1 and 2 threads."""
    for threads in (1, 2):
        ours, eager = run_op(f"aten.{target}", *args, threads=threads, **kwargs)
        for mine, theirs in zip(ours, eager, strict=True):
            assert mine.shape == theirs.shape
            assert mine.dtype == theirs.dtype
            assert torch.equal(mine, theirs)


@pytest.mark.parametrize("source", SOURCES)
def test_view_op_equals_eager_and_moves_nothing(source: str) -> None:
    x = SOURCES[source]()
    calls: list[tuple[str, tuple[object, ...]]] = [
        ("permute.default", (x, [2, 0, 1])), ("transpose.int", (x, -1, 0)), ("t.default", (x[0],)),
        ("unsqueeze.default", (x, -1)),
        ("unsqueeze.default", (x, 1)), ("expand.default", (x[:, :1], [3, 4, 6, -1])), ("squeeze.dim", (x[:, :1], 1)),
        ("squeeze.default", (x[:1, :1],)), ("squeeze.dims", (x[:1, :1], [0, 1, 2])), ("slice.Tensor", (x, 1, 1, 5, 2)),
        ("slice.Tensor", (x, -1, -3, 2**63 - 1)), ("slice.Tensor", (x, 0, 3, 1)), ("select.int", (x, 1, -2)),
        ("alias.default", (x,)),
        ("detach.default", (x,)), ("split.Tensor", (x, 4, 2)), ("split_with_sizes.default", (x, [3, 3, 4], 2)),
        ("unbind.int", (x, 1)),
        ("diagonal.default", (x, 1, 0, 2)), ("diagonal.default", (x, -1, 2, 1)), ("view.default", (x, [2, 2, 6, 2, 5])),
    ]
    if x.is_contiguous():
        calls += [
            ("view.default", (x, [24, 10])),
            ("view.default", (x, [2, 2, 3, 2, 5, 2])),
            ("_unsafe_view.default", (x, [1, 240, 1])),
        ]
    if source == "permuted":
        calls.pop()  # eager refuses this one
    for target, args in calls:
        planner = MiniPlanner()
        run_op(f"aten.{target}", *args, planner=planner)
        assert planner.num_steps == 0, target
        check(target, *args)


@pytest.mark.parametrize("source", SOURCES)
def test_copying_op_equals_eager(source: str) -> None:
    x = SOURCES[source]()
    check("reshape.default", x, [24, 10])
    check("clone.default", x)
    check("cat.default", [x, x[:2], x], 0)
    check("cat.default", [x, x[..., :3]], -1)
    check("cat.default", [x, torch.randn(0).to(x.dtype)], 0)
    check("stack.default", [x, x], 1)
    check("stack.default", [x, x, x], -1)
    for widths in ([1, 2], [0, 0, 1, 1], [-1, 2, -2, 0], [-1, -1], [1, 1, 2, 2, 3, 3]):
        check("constant_pad_nd.default", x, widths, 1)
    check("slice_scatter.default", x, torch.zeros(4, 2, 10).to(x.dtype), 1, 1, 5, 2)
    check("select_scatter.default", x, torch.zeros(4, 10).to(x.dtype), 1, 3)
    check("slice_backward.default", x, [4, 20, 10], 1, 3, 15, 2)
    check("select_backward.default", x[0], [3, 6, 10], 0, -1)
    check("repeat.default", x, [2, 1, 3, 2])
    check("flip.default", x, [0, 2])
    check("roll.default", x, [2, -3], [0, 2])
    check("roll.default", x, [7], [])
    check("full_like.default", x, 2.5)
    check("zeros_like.default", x)
    check("ones_like.default", x)
    check("fill.Scalar", x, 3)
    check("fill.Tensor", x, torch.tensor(2.0))


def rows_by(planner: MiniPlanner, target: str, *args: object) -> None:
    """Compare with eager, on several threads, and note the steps."""
    check(target, *args)
    run_op(f"aten.{target}", *args, planner=planner)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.float32, torch.int64], ids=str)
@pytest.mark.parametrize("widths", [(1, 1), (3, 5), (4, 8, 1), (16, 33), (32, 32), (7, 300, 64), (1100, 2)], ids=str)
def test_pieces_of_the_same_rows_are_put_together_in_one_step(dtype: torch.dtype, widths: tuple[int, ...]) -> None:
    planner = MiniPlanner()
    pieces = [torch.randint(0, 100, (37, width)).to(dtype) for width in widths]
    apart = [torch.randint(0, 100, (37, width + 3)).to(dtype)[:, 1 : width + 1] for width in widths]
    rows_by(planner, "cat.default", pieces, 1)
    rows_by(planner, "cat.default", apart, 1)
    rows_by(planner, "cat.default", [piece.view(37, 1, -1) for piece in pieces], -1)
    rows_by(planner, "roll.default", pieces[0].repeat(1, 3), [1], [1])
    rows_by(planner, "stack.default", [pieces[0], apart[0]], 1)
    rows_by(planner, "stack.default", [pieces[0], pieces[0], pieces[0]], -1)
    assert planner.steps == ["concatenate_rows"] * 6


def test_pieces_of_different_rows_are_copied_one_after_another() -> None:
    planner = MiniPlanner()
    rows_by(planner, "cat.default", [torch.randn(37, 5), torch.randn(3, 37).t()], 1)
    rows_by(planner, "cat.default", [torch.randn(37, 5), torch.randn(37, 1).expand(-1, 4)], 1)
    rows_by(planner, "cat.default", [torch.randn(7, 2)] * 33, 1)
    rows_by(planner, "cat.default", [torch.randn(3, 9000)] * 2, 1)
    rows_by(planner, "roll.default", torch.randn(4, 5, 6), [1, 2], [0, 2])
    assert "concatenate_rows" not in planner.steps


@pytest.mark.parametrize("dtype", list(DTYPES), ids=str)
def test_fills_and_ranges_equal_eager(dtype: torch.dtype) -> None:
    check("full.default", [3, 5], 1, dtype=dtype)
    check("zeros.default", [0, 5], dtype=dtype)
    check("scalar_tensor.default", 1, dtype=dtype)
    if dtype is not torch.bool:
        check("arange.default", 7, dtype=dtype)
        check("arange.start_step", 2, 30, 3, dtype=dtype)


def test_fills_with_extreme_numbers_equal_eager() -> None:
    for number in (-math.inf, torch.finfo(torch.float32).min, 0.1, -0.0):
        check("full.default", [3], number)
    check("full.default", [2], torch.iinfo(torch.int64).min, dtype=torch.int64)
    check("full.default", [2], -7, dtype=torch.int8)
    check("arange.start_step", 0, 1, 0.1)


@pytest.mark.parametrize("shape", [(64, 128), (130, 17), (3, 50, 70), (2, 3, 33, 47), (1, 5, 1, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.uint8], ids=str)
def test_transposed_copy_equals_eager(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randint(0, 100, shape).to(dtype)
    check("clone.default", x.transpose(-1, -2))
    check("clone.default", x.transpose(0, -1))
    check("clone.default", x.permute(*range(1, len(shape)), 0), memory_format=torch.contiguous_format)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.float16, torch.float32, torch.int64], ids=str)
@pytest.mark.parametrize("rows", [4, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65])
@pytest.mark.parametrize("columns", [4, 9, 16, 33, 65, 130])
def test_transposes_of_any_size_write_each_element_once(dtype: torch.dtype, rows: int, columns: int) -> None:
    x = torch.randint(-100, 100, (2, rows, columns)).to(dtype)
    for turned in (x.mT, x.flip(1).mT):
        check("clone.default", turned, memory_format=torch.contiguous_format)
    planner = MiniPlanner()
    run_op("aten.clone.default", x.mT, memory_format=torch.contiguous_format, planner=planner)
    assert planner.steps == ["transpose"]


@pytest.mark.parametrize(("source", "target"), [
    (torch.float16, torch.float32), (torch.float32, torch.float16), (torch.uint8, torch.float32),
    (torch.int64, torch.bool), (torch.float32, torch.int64),
], ids=str)
def test_a_cast_that_transposes_turns_the_narrower_elements(source: torch.dtype, target: torch.dtype) -> None:
    planner = MiniPlanner()
    x = torch.randint(0, 50, (2, 35, 70)).to(source)
    destination = planner.scratch((2, 70, 35), DTYPES[target])
    view.emit_copy(planner, destination, planner.hold(x).permuted((0, 2, 1)))
    assert torch.equal(planner.fetch(destination), x.mT.to(target))
    assert sorted(planner.steps) == ["chain", "transpose"]


@pytest.mark.parametrize("target", list(DTYPES), ids=str)
def test_emit_copy_converts_between_any_layouts(target: torch.dtype) -> None:
    torch.manual_seed(0)
    planner = MiniPlanner()
    for source in (
        torch.randint(0, 50, (50, 70)).float().t(), torch.randint(0, 50, (4, 33, 65, 17)).half().permute(0, 2, 3, 1),
        torch.randint(0, 50, (1, 9)).expand(8, 9), torch.arange(120)[::3].to(torch.uint8), torch.tensor(7.0),
        torch.randn(0, 3),
    ):
        held = planner.hold(source)
        wide = planner.scratch((*source.shape, 2), DTYPES[target])
        dense = planner.scratch(source.shape, DTYPES[target])
        gappy = view._view(wide, source.shape, wide.strides[:-1])
        for destination in (dense, gappy):
            view.emit_copy(planner, destination, held)
            assert torch.equal(planner.fetch(destination), source.to(target))


def test_strides_of_view_refuses_what_memory_cannot_show() -> None:
    assert view.strides_of_view((4, 6), (6, 1), (2, 2, 6)) == (12, 6, 1)
    assert view.strides_of_view((4, 6), (1, 4), (24,)) is None
    assert view.strides_of_view((4, 6), (0, 1), (2, 2, 3, 2)) == (0, 0, 2, 1)
    assert view.strides_of_view((), (), (1, 1)) == (0, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64], ids=str)
@pytest.mark.parametrize("shape", [(2, 37, 52), (3, 16, 32), (5, 4, 7)], ids=str)
def test_transposed_images_that_are_turned_too_are_one_transpose(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """A quarter turn back: rows of the result run backwards through columns."""
    x = torch.arange(math.prod(shape)).to(dtype).view(shape).transpose(1, 2)
    for dims in ([1], [2], [1, 2]):
        planner = MiniPlanner()
        run_op("aten.flip.default", x, dims, planner=planner)
        assert planner.steps == ["transpose"]
        check("flip.default", x, dims)


def test_padding_is_one_step_whatever_the_layout() -> None:
    x = torch.randn(2, 3, 9, 70)
    for held in (x, x.to(memory_format=torch.channels_last), x[:, :, ::2], x[:, :, :, 3:40]):
        for kind in ("reflection", "replication"):
            planner = MiniPlanner()
            run_op(f"aten.{kind}_pad2d.default", held, [3, 2, 1, 4], planner=planner)
            assert planner.steps == ["pad_rows"]
            check(f"{kind}_pad2d.default", held, [3, 2, 1, 4])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.uint8, torch.bool], ids=str)
@pytest.mark.parametrize("size", [1, 7, 8, 9, 31, 32, 33, 64, 1027])
def test_rows_of_any_length_are_turned_around(dtype: torch.dtype, size: int) -> None:
    x = torch.arange(3 * size).to(dtype).view(3, size)
    check("flip.default", x, [1])
    check("flip.default", x, [0, 1])
    check("flip.default", x[:, size // 3 :], [1])
    check("flip.default", x.view(-1), [0])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.float32, torch.int64], ids=str)
@pytest.mark.parametrize("last", [1, 2, 3, 7, 8, 9])
@pytest.mark.parametrize("rows", [1, 2, 255, 256, 257, 700])
def test_short_runs_are_copied_by_their_columns(dtype: torch.dtype, last: int, rows: int) -> None:
    torch.manual_seed(rows)
    x = torch.randint(0, 99, (3, rows, last + 2)).to(dtype)
    for threads in (1, 3):
        for target, args in (
            ("clone.default", (x[..., :last],)), ("clone.default", (x[:, ::2, 2:],)),
            ("cat.default", ([x[..., :last], x[..., 1:3]], 2)), ("stack.default", ([x[..., 0], x[..., 1]], 2)),
            ("clone.default", (x[:, :, :1].expand(-1, -1, last),)), ("clone.default", (x[..., :last].transpose(0, 1),)),
        ):
            (ours,), (eager,) = run_op(f"aten.{target}", *args, threads=threads)
            assert torch.equal(ours, eager)


@pytest.mark.parametrize("length", [2, 8, 15, 16, 17, 40, 64, 65])
def test_short_runs_that_go_back_are_converted_from_their_ends(length: int) -> None:
    plan = MiniPlanner()
    x, result = torch.randn(7, 9, length), torch.empty(7, 9, length, dtype=torch.float16)
    held = plan.hold(x)
    back = HostTensor(held.buffer, length - 1, held.shape, (9 * length, length, -1), held.dtype)
    view.emit_copy(plan, plan.hold(result), back)
    assert torch.equal(result, x.flip(-1).half())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.float32, torch.int64])
def test_rows_of_any_length_are_copied_with_nothing_beyond_them(dtype: torch.dtype) -> None:
    for num_bytes in [*range(8, 72, 8), 96, 104, 127, 128, 136, 255, 256, 264, 520, 1016, 1024, 1040]:
        width = num_bytes // dtype.itemsize
        given = torch.randint(1, 100, (3, 5, 4, width + 3)).to(dtype)
        check("cat.default", [given[:, :, 1:3, 1 : width + 1], given[:, 1:, :2, 2 : width + 2]], 1)
        check("cat.default", [given[..., :width], given[..., :1]], 3)


@pytest.mark.parametrize("width", [1, 5, 63, 64, 65, 96, 511, 512, 513])
def test_rows_that_chains_read_and_write_piece_by_piece(width: int) -> None:
    def model(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cat((torch.nn.functional.glu(x, -1), y[:, :width] * x[..., 1 : width + 1]), -1)

    torch._dynamo.reset()
    given = [torch.randn(3, 7, 2 * width), torch.randn(7, 2 * width)]
    ours, theirs = ([x.clone().to(kind).requires_grad_() for x in given] for kind in (torch.float32, torch.float64))
    found, wanted = torch.compile(model, backend="ipu")(*ours), model(*theirs)
    torch.testing.assert_close(found.double(), wanted, atol=1e-5, rtol=1e-5)
    found.square().sum().backward()
    wanted.square().sum().backward()
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.grad is not None
        torch.testing.assert_close(mine.grad.double(), other.grad, atol=1e-4, rtol=1e-5)
