"""Tell molecules that have a certain bond from others by a graph network, in batches of one size.

    python examples/graph_classification.py
    python examples/graph_classification.py --strategy stream-pack --layer gcn
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import poptorch
import torch
from poptorch_geometric import FixedSizeDataLoader, FixedSizeOptions, FixedSizeStrategy
from torch import nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GCNConv, GINConv, global_add_pool

from command_line import make_parser, positive

NUM_ELEMENTS = 4
STRATEGIES = {"pad-to-max": FixedSizeStrategy.PadToMax, "stream-pack": FixedSizeStrategy.StreamPack}


def make_molecule(generator: torch.Generator) -> Data:
    """Return a tree of atoms; its label is whether one of its bonds is between the first two elements.

    Args:
        generator: What the molecule is drawn from.
    """
    num_atoms = int(torch.randint(5, 13, (), generator=generator))
    bonds = [
        (int(torch.randint(max(0, atom - 2), atom, (), generator=generator)), atom) for atom in range(1, num_atoms)
    ]
    ends = torch.tensor(bonds).T
    elements = torch.randint(NUM_ELEMENTS, (num_atoms,), generator=generator)
    has_bond = bool((elements[ends].sort(dim=0).values == torch.tensor([[0], [1]])).all(dim=0).any())
    return Data(
        x=nn.functional.one_hot(elements, NUM_ELEMENTS).float(), edge_index=torch.cat([ends, ends.flip(0)], dim=1),
        y=torch.tensor([int(has_bond)]),
    )


class Classifier(nn.Module):
    """Layers of message passing, the sum over each graph, and a linear layer."""

    def __init__(self, layer: str, width: int, num_layers: int) -> None:
        super().__init__()
        sizes = [NUM_ELEMENTS, *[width] * num_layers]
        self.layers = nn.ModuleList(
            GCNConv(given, made) if layer == "gcn" else GINConv(
                nn.Sequential(nn.Linear(given, made), nn.ReLU(), nn.Linear(made, made))
            )
            for given, made in pairwise(sizes)
        )
        self.head = nn.Linear(width, 2)

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits `[G, 2]` of the graphs of a batch, and the mean loss of those that are no padding."""
        x = batch.x
        for layer in self.layers:
            x = torch.relu(layer(x, batch.edge_index))
        logits = self.head(global_add_pool(x, batch.batch))
        losses = nn.functional.cross_entropy(logits, batch.y, reduction="none") * batch.graphs_mask
        return logits, poptorch.identity_loss(losses.sum() / batch.graphs_mask.sum(), reduction="none")


@dataclass(frozen=True)
class Result:
    """What a run reached: the loss of each call, and the share of held-back molecules that are told apart."""

    losses: tuple[float, ...]
    test_accuracy: float


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser(__doc__)
    number, real = positive(int), positive(float)
    parser.add_argument("--layer", choices=("gin", "gcn"), default="gin", help="kind of message passing")
    parser.add_argument("--num-layers", type=number, default=2, help="of message passing")
    parser.add_argument("--width", type=number, default=32, help="of the layers")
    parser.add_argument("--strategy", choices=tuple(STRATEGIES), default="pad-to-max", help="how batches are filled")
    parser.add_argument("--batch-size", type=number, default=8, help="graphs in a micro-batch, without padding")
    parser.add_argument("--device-iterations", type=number, default=4, help="weight updates in one call")
    parser.add_argument("--epochs", type=number, default=8, help="passes over the training part")
    parser.add_argument("--learning-rate", type=real, default=0.01, help="of Adam")
    parser.add_argument("--num-molecules", type=number, default=512, help="an eighth of them is held back")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and the molecules")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> Result:
    """Train, test and print what came out."""
    flags = parse_arguments(arguments)
    torch.manual_seed(flags.seed)
    generator = torch.Generator().manual_seed(flags.seed)
    molecules = [make_molecule(generator) for _ in range(flags.num_molecules)]
    held_back = flags.num_molecules // 8
    size = FixedSizeOptions.from_dataset(molecules, flags.batch_size + 1)
    options = poptorch.Options().deviceIterations(flags.device_iterations).randomSeed(flags.seed)
    loader = FixedSizeDataLoader(
        molecules[held_back:], flags.batch_size, shuffle=True, fixed_size_options=size,
        fixed_size_strategy=STRATEGIES[flags.strategy], options=options,
    )
    model = Classifier(flags.layer, flags.width, flags.num_layers)
    training = poptorch.trainingModel(model, options, poptorch.optim.Adam(model.parameters(), lr=flags.learning_rate))
    losses = []
    for epoch in range(flags.epochs):
        losses += [float(training(batch)[1]) for batch in loader]
        print(f"epoch {epoch}: loss {losses[-1]:.3f}")
    training.destroy()
    accuracy = test(model, molecules[:held_back], size, flags.batch_size)
    print(f"{100 * accuracy:.1f} % of {held_back} held-back molecules are told apart")
    return Result(tuple(losses), accuracy)


def test(model: Classifier, molecules: list[Data], size: FixedSizeOptions, batch_size: int) -> float:
    """Return the share of molecules that are told apart."""
    inference = poptorch.inferenceModel(model.eval())
    is_right = []
    for batch in FixedSizeDataLoader(molecules, batch_size, fixed_size_options=size, drop_last=False):
        logits, _ = inference(batch)
        is_right.append((logits.argmax(1) == batch.y)[batch.graphs_mask])
    inference.destroy()
    return float(torch.cat(is_right).float().mean())


if __name__ == "__main__":
    main()
