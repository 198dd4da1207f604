"""A program that does not fit: its error names what was tried, what that frees, and what then fits."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch

import torchipu
from tests.advice.small_models import Tower, train_step
from torchipu.advice import remedies
from torchipu.advice.situation import gain_of
from torchipu.errors import OutOfTileMemoryError

TINY = "mk2,num_tiles=4,tile_memory_bytes={}"


def refused(bytes_of_a_tile: int, **options: Any) -> tuple[OutOfTileMemoryError, torchipu.TrainStep]:
    step = train_step(Tower(), momentum=0.9, target=TINY.format(bytes_of_a_tile), **options)
    with pytest.raises(OutOfTileMemoryError) as caught:
        step(torch.randn(32, 256))
    return caught.value, step


def needed(**options: Any) -> int:
    step = train_step(
        Tower(), momentum=0.9, target="mk2,num_tiles=4", allow_out_of_memory=True, gradient_accumulation=2, **options,
    )
    step.compile(torch.zeros(32, 256))
    return max(memory.total_bytes for memory in step.profile.memory_by_ipu)


def test_the_error_says_what_each_change_frees_and_names_the_best() -> None:
    before = needed()
    after = needed(offload_optimiser_state=True)
    assert after < before
    error, _ = refused((before + after) // 2, gradient_accumulation=2)
    text = str(error)
    assert f"needs {before} B" in error.message
    assert "largest variables on this tile:" in text
    assert "self.layers(x)" in text
    assert "the model tried, best first:" in text
    tried = {option: (freed, fits) for option, freed, fits in error.tried}
    assert len(tried) >= 3
    assert tried["offload_optimiser_state=True"] == (before - after, True)
    assert f"{before - after:,} B less on the fullest tile, which then fits" in text
    assert error.remedy.startswith("set ")
    assert error.tried[0][2]
    assert f"set {error.tried[0][0]}: it then fits" in error.remedy
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == text
    assert again.tried == error.tried


def test_the_remedy_that_is_named_lets_the_step_run() -> None:
    before, after = needed(), needed(offload_optimiser_state=True)
    target = TINY.format((before + after) // 2)
    step = train_step(
        Tower(), momentum=0.9, target=target, gradient_accumulation=2, offload_optimiser_state=True,
    )
    assert torch.isfinite(step(torch.randn(32, 256)))


def test_what_fits_alone_with_nothing_is_put_together() -> None:
    error, _ = refused(needed() // 3, gradient_accumulation=2)
    joined = [option for option, _, _ in error.tried if "model.half()" in option and ", " in option]
    assert joined
    frees = {option: freed for option, freed, _ in error.tried}
    assert frees[joined[0]] > frees["model.half()"]


def test_model_optimiser_and_step_are_as_before() -> None:
    model = Tower()
    weights = copy.deepcopy(model.state_dict())
    step = train_step(model, momentum=0.9, target=TINY.format(300_000), gradient_accumulation=2)
    options = step.options
    for _ in range(2):
        with pytest.raises(OutOfTileMemoryError):
            step(torch.randn(32, 256))
        assert step.optimizer.state == {}
        assert step.options is options
        assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


def test_torch_compile_tells_too() -> None:
    torch._dynamo.reset()
    model = torch.compile(Tower(), backend="ipu", options={"target": TINY.format(250_000)})
    with pytest.raises(Exception, match=r"needs \d+ B") as caught:
        model(torch.randn(32, 256))
    error = caught.value
    while not isinstance(error, OutOfTileMemoryError):
        error = error.__cause__ or error.__context__
    assert "the model tried, best first:" in error.detail


def test_no_more_is_tried_than_there_is_time_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remedies, "SECONDS", 0.0)
    monkeypatch.setattr(remedies, "MOST_SECONDS", 0.0)
    error, _ = refused(300_000, gradient_accumulation=2)
    assert error.tried == ()
    assert "not tried for lack of time: " in error.detail
    assert error.remedy == "put the model on more IPUs (torchipu.Block), save memory with recomputation or off-chip " \
        "optimiser state, or make the micro-batch or the available memory proportion smaller"


def test_gains_say_whether_it_fits() -> None:
    class Half:
        def __init__(self, fullest: int, limit: int, rate: float) -> None:
            self.fullest_bytes, self.lacking_bytes, self.samples_per_second = fullest, max(0, fullest - limit), rate
            self.fits = not self.lacking_bytes

    full, fitting, fuller = Half(120, 100, 10.0), Half(90, 100, 5.0), Half(130, 100, 20.0)
    assert gain_of(full, fitting) == "-50.0% samples/s; 30 B less on the fullest tile, which then fits"
    assert gain_of(full, fuller) == "+100.0% samples/s; 10 B more on the fullest tile, which still lacks 30 B"
    assert gain_of(fitting, full) == "+100.0% samples/s; 30 B more on the fullest tile, which then does not fit"
