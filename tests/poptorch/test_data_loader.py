"""DataLoader: batch sizes, order, shares of processes, modes, refusals."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

from tests.poptorch.data_sets import Numbers, Point, PointParser, Stream, Types, keep_part
from torchipu import poptorch

SYNC, ASYNC, REBATCHED = poptorch.DataLoaderMode
FORK = {"sharing_strategy": poptorch.SharingStrategy.Fork}


@pytest.fixture(autouse=True)
def loaders_end(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """End what a test has made."""
    made: list[poptorch.DataLoader] = []
    plain = poptorch.DataLoader.__init__

    def remembered(self: Any, *args: Any, **kwargs: Any) -> None:
        plain(self, *args, **kwargs)
        made.append(self)

    monkeypatch.setattr(poptorch.DataLoader, "__init__", remembered)
    yield
    for loader in made:
        loader.terminate()


def options(iterations: int = 1, accumulation: int = 1, replicas: int = 1) -> poptorch.Options:
    """Return options."""
    made = poptorch.Options().deviceIterations(iterations).replicationFactor(replicas)
    made.Training.gradientAccumulation(accumulation)
    return made


def load(*args: Any, **kwargs: Any) -> poptorch.DataLoader:
    """Return a loader; asynchronous ones fork, which is quick."""
    if kwargs.get("mode", SYNC) is not SYNC:
        kwargs["async_options"] = FORK | kwargs.get("async_options", {})
    return poptorch.DataLoader(*args, **kwargs)


def numbers(loader: Any) -> list[list[int]]:
    """Return the elements of each batch of an epoch."""
    return [(batch[1] if isinstance(batch, (list, tuple)) else batch).tolist() for batch in loader]


def flat(batches: Iterable[list[int]]) -> list[int]:
    """Return the elements of all batches."""
    return list(itertools.chain.from_iterable(batches))


# ---------------------------------------------------------------------- sizes
@pytest.mark.parametrize("mode", [SYNC, ASYNC, REBATCHED])
def test_a_batch_is_enough_for_one_call(mode: poptorch.DataLoaderMode) -> None:
    loader = load(options(2, 3, 2), Numbers(50), batch_size=2, mode=mode)
    assert loader.combinedBatchSize == 24
    assert len(loader) == 2
    assert numbers(loader) == [list(range(24)), list(range(24, 48))]
    assert next(iter(loader))[0].shape == (24, 2, 3)


def test_input_groups_share_a_batch() -> None:
    made = options(replicas=4).inputReplicaGrouping(2, poptorch.CommGroupType.Consecutive)
    assert load(made, Numbers(8), batch_size=2).combinedBatchSize == 4


@pytest.mark.parametrize("mode", [SYNC, ASYNC, REBATCHED])
def test_last_batch_is_smaller_unless_dropped(mode: poptorch.DataLoaderMode) -> None:
    loader = load(options(2), Numbers(10), batch_size=2, drop_last=False, mode=mode)
    assert len(loader) == 3
    for _ in range(2):
        assert numbers(loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


@pytest.mark.parametrize("mode", [SYNC, ASYNC])
def test_data_that_comes_in_batches_is_passed_on(mode: poptorch.DataLoaderMode) -> None:
    loader = load(options(4), Numbers(3), batch_size=None, mode=mode)
    assert loader.combinedBatchSize is None
    assert len(loader) == 3
    assert numbers(loader) == [0, 1, 2]


@pytest.mark.parametrize("mode", [SYNC, ASYNC])
def test_a_loader_that_only_a_loop_holds_lasts_to_the_end_of_it(mode: poptorch.DataLoaderMode) -> None:
    assert numbers(iter(load(options(), Numbers(4), mode=mode))) == [[0], [1], [2], [3]]


@pytest.mark.parametrize("mode", [SYNC, ASYNC])
def test_types_and_keys_stay(mode: poptorch.DataLoaderMode) -> None:
    expected = [Types(4)[index] for index in range(4)]
    (batch,) = load(options(2), Types(4), batch_size=2, mode=mode)
    assert list(batch) == list(expected[0])
    for key, tensor in batch.items():
        reference = torch.stack([element[key] for element in expected])
        assert tensor.dtype == reference.dtype
        assert torch.equal(tensor, reference)


@pytest.mark.parametrize("mode", [SYNC, ASYNC, REBATCHED])
def test_workers_keep_the_order(mode: poptorch.DataLoaderMode) -> None:
    loader = load(options(2), Numbers(20), batch_size=2, num_workers=2, mode=mode)
    assert loader.persistent_workers
    for _ in range(2):
        assert numbers(loader) == [list(range(begin, begin + 4)) for begin in range(0, 20, 4)]


def test_pieces_of_workers_are_joined_across_batches() -> None:
    loader = load(options(2), Numbers(20), batch_size=4, rebatched_worker_size=3, mode=REBATCHED)
    for _ in range(2):
        assert numbers(loader) == [list(range(8)), list(range(8, 16))]


def test_rebatching_loses_nothing_of_what_workers_have_left() -> None:
    loader = load(
        options(4), Stream(24), batch_size=2, num_workers=2, worker_init_fn=keep_part, rebatched_worker_size=5,
        mode=REBATCHED,
    )
    assert sorted(flat(numbers(loader))) == list(range(24))
    assert len(loader) == 3


# ---------------------------------------------------------------------- epochs
@pytest.mark.parametrize("indefinitely", [True, False])
@pytest.mark.parametrize("early", [True, False])
def test_epochs_left_in_the_middle_begin_anew(indefinitely: bool, early: bool) -> None:
    loader = load(
        options(), Numbers(7), mode=ASYNC,
        async_options={"load_indefinitely": indefinitely, "early_preload": early, "buffer_size": 2},
    )
    for stop in (0, 3, 7, 1):
        read = [batch[1].item() for batch, _ in zip(loader, range(stop), strict=False)]
        assert read == list(range(stop))
    for _ in range(3):
        assert numbers(loader) == [[number] for number in range(7)]


def test_shuffling_follows_torchs_seed_in_every_mode() -> None:
    for mode in (SYNC, ASYNC):
        orders = []
        for seed in (3, 3, 4):
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                loader = load(options(), Numbers(30), shuffle=True, mode=mode)
                orders.append([numbers(loader), numbers(loader)])
        assert orders[0] == orders[1] != orders[2]
        assert orders[0][0] != orders[0][1]
        assert sorted(orders[0][1]) == [[number] for number in range(30)]


# ---------------------------------------------------------------------- batch samplers
@pytest.mark.parametrize("mode", [SYNC, ASYNC])
@pytest.mark.parametrize("drop_last", [True, False])
def test_batches_of_a_sampler_are_grouped_for_a_call(mode: poptorch.DataLoaderMode, drop_last: bool) -> None:
    sampler = BatchSampler(SequentialSampler(range(14)), batch_size=2, drop_last=False)
    loader = load(options(3), Numbers(14), batch_sampler=sampler, drop_last=drop_last, mode=mode)
    expected = [list(range(6)), list(range(6, 12)), [12, 13]]
    assert loader.combinedBatchSize == 6
    assert len(loader) == (2 if drop_last else 3)
    assert numbers(loader) == (expected[:2] if drop_last else expected)


def test_grouped_batches_keep_types_and_keys() -> None:
    (batch,) = load(options(2), Types(4), batch_sampler=BatchSampler(SequentialSampler(range(4)), 2, False))
    expected = [Types(4)[index] for index in range(4)]
    assert list(batch) == list(expected[0])
    for key, tensor in batch.items():
        assert torch.equal(tensor, torch.stack([element[key] for element in expected]))


def test_batches_are_collated_one_by_one() -> None:
    def sums(elements: list[Any]) -> torch.Tensor:
        return torch.tensor([[sum(int(number) for _, number in elements)]])

    sampler = [[0, 1, 2], [3], [4, 5], [6, 7, 8, 9]]
    loader = load(options(2), Numbers(10), batch_sampler=sampler, collate_fn=sums)
    assert loader.combinedBatchSize is None
    assert [batch.tolist() for batch in loader] == [[[3], [3]], [[9], [30]]]


def test_grouped_batches_of_a_users_class_are_joined_by_its_parser() -> None:
    def point(elements: list[Any]) -> Point:
        rows, sums = zip(*elements, strict=True)
        return Point(torch.cat(rows), torch.stack(sums).sum(), "made of two")

    sampler = BatchSampler(SequentialSampler(range(4)), 2, False)
    with pytest.raises(poptorch.Error, match=r"Batches of Point cannot be joined.*registerCustomArgParser"):
        list(load(options(2), Numbers(4), batch_sampler=sampler, collate_fn=point))
    poptorch.registerCustomArgParser(Point, PointParser())
    try:
        (batch,) = load(options(2), Numbers(4), batch_sampler=sampler, collate_fn=point)
    finally:
        poptorch.registerCustomArgParser(Point, None)
    assert torch.equal(batch.x, torch.cat([Numbers(4)[index][0] for index in range(4)]))
    assert batch.y.tolist() == [1, 5]  # a number of each batch is a row
    assert batch.name == "made of two"


# ---------------------------------------------------------------------- shares of processes
def shares(length: int, processes: int, epochs: int, *, seed: int | None = None, **kwargs: Any) -> list[list[Any]]:
    """Return what each process reads in each epoch, flat."""
    read = []
    for process in range(processes):
        made = options(2)
        made.Distributed.configureProcessId(process, processes)
        if seed is not None:
            made.randomSeed(seed)
        loader = load(made, Numbers(length), batch_size=2, shuffle=seed is not None, **kwargs)
        read.append([flat(numbers(loader)) for _ in range(epochs)])
        assert len(loader) * 4 >= len(read[-1][0])
    return read


@pytest.mark.parametrize("mode", [SYNC, ASYNC])
def test_processes_read_fixed_blocks(mode: poptorch.DataLoaderMode) -> None:
    blocks = [list(range(8)), list(range(8, 16))]
    assert shares(21, 2, 2, mode=mode) == [[block, block] for block in blocks]


def test_processes_share_everything_where_nothing_is_dropped() -> None:
    assert [len(process[0]) for process in shares(23, 3, 1, drop_last=False)] == [8, 8, 7]
    assert flat(process[0] for process in shares(23, 3, 1, drop_last=False)) == list(range(23))


@pytest.mark.parametrize("mode", [SYNC, ASYNC])
def test_processes_shuffle_together_and_leave_nothing_out_for_two_epochs(mode: poptorch.DataLoaderMode) -> None:
    with torch.random.fork_rng():
        read = shares(30, 3, 4, seed=5, mode=mode)
        again = shares(30, 3, 4, seed=5)
    assert read == again
    for epoch in range(4):
        together = [number for process in read for number in process[epoch]]
        assert len(together) == len(set(together)) == 24
    for epoch in range(3):
        assert {number for process in read for number in process[epoch] + process[epoch + 1]} == set(range(30))
    assert len({tuple(epoch) for process in read for epoch in process}) == 12


def test_user_may_share_by_himself() -> None:
    assert shares(8, 2, 1, auto_distributed_partitioning=False) == [[list(range(8))]] * 2


# ---------------------------------------------------------------------- refusals
def two_processes() -> poptorch.Options:
    """Return options of the first of two processes."""
    made = options(2)
    made.Distributed.configureProcessId(0, 2)
    return made


SAMPLER = BatchSampler(RandomSampler(range(8)), 2, False)
REFUSALS: list[tuple[Any, Any, dict[str, Any], type[Exception], str]] = [
    (lambda: None, Numbers(8), {}, AssertionError, "must be a poptorch.Options"),
    (options, Numbers(8), {"batch_sampler": SAMPLER, "batch_size": 2}, poptorch.Error,
     "`batch_sampler` option is mutually exclusive with batch_size, shuffle."),
    (options, Numbers(8), {"batch_sampler": SAMPLER, "shuffle": True}, poptorch.Error,
     "`batch_sampler` option is mutually exclusive with batch_size, shuffle."),
    (two_processes, Numbers(8), {"batch_sampler": SAMPLER}, poptorch.Error, "auto_distributed_partitioning"),
    (two_processes, Numbers(8), {"sampler": SequentialSampler(range(8))}, poptorch.Error, "mutually exclusive"),
    (two_processes, Numbers(8), {"shuffle": True}, AssertionError,
     "When using auto_distributed_partitioning you must set poptorch.Options.randomSeed"),
    (two_processes, Numbers(8), {"batch_size": None}, AssertionError, "needs a batch_size"),
    (two_processes, Numbers(3), {}, poptorch.Error, "has 3 elements, and 2 processes take 4 in a step"),
    (two_processes, Stream(8), {}, AssertionError, "auto_distributed_partitioning not supported for IterableDataset"),
    (options, Numbers(8), {"mode": REBATCHED, "rebatched_worker_size": 2}, AssertionError, "must not be larger"),
    (options, Numbers(8), {"mode": ASYNC, "async_options": {"rebatched_size": 2}}, AssertionError, "rebatched_size"),
]


@pytest.mark.parametrize(("make", "dataset", "arguments", "kind", "text"), REFUSALS)
def test_refused(make: Any, dataset: Any, arguments: dict[str, Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind) as refusal:
        load(make(), dataset, **arguments)
    assert text in str(refusal.value)


def test_options_are_frozen_by_a_loader() -> None:
    made = options()
    assert load(made, Numbers(4)).options is made
    with pytest.raises(AttributeError, match="Can't modify frozen Options"):
        made.deviceIterations(2)


def test_length_of_a_stream_is_refused_in_torchs_words() -> None:
    class Endless(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter(())

    with pytest.raises(TypeError, match="has no len"):
        len(load(options(), Endless()))


@pytest.mark.parametrize(("dataset", "arguments", "text"), [
    (Numbers(10), {"batch_size": 2, "drop_last": False},
     "(10) is not divisible by the number of elements processed per step (4)"),
    (Stream(4), {"num_workers": 2}, "each of them will return the full dataset"),
    (Numbers(10), {"batch_sampler": BatchSampler(range(10), 2, False), "drop_last": False},
     "(5) is not divisible by the number of batches processed per step (2)"),
    (Numbers(10), {"batch_sampler": iter([[0, 1]])}, "The length of the batch_sampler is not known"),
])
def test_warned(dataset: Any, arguments: dict[str, Any], text: str, caplog: pytest.LogCaptureFixture) -> None:
    load(options(2), dataset, **arguments)
    assert text in caplog.text


@pytest.mark.parametrize(("dataset", "arguments"), [
    (Numbers(8), {"batch_size": 2, "drop_last": False}), (Numbers(10), {"batch_size": 2}),
    (Stream(4), {"num_workers": 2, "worker_init_fn": keep_part}), (Stream(4), {"num_workers": 1}),
])
def test_not_warned(dataset: Any, arguments: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    load(options(2), dataset, **arguments)
    assert not caplog.records
