"""Memory of results is taken again when nobody holds it, and never before."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

import torchipu
from torchipu.backend import ipu_backend
from torchipu.host import output_memory
from torchipu.host.output_memory import CALLS_KEPT, LEAST_BYTES, OutputMemory, Room
from torchipu.host.shared import Shared

LARGE = Room.of((LEAST_BYTES // 4,), torch.float32)


def take(memory: OutputMemory) -> torch.Tensor:
    return memory.empty([LARGE])[0]


def test_memory_that_nobody_holds_is_taken_again() -> None:
    memory = OutputMemory()
    address = take(memory).data_ptr()
    assert take(memory).data_ptr() == address
    assert take(memory).stride() == (1,)
    same, other = memory.empty([Room.of((LEAST_BYTES // 8, 2), torch.int32), LARGE])
    assert same.data_ptr() == address != other.data_ptr()
    assert same.stride() == (2, 1)
    assert same.dtype is torch.int32


HOLDERS: dict[str, Callable[[torch.Tensor], object]] = {
    "tensor": lambda made: made,
    "view": lambda made: made[5:],
    "detached": lambda made: made.detach(),
    "numpy": lambda made: made.numpy(),
    "storage": lambda made: made.untyped_storage(),
    "dlpack": torch.utils.dlpack.to_dlpack,
    "saved for backward": lambda made: made.requires_grad_().sin(),
}


@pytest.mark.parametrize("name", list(HOLDERS))
def test_memory_in_use_is_left_alone(name: str) -> None:
    memory = OutputMemory()
    made = take(memory)
    address = made.data_ptr()
    holder = HOLDERS[name](made)
    del made
    other = take(memory)
    assert other.data_ptr() != address
    del holder, other
    kept = [take(memory) for _ in range(2)]
    assert kept[0].data_ptr() != kept[1].data_ptr()


@pytest.mark.parametrize("beside", [[], [Room.of((2, 3), torch.float32)]], ids=["alone", "beside a small one"])
def test_what_makes_results_of_a_call_takes_memory_again_where_one_of_them_is_large(beside: list[Room]) -> None:
    memory = OutputMemory()
    made = memory.empty_of([LARGE, *beside])
    address = made()[0].data_ptr()
    assert memory.kept_bytes >= LEAST_BYTES
    assert made()[0].data_ptr() == address


def test_memory_that_another_process_may_read_is_never_taken_again() -> None:
    memory = OutputMemory()
    made = take(memory).share_memory_()
    address = made.data_ptr()
    del made
    assert take(memory).data_ptr() != address


def test_memory_that_was_resized_is_forgotten() -> None:
    memory = OutputMemory()
    made = take(memory)
    made.untyped_storage().resize_(0)
    del made
    assert take(memory).fill_(1).sum() == LEAST_BYTES // 4


def test_what_is_kept_is_bounded_by_the_largest_call() -> None:
    memory = OutputMemory()
    for size in range(1, 40):
        memory.empty([Room.of((LEAST_BYTES // 4 + size,), torch.float32)])
    assert memory.kept_bytes <= CALLS_KEPT * (LEAST_BYTES + 4 * 39)
    assert take(memory).numel() == LARGE[0][0]


def roomy(num_bytes: int) -> Room:
    return Room.of((num_bytes,), torch.uint8)._replace(is_roomy=True)


@pytest.mark.parametrize(("first", "second", "is_shared"), [
    (1, 1, True), (1, 1.5, True), (1, 2, True), (1, 2.01, False), (2, 1, True), (2.1, 1, False),
])
def test_memory_for_several_sizes_is_taken_by_those_that_fit(first: float, second: float, is_shared: bool) -> None:
    memory = OutputMemory()
    address = memory.empty([roomy(int(4 * LEAST_BYTES * first))])[0].data_ptr()
    (made,) = memory.empty([roomy(int(4 * LEAST_BYTES * second))])
    assert (made.data_ptr() == address) is is_shared
    assert made.shape == (int(4 * LEAST_BYTES * second),)


def test_only_what_may_be_roomy_takes_memory_of_another_size() -> None:
    memory = OutputMemory()
    exact = Room.of((2 * LEAST_BYTES,), torch.uint8)
    address = memory.empty([exact])[0].data_ptr()
    assert memory.empty([roomy(LEAST_BYTES)])[0].data_ptr() != address  # which has no memory but its own
    other = OutputMemory()
    address = other.empty([roomy(2 * LEAST_BYTES)])[0].data_ptr()
    assert other.empty([exact._replace(num_bytes=LEAST_BYTES, shape=(LEAST_BYTES,))])[0].data_ptr() != address
    for _ in range(2):
        mine, saved = other.empty([exact, roomy(2 * LEAST_BYTES)])
        assert mine.untyped_storage().nbytes() == mine.nbytes
        assert saved.data_ptr() == address
        del mine, saved


@pytest.mark.parametrize("times", [0.9, 1.1])
def test_where_all_results_of_a_call_are_a_little_larger_or_smaller_each_finds_its_own(times: float) -> None:
    memory = OutputMemory()
    sizes = [2 * LEAST_BYTES, 4 * LEAST_BYTES, 3 * LEAST_BYTES]
    before = [made.data_ptr() for made in memory.empty([roomy(size) for size in sizes])]
    for _ in range(2):
        assert before == [made.data_ptr() for made in memory.empty([roomy(int(times * size)) for size in sizes])]
    assert memory.kept_bytes == sum(int(max(times, 1) * size) for size in sizes)


def test_what_was_not_taken_for_longest_is_forgotten_first() -> None:
    memory = OutputMemory()
    address = take(memory).data_ptr()
    for size in range(1, 40):
        memory.empty([Room.of((LEAST_BYTES // 4 + size,), torch.float32)])
        (again,) = memory.empty([LARGE])
        assert again.data_ptr() == address
        del again


@pytest.mark.parametrize("lengths", [range(40, 400, 24), [400, 240, 333, 280, 210, 390]], ids=["growing", "any"])
def test_what_lengths_save_for_their_backward_lies_where_it_lay_for_others(
    lengths: Sequence[int], monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[bool] = []

    def noted(room: Room, kept: list[Any]) -> Any:
        taken = plain(room, kept)
        found.extend([taken is not None] if room.is_roomy else [])
        return taken

    plain = output_memory._roomy_for
    monkeypatch.setattr(output_memory, "_roomy_for", noted)
    monkeypatch.setattr(output_memory, "SHARED", Shared(OutputMemory))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 64), torch.nn.Tanh())
    run = torch.compile(model, backend="ipu", dynamic=True)
    for length in lengths:
        x = torch.randn(4, length, 64, requires_grad=True)
        made = run(x)
        made.sin().sum().backward()
        twin = x.detach().double().requires_grad_()
        copy.deepcopy(model).double()(twin).sin().sum().backward()
        torch.testing.assert_close(x.grad.double(), twin.grad, rtol=1e-5, atol=1e-5)
        assert made.untyped_storage().nbytes() == made.nbytes  # the user's own, which torch.save writes whole
        del made
    assert len(found) >= len(lengths)
    assert sum(found) > len(found) / 2


def test_small_results_are_left_to_the_c_library() -> None:
    memory = OutputMemory()
    memory.empty([Room.of((4, 4), torch.float32)])
    assert memory.kept_bytes == 0


def test_threads_never_have_the_same_memory() -> None:
    memory = OutputMemory()

    def work(number: int) -> bool:
        for _ in range(100):
            mine = take(memory).fill_(number)
            if not bool((mine == number).all()):
                return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


class Affine(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 + 1


DOORS: dict[str, Callable[[], Callable[[torch.Tensor], torch.Tensor]]] = {
    "torch.compile": lambda: torch.compile(Affine(), backend=ipu_backend),
    "a step": lambda: torchipu.InferenceStep(Affine()),
    "a step of several iterations": lambda: torchipu.InferenceStep(Affine(), torchipu.Options(device_iterations=2)),
}


@pytest.mark.parametrize("door", DOORS)
def test_results_lie_where_those_lay_that_nobody_holds(door: str) -> None:
    compiled = DOORS[door]()
    x = torch.randn(LEAST_BYTES)
    first = compiled(x)
    address, copy = first.data_ptr(), first.clone()
    assert compiled(x + 1).data_ptr() != address
    torch.testing.assert_close(first, copy, rtol=0, atol=0)  # what the caller holds stays as it is
    second = compiled(x)
    held = second.data_ptr()
    del second
    assert compiled(x).data_ptr() == held


@pytest.mark.parametrize("shape", [(), (3,), (2, 5), (0, 3), (3, 0, 2), (LEAST_BYTES, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.half, torch.int64, torch.bool])
def test_tensors_are_those_that_torch_makes(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    made = OutputMemory().empty([Room.of(shape, dtype)])[0]
    expected = torch.empty(shape, dtype=dtype)
    assert (made.shape, made.stride(), made.dtype) == (expected.shape, expected.stride(), expected.dtype)
    assert made.is_contiguous()
    assert made.untyped_storage().nbytes() == expected.untyped_storage().nbytes()


def test_results_lie_on_the_host_whatever_the_default_device() -> None:
    with torch.device("meta"):
        made = OutputMemory().empty([Room.of((3,), torch.float32), LARGE])
    assert [value.device.type for value in made] == ["cpu", "cpu"]


def test_copies_lie_as_their_originals_and_in_memory_that_is_taken_again() -> None:
    memory = OutputMemory()
    values = [torch.randn(4, 8, 30, 40).to(memory_format=torch.channels_last), torch.randn(300, 400)[::2].bfloat16()]
    dtypes = [torch.bfloat16, torch.float32]
    made = memory.copies(values, dtypes)
    for one, value, dtype in zip(made, values, dtypes, strict=True):
        assert torch.equal(one, value.to(dtype))
        assert one.stride() == value.to(dtype).stride()
    addresses = [one.data_ptr() for one in made]
    del made, one
    assert [one.data_ptr() for one in memory.copies(values, dtypes)] == addresses


NARROWED = {
    "cat": lambda x, y: (torch.cat([x, y]),), "sum": lambda x, y: (x + y,),
    "clone": lambda x, y: (x.clone(), y.clone()),
    "to_half": lambda x, y: (x.half(), y.half()),
}


@pytest.mark.parametrize("name", list(NARROWED))
@pytest.mark.filterwarnings("ignore:torchipu. torch.bfloat16 does not exist")
def test_what_is_converted_at_the_border_asks_for_no_memory_again(name: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(NARROWED[name], backend="ipu", dynamic=False)
    x, y = torch.randn(300, 400).bfloat16(), torch.randn(300, 400).bfloat16()
    for _ in range(3):
        compiled(x, y)
    with torch.profiler.profile(profile_memory=True) as profile:
        found = compiled(x, y)
    asked = [event.self_cpu_memory_usage for event in profile.events() if event.self_cpu_memory_usage >= LEAST_BYTES]
    assert not asked
    kept = [value.clone() for value in found]
    later = compiled(y, x)
    assert all(map(torch.equal, found, kept))  # what is held stays what it is
    assert all(map(torch.equal, later, NARROWED[name](y, x)))


@pytest.mark.parametrize("shape", [(3, 1), (1, 1), (1,), ()])
@pytest.mark.parametrize("single", [
    lambda x: x.sum(0) if x.dim() else x * 2, lambda x: x.amax().reshape(1), lambda x: x.mean(), torch.prod,
    lambda x: x.reshape(-1)[:1].exp(), lambda x: x.argmax().reshape(1), lambda x: x.reshape(-1, 1).T @ x.reshape(-1, 1),
], ids=["sum", "amax", "mean", "prod", "exp", "argmax", "product"])
def test_a_result_of_no_elements_is_no_room_for_the_element_that_it_is_taken_from(
    single: Callable[[torch.Tensor], torch.Tensor], shape: tuple[int, ...],
) -> None:
    x = torch.rand(shape).requires_grad_()
    for take_none in (lambda y: y.reshape(-1)[:0], lambda y: y.reshape(1, -1)[:, 1:]):
        torch._dynamo.reset()

        def nothing(x: torch.Tensor, take_none: Callable[[torch.Tensor], torch.Tensor] = take_none) -> torch.Tensor:
            return take_none(single(x))

        found, wanted = torch.compile(nothing, backend="ipu")(x), nothing(x)
        assert found.shape == wanted.shape
        if wanted.requires_grad:
            assert torch.equal(*(torch.autograd.grad(y.sum(), x)[0] for y in (found, wanted)))
