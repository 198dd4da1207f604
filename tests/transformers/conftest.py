"""What holds for tests with transformers: they are skipped without it, and leave no state of accelerate behind."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

pytest.importorskip("transformers", reason='transformers is not installed: pip install "torchipu[transformers]"')
pytest.importorskip("accelerate", reason='accelerate is not installed: pip install "torchipu[transformers]"')


@pytest.fixture(autouse=True)
def _as_in_a_fresh_process() -> Iterator[None]:
    """Undo what TrainingArguments put into the environment, and what accelerate and Dynamo keep for a process."""
    import torch
    from accelerate.state import AcceleratorState

    before = dict(os.environ)
    AcceleratorState._reset_state(reset_partial_state=True)
    torch._dynamo.reset()
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the judges' tensors are so small that more threads only wait for one another
    yield
    torch.set_num_threads(num_threads)
    AcceleratorState._reset_state(reset_partial_state=True)
    for name in set(os.environ) - set(before):
        del os.environ[name]
    os.environ.update(before)
