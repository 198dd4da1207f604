"""How much memory plans of several sizes take together, and which of them are dropped."""

import pytest
import torch

from torchipu.backend import COUNTS, ipu_backend


def test_plans_beyond_the_bound_are_made_anew_with_one_warning():
    run = torch.compile(
        lambda x: (x * x.shape[0]).sum(), backend=ipu_backend, dynamic=True, options={"plan_cache_bytes": 1},
    )
    evicted = COUNTS.evicted
    sizes = (2, 3, 4, 5, 2)
    with pytest.warns(UserWarning, match="plan_cache_bytes=1; .*cache_implementation=\"static\"") as caught:
        sums = [run(torch.ones(size)).item() for size in sizes]
    assert sums == [size * size for size in sizes]
    assert COUNTS.evicted == evicted + 4
    assert sum("plan_cache_bytes" in str(warning.message) for warning in caught) == 1


def test_the_plan_of_the_last_call_stays_though_it_is_larger_than_the_bound():
    run = torch.compile(lambda x: x * 2, backend=ipu_backend, dynamic=True, options={"plan_cache_bytes": 1})
    x = torch.ones(3, 5)
    run(x)
    before = COUNTS.programs
    for _ in range(3):
        torch.testing.assert_close(run(x), x * 2)
    assert COUNTS.programs == before
