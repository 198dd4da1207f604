"""What other machines would have done to BERT, ViT and GPT-2, in the splits over IPUs of `published_models`.

    python benchmarks/other_machines.py bert-base bow bow,exchange_bytes_per_cycle=8 bow,tile_memory_bytes=319488

The first argument is the model, the others are machines as `Options.target` takes them; without any, a Bow, one with
twice the exchange, half the tiles, half the memory, twice the links, and twice the rates of the matrix unit. The model
is captured once, and every layer is recomputed from its inputs. Cycles are those of a micro-batch, with all that an
update adds shared out among its micro-batches.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import torch

import torchipu
from published_models import PUBLISHED
from torchipu.compiler import try_graph
from torchipu.device.memory import tile_memory
from torchipu.target import Target, lookup_target

BOW = lookup_target("bow")
MACHINES = (
    BOW,
    BOW.replaced(exchange_bytes_per_cycle=2 * BOW.exchange_bytes_per_cycle),
    BOW.replaced(num_tiles=BOW.num_tiles // 2),
    BOW.replaced(tile_memory_bytes=BOW.tile_memory_bytes // 2),
    BOW.replaced(link_bytes_per_cycle=2 * BOW.link_bytes_per_cycle),
    BOW.replaced(amp_macs_half_half=2 * BOW.amp_macs_half_half, amp_macs_half_float=2 * BOW.amp_macs_half_float,
                 amp_macs_float=2 * BOW.amp_macs_float),
)


def main(name: str, machines: list[Target], by: int = 1) -> None:
    """Print a row for each machine.

    Args:
        name: The model.
        machines: The first one is what the others are compared with.
        by: All sizes of the model but its depth are divided by this.
    """
    published = PUBLISHED[name]
    torch.manual_seed(0)
    model = published.model(by).half()
    inputs = tuple(value.half() if value.is_floating_point() else value for value in published.inputs(by))
    for path, ipu in published.starts().items():
        torchipu.BeginBlock(model.get_submodule(path), path, ipu_id=ipu)
    recomputed = tuple(path for path in published.starts() if path.startswith("layers."))
    options = replace(published.options(), recompute=recomputed, allow_out_of_memory=True)
    graph = torchipu.TrainStep(model, published.optimiser(model), options).graph_of(inputs, {})
    print("| machine | cycles of a micro-batch | us | against the first | fullest tile |\n|---|---|---|---|---|")
    first = 0.0
    for target in machines:
        made = try_graph(graph, replace(options, target=target), target, micro_batches=published.accumulation)
        cycles = made.cost.cycles / published.accumulation
        microseconds = cycles / target.clock_hz * 1e6
        first = first or microseconds
        fullest = max(memory.total_bytes for memory in tile_memory(made.executable, target))
        fits = "" if fullest <= target.tile_memory_bytes else f" of {target.tile_memory_bytes:,}: does not fit"
        print(
            f"| {target.title} | {cycles:,.0f} | {microseconds:,.0f} | {microseconds / first:.3f} | "
            f"{fullest:,}{fits} |", flush=True,
        )


if __name__ == "__main__":
    chosen, *named = sys.argv[1:] or ["bert-base"]
    main(chosen, [lookup_target(name) for name in named] or list(MACHINES))
