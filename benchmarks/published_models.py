"""BERT, ViT and GPT-2 in plain PyTorch with the splits over IPUs that Graphcore's public examples give by hand.

The layers per IPU are those of the example applications' configurations: BERT-Base 0/4/4/4, BERT-Large 3/7/7/7,
ViT-Base 3/3/3/3, GPT-2 small 0/4/4/4 and medium 0/3/3/3/3/4/4/4. Over eight IPUs, BERT-Large has three layers on each:
an even split of ours, for how MLPerf v2.0 divided it is not published in full.
Embeddings are on IPU 0; so are the heads that share the embedding's weight, those of the pretraining of BERT and of
GPT-2; ViT's head follows its last layer. Micro-batch, gradient accumulation, replicas and available memory are theirs
too, products have half partials, and the states of the optimiser are off the chip, shared out among the replicas.

Run as a script it compares these splits with those that `torchipu.autopipeline` proposes, at full size:

    python benchmarks/published_models.py bert-base gpt2-small
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

import torchipu
from workloads import TransformerLayer


class Decoder(nn.Module):
    """Layers of TransformerLayer under a causal mask are what GPT-2 has; the sizes, and so the costs, are the same."""

    def __init__(self, words: nn.Embedding) -> None:
        super().__init__()
        self.weight = words.weight  # tied

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight)


class LanguageModel(nn.Module):
    """Embeddings, layers and a head that shares the embedding's weight: tokens and labels `[N, L]` to the loss.

    With places `[N, P]` of masked words, only these are predicted, and labels are `[N, P]`.
    """

    def __init__(self, vocabulary: int, length: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(TransformerLayer(width, heads, 0.1) for _ in range(depth))
        self.dense = nn.Linear(width, width)
        self.decoder = Decoder(self.words)

    def forward(
        self, tokens: torch.Tensor, labels: torch.Tensor, places: torch.Tensor | None = None,
    ) -> torch.Tensor:
        x = self.words(tokens) + self.positions(torch.arange(tokens.shape[1]))
        x = self.norm(x)
        for layer in self.layers:
            x = layer(x)
        if places is not None:
            x = x.gather(1, places.unsqueeze(-1).expand(-1, -1, x.shape[-1]))
        scores = self.decoder(F.gelu(self.dense(x)))
        return F.cross_entropy(scores.flatten(0, 1), labels.flatten())


class VisionTransformer(nn.Module):
    """Patches of 16 x 16, layers and a linear head: images `[N, 3, S, S]` and labels to the loss."""

    def __init__(self, size: int, width: int, depth: int, heads: int, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.positions = nn.Parameter(torch.zeros((size // 16) ** 2, width))
        self.layers = nn.ModuleList(TransformerLayer(width, heads, 0.1) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(self.norm(x).mean(1)), labels)


@dataclass(frozen=True)
class Published:
    """A model and its split by hand.

    Attributes:
        model: Makes the model; all sizes but the depth are divided by its argument.
        inputs: Makes the inputs of a micro-batch, the same way.
        layers: Layers on each IPU.
        head: Where the modules after the layers are.
        accumulation: Micro-batches of an update.
        memory: Available memory on each IPU.
        replicas: Copies of the model.
        adam: Whether Adam trains it, or SGD with momentum.
    """

    model: Callable[[int], nn.Module]
    inputs: Callable[[int], tuple[torch.Tensor, ...]]
    layers: tuple[int, ...]
    head: dict[str, int]
    accumulation: int
    memory: tuple[float, ...]
    replicas: int = 4
    adam: bool = True

    def starts(self) -> dict[str, int]:
        """Return the IPU by the module at which a block begins."""
        first = "words" if "dense" in self.head else "patches"
        ipus = [ipu for ipu, count in enumerate(self.layers) for _ in range(count)]
        return {first: 0} | {f"layers.{number}": ipu for number, ipu in enumerate(ipus)} | self.head

    def options(self) -> torchipu.Options:
        """Return the options of the published configuration."""
        return torchipu.Options(
            target="bow", gradient_accumulation=self.accumulation, replicas=self.replicas, partials_type="half",
            available_memory=dict(enumerate(self.memory)), stochastic_rounding=True,
            optimiser_state_location=torchipu.TensorLocation(on_chip=False, replicated_sharding=True),
        )

    def optimiser(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return an optimiser with as many states as that of the published configuration."""
        parameters = model.parameters()
        return torch.optim.AdamW(parameters) if self.adam else torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

    def propose(self, by: int = 1, options: torchipu.Options | None = None) -> torchipu.Proposal:
        """Return what `torchipu.autopipeline` proposes for as many IPUs, all sizes but the depth divided by ``by``."""
        torch.manual_seed(0)
        model = self.model(by).half()
        inputs = tuple(value.half() if value.is_floating_point() else value for value in self.inputs(by))
        return torchipu.autopipeline(
            model, inputs, len(self.layers), optimizer=self.optimiser(model), options=options or self.options(),
        )


def tokens(batch: int, length: int, vocabulary: int, masked: int = 0) -> tuple[torch.Tensor, ...]:
    """Return tokens and labels, of masked words also their places."""
    labels = torch.randint(vocabulary, (batch, masked or length))
    places = (torch.randint(length, (batch, masked)),) if masked else ()
    return torch.randint(vocabulary, (batch, length)), labels, *places


PUBLISHED = {
    "bert-base": Published(
        lambda by: LanguageModel(30522 // by, 128, 768 // by, 12, 12),
        lambda by: tokens(32, 128 // by, 30522 // by, 20 // min(by, 4)),
        (0, 4, 4, 4), {"dense": 0}, 512, (0.25,) * 4,
    ),
    "bert-large": Published(
        lambda by: LanguageModel(30522 // by, 128, 1024 // by, 24, 16),
        lambda by: tokens(8, 128 // by, 30522 // by, 20 // min(by, 4)),
        (3, 7, 7, 7), {"dense": 0}, 2048, (0.15, 0.25, 0.25, 0.25),
    ),
    "bert-large-8": Published(
        lambda by: LanguageModel(30522 // by, 512, 1024 // by, 24, 16),
        lambda by: tokens(3, 512 // by, 30522 // by, 76 // min(by, 4)),
        (3,) * 8, {"dense": 0}, 256, (0.3,) * 8, 2,
    ),
    "vit-base": Published(
        lambda by: VisionTransformer(224 // by // 16 * 16, 768 // by, 12, 12, 1000),
        lambda by: (torch.randn(17, 3, *[224 // by // 16 * 16] * 2), torch.randint(1000, (17,))),
        (3, 3, 3, 3), {"norm": 3}, 30, (0.3,) * 4, adam=False,
    ),
    "gpt2-small": Published(
        lambda by: LanguageModel(50257 // by, 1024, 768 // by, 12, 12), lambda by: tokens(1, 1024 // by, 50257 // by),
        (0, 4, 4, 4), {"dense": 0}, 2048, (0.15,) * 4,
    ),
    "gpt2-medium": Published(
        lambda by: LanguageModel(50257 // by, 1024, 1024 // by, 24, 16), lambda by: tokens(1, 1024 // by, 50257 // by),
        (0, 3, 3, 3, 3, 4, 4, 4), {"dense": 0}, 4096, (0.15,) * 8, 2,
    ),
}


def main(names: list[str]) -> None:
    """Print a row for each of these models, or for all."""
    print("| model | IPUs | by hand | proposed | most of a tile by hand | proposed | seconds |")
    print("|---|---|---|---|---|---|---|")
    for name in names or list(PUBLISHED):
        published = PUBLISHED[name]
        begin = time.perf_counter()
        proposal = published.propose()
        seconds = time.perf_counter() - begin
        hand = proposal.compare_with(published.starts())
        full = [max(memory.total_bytes for memory in trial.memory) for trial in (hand, proposal.trial)]
        fits = "" if hand.fits else " (does not fit)"
        print(
            f"| {name} | {len(published.layers)} | {hand.cycles:,.0f} | {proposal.cycles:,.0f} | {full[0]:,}{fits} | "
            f"{full[1]:,} | {seconds:.0f} |", flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
