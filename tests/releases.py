"""Releases of torch that do something else than the newest: what tests leave out with them, and why."""

from __future__ import annotations

import pytest
import torch

RELEASE = tuple(int(part) for part in torch.__version__.split(".")[:2])


def not_before(release: tuple[int, int], reason: str) -> pytest.MarkDecorator:
    """Return a mark that leaves a test out with releases of torch before one that it ran with.

    Args:
        release: That one.
        reason: What earlier ones do.
    """
    return pytest.mark.skipif(release > RELEASE, reason=f"torch {torch.__version__}: {reason}")


COMPILES_AT_ONCE = not_before((2, 12), "its Dynamo fails, or ends the process, where several threads compile at once")
SETTINGS_OF_THREADS = not_before(
    (2, 12), "its settings are those of the process, and calls of any size from several threads leave them changed",
)
WRITES_IN_BRANCHES = not_before((2, 12), "it refuses branches that write, with words of its own")
WRITES_WITHIN_LOOPS = not_before((2, 13), "it refuses a branch that writes within a loop with words of its own")
WRITES_BY_DATA = not_before((2, 13), "it refuses weight.data *= mask")
TRAINED_SCANS = not_before((2, 13), "it takes what a scan carries and what it gives for the same memory")
QUANTISED_RESULTS = not_before((2, 13), "it refuses a quantised result with words of its own")
WORDS_ON_DEVICES = not_before((2, 13), "it does not say that devices differ")
CHANGED_CONTAINERS = not_before((2, 11), "it refuses a list or a deque of the model's that grows with words of its own")
MESSAGES_IN_GRAPHS = not_before((2, 13), "its graphs have no messages between two processes")
LEFT_TENSORS = not_before((2, 13), "it refuses a tensor of an earlier run in words of its own")
NUMBERS_IN_BUCKETS = not_before((2, 13), "its tensors without values take no number in torch.bucketize")
SEVERAL_QUANTILES = not_before((2, 13), "it asks for values of several quantiles")
GRADIENTS_WITHIN = not_before((2, 13), "its Dynamo does not trace torch.autograd.grad")
WORDS_ON_DIAGONALS = not_before((2, 13), "it refuses a diagonal of another length in words of its own")
USERS_WITHOUT_NAMES = not_before((2, 13), "its own folder of caches asks for the user's name")
CASTS_BEYOND = not_before((2, 13), "its eager cast makes NaN of what is too large for float8_e4m3fn")
NO_EPSILON = not_before((2, 13), "it refuses batch normalisation whose eps is 0")
