"""What a size costs that a compiled model has not seen: beside the first compilation, and beside eager.

    python benchmarks/bench_sizes.py

Asserts nothing. Each figure is a median, in milliseconds of wall time and of CPU time of all threads: on a machine that
others load trust the latter. Eager and ours take turns, with a rest before each sample.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import torchipu  # noqa: F401  registers the backend
from torchipu.backend import COUNTS

sys.path.append(str(Path(__file__).resolve().parents[1]))  # a benchmark that is run by its path does not find tests

from tests.models.architectures.torchvision_schemas import import_torchvision

REST_SECONDS = 0.1


def sample(call: Callable[[], Any]) -> tuple[float, float]:
    """Return the milliseconds of wall and of CPU time of a call, after a rest."""
    time.sleep(REST_SECONDS)
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return 1e3 * (time.perf_counter() - wall), 1e3 * (time.process_time() - cpu)


def shown(name: str, samples: list[tuple[float, float]]) -> None:
    """Print medians."""
    wall, cpu = (statistics.median(column) for column in zip(*samples, strict=True))
    print(f"  {name:44s} {wall:10.1f} ms wall {cpu:10.1f} ms CPU")


def bert(sizes: int) -> None:
    """Print what new lengths cost of a BERT of two layers."""
    import_torchvision()
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(num_hidden_layers=2, hidden_size=128, num_attention_heads=2, intermediate_size=512)
    model = BertModel(config).eval()
    run = torch.compile(model, backend="ipu", dynamic=True)

    def call(length: int) -> Any:
        ids = torch.full((2, length), 7)
        return run(input_ids=ids, attention_mask=torch.ones_like(ids))

    with torch.no_grad():
        first = [sample(lambda: call(20))]
        lengths = range(21, 21 + sizes)
        new = [sample(lambda n=length: call(n)) for length in lengths]
        again = [sample(lambda n=length: call(n)) for length in lengths]
        ids = torch.full((2, 30), 7)
        eager = [sample(lambda: model(input_ids=ids, attention_mask=torch.ones_like(ids))) for _ in range(sizes)]
    print(f"BERT of 2 layers, {sizes} lengths")
    for name, samples in (("first compilation", first), ("a new length", new), ("a known length", again),
                          ("eager", eager)):
        shown(name, samples)
    cost = [statistics.median(s[k] for s in new) - statistics.median(s[k] for s in again) for k in (0, 1)]
    print(f"  a new length costs {cost[0]:.1f} ms wall, {cost[1]:.1f} ms CPU: "
          f"{100 * cost[1] / first[0][1]:.2f} % of the first compilation's CPU time")


def generate(tokens: int, rounds: int) -> None:
    """Print what tokens take of a tiny GPT-2 with a cache that grows."""
    import_torchvision()
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(n_layer=2, n_head=2, n_embd=64, vocab_size=256, n_positions=256)
    eager, ours = GPT2LMHeadModel(config).eval(), GPT2LMHeadModel(config).eval()
    ours.load_state_dict(eager.state_dict())
    ours.forward = torch.compile(ours.forward, backend="ipu")

    def call(model: Any, length: int) -> torch.Tensor:
        ids = torch.arange(length)[None]
        return model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False,
            pad_token_id=0,
        )

    call(eager, 5)
    first = [sample(lambda: call(ours, 5))]
    theirs, again = [], []
    for _ in range(rounds):
        theirs.append(sample(lambda: call(eager, 5)))
        again.append(sample(lambda: call(ours, 5)))
    sizes = [sample(lambda: call(ours, 5 + tokens))]  # all of them new, and captured already
    longer = [sample(lambda: call(eager, 5 + tokens)) for _ in range(rounds)]
    assert torch.equal(call(eager, 5), call(ours, 5))
    print(f"GPT-2 of 2 layers, {tokens} tokens with a cache that grows")
    for name, samples in (("first call, with its captures", first), ("second call", again), ("eager", theirs),
                          ("a call of new sizes only", sizes), ("eager of these", longer)):
        shown(name, samples)
    for name, mine, other in (("second call", again, theirs), ("new sizes", sizes, longer), ("first", first, theirs)):
        ratios = [statistics.median(s[k] for s in mine) / statistics.median(s[k] for s in other) for k in (0, 1)]
        print(f"  {name} / eager: {ratios[0]:.2f} wall, {ratios[1]:.2f} CPU")


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    bert(arguments.sizes)
    generate(arguments.tokens, arguments.rounds)
    print(COUNTS)


if __name__ == "__main__":
    main()
