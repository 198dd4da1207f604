"""Train a small BERT to answer questions by a span of the context, with its layers on several IPUs.

    python examples/question_answering.py
    python examples/question_answering.py --transformers      # BERT of the transformers package instead of our own

The questions are made up (`facts.py`), so that nothing has to be fetched.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass

import poptorch
import torch
from torch import nn
from torch.utils.data import TensorDataset
from tqdm import tqdm

from command_line import make_parser, positive
from facts import Vocabulary, make_questions, sequence_length

Answers = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Shape:
    """Sizes of a BERT.

    Attributes:
        num_tokens: Of the vocabulary.
        num_positions: Longest sequence.
        width: Of a token's state.
        num_heads: Of attention.
        num_layers: Of the encoder.
        dropout: Share of activations that training drops.
    """

    num_tokens: int
    num_positions: int
    width: int
    num_heads: int
    num_layers: int
    dropout: float


class Embeddings(nn.Module):
    """Sum of the embeddings of token, position and type, normalised."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.token = nn.Embedding(shape.num_tokens, shape.width)
        self.position = nn.Embedding(shape.num_positions, shape.width)
        self.segment = nn.Embedding(2, shape.width)
        self.norm = nn.LayerNorm(shape.width)
        self.dropout = nn.Dropout(shape.dropout)
        self.register_buffer("positions", torch.arange(shape.num_positions))

    def forward(self, tokens: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
        """Return the states `[N, T, width]` of tokens `[N, T]`."""
        positions = self.positions[: tokens.shape[1]]
        return self.dropout(self.norm(self.token(tokens) + self.position(positions) + self.segment(types)))


class SelfAttention(nn.Module):
    """Attention of every token to all that the mask leaves."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.num_heads = shape.num_heads
        self.project = nn.Linear(shape.width, 3 * shape.width)
        self.output = nn.Linear(shape.width, shape.width)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return what each token gathers, `[N, T, width]`; the mask `[N, 1, 1, T]` is added to the scores."""
        batch, length, width = states.shape
        queries, keys, values = (
            part.view(batch, length, self.num_heads, -1).transpose(1, 2)
            for part in self.project(states).chunk(3, dim=-1)
        )
        scores = queries @ keys.transpose(-1, -2) / math.sqrt(width // self.num_heads) + mask
        gathered = self.dropout(scores.softmax(dim=-1)) @ values
        return self.output(gathered.transpose(1, 2).reshape(batch, length, width))


class EncoderLayer(nn.Module):
    """Attention and a feed-forward network, each added to its input and normalised."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention = SelfAttention(shape)
        self.attention_norm = nn.LayerNorm(shape.width)
        self.feed_forward = nn.Sequential(
            nn.Linear(shape.width, 4 * shape.width), nn.GELU(), nn.Linear(4 * shape.width, shape.width),
        )
        self.norm = nn.LayerNorm(shape.width)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return states `[N, T, width]`."""
        states = self.attention_norm(states + self.dropout(self.attention(states, mask)))
        return self.norm(states + self.dropout(self.feed_forward(states)))


class Bert(nn.Module):
    """Embeddings and encoder, as far as question answering needs them."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embeddings = Embeddings(shape)
        self.layers = nn.ModuleList(EncoderLayer(shape) for _ in range(shape.num_layers))

    def forward(self, tokens: torch.Tensor, types: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return the states `[N, T, width]`; the mask `[N, T]` is 1 for tokens and 0 for padding."""
        states = self.embeddings(tokens, types)
        added = ((1 - mask) * -10_000).to(states.dtype)[:, None, None, :]
        for layer in self.layers:
            # What is kept for the backward: the rest of a layer is computed again there.
            states = poptorch.recomputationCheckpoint(layer(states, added))
        return states


class TransformersBert(nn.Module):
    """The BERT of the transformers package in the place of ours."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        from transformers import BertConfig, BertModel

        self.bert = BertModel(
            BertConfig(
                vocab_size=shape.num_tokens, hidden_size=shape.width, num_hidden_layers=shape.num_layers,
                num_attention_heads=shape.num_heads, intermediate_size=4 * shape.width,
                max_position_embeddings=shape.num_positions, hidden_dropout_prob=shape.dropout,
                attention_probs_dropout_prob=shape.dropout, attn_implementation="eager",
            ),
            add_pooling_layer=False,
        )

    @property
    def embeddings(self) -> nn.Module:
        """What turns tokens into states."""
        return self.bert.embeddings

    @property
    def layers(self) -> nn.ModuleList:
        """The layers of the encoder."""
        return self.bert.encoder.layer

    def forward(self, tokens: torch.Tensor, types: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return the states `[N, T, width]`; the mask `[N, T]` is 1 for tokens and 0 for padding."""
        # Of a mask `[N, T]` transformers asks whether anything is masked at all, which a program cannot decide.
        added = ((1 - mask) * -10_000)[:, None, None, :]
        return self.bert(input_ids=tokens, token_type_ids=types, attention_mask=added).last_hidden_state


class QuestionAnswering(nn.Module):
    """A BERT with an answer head: a score for each token to be the first, and to be the last, of the answer."""

    def __init__(self, bert: nn.Module, width: int) -> None:
        super().__init__()
        self.bert = bert
        self.head = nn.Linear(width, 2)

    def forward(
        self, tokens: torch.Tensor, types: torch.Tensor, mask: torch.Tensor, first: torch.Tensor | None = None,
        last: torch.Tensor | None = None,
    ) -> Answers | tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the scores of first and last tokens `[N, T]`, and the loss when answers `[N]` are given."""
        scores = self.head(self.bert(tokens, types, mask)) + ((1 - mask) * -10_000)[..., None]
        first_scores, last_scores = scores.unbind(dim=-1)
        if first is None or last is None:
            return first_scores, last_scores
        cross_entropy = nn.functional.cross_entropy
        loss = (cross_entropy(first_scores, first) + cross_entropy(last_scores, last)) / 2
        return first_scores, last_scores, poptorch.identity_loss(loss, reduction="none")


@dataclass(frozen=True)
class Result:
    """What a run reached.

    Attributes:
        losses: Of each call.
        exact: Share of the questions, not trained on, whose answer is right in both ends.
    """

    losses: tuple[float, ...]
    exact: float


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser(__doc__)
    number, real = positive(int), positive(float)
    parser.add_argument("--transformers", action="store_true", help="take BERT from the transformers package")
    parser.add_argument("--width", type=number, default=64, help="of a token's state")
    parser.add_argument("--num-heads", type=number, default=4, help="of attention")
    parser.add_argument("--num-layers", type=number, default=2, help="of the encoder")
    parser.add_argument("--dropout", type=float, default=0.0, help="share of activations that training drops")
    parser.add_argument("--layers-per-ipu", type=number, default=1, help="encoder layers on an IPU")
    parser.add_argument("--num-facts", type=number, default=4, help="in a context")
    parser.add_argument("--num-questions", type=number, default=4032, help="to train on; a fifth more are held back")
    parser.add_argument("--batch-size", type=number, default=12, help="questions in a micro-batch")
    parser.add_argument("--gradient-accumulation", type=number, default=6, help="micro-batches in a weight update")
    parser.add_argument("--device-iterations", type=number, default=7, help="weight updates in one call")
    parser.add_argument("--epochs", type=number, default=10, help="passes over the questions")
    parser.add_argument("--learning-rate", type=real, default=0.003, help="the greatest; it rises, and falls to zero")
    parser.add_argument("--seed", type=int, default=0, help="of weights, questions and dropout")
    return parser.parse_args(arguments)


def make_model(flags: argparse.Namespace, vocabulary: Vocabulary, num_positions: int) -> QuestionAnswering:
    """Return the model with its layers given to IPUs: embeddings on the first, answers where the last layer is."""
    shape = Shape(
        len(vocabulary), num_positions, flags.width, flags.num_heads, flags.num_layers, flags.dropout,
    )
    bert = TransformersBert(shape) if flags.transformers else Bert(shape)
    model = QuestionAnswering(bert, flags.width)
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=1 / math.sqrt(flags.width))
    poptorch.BeginBlock(bert.embeddings, "embeddings", ipu_id=0)
    for place in range(0, flags.num_layers, flags.layers_per_ipu):
        ipu = 1 + place // flags.layers_per_ipu
        bert.layers[place] = poptorch.BeginBlock(bert.layers[place], f"layers from {place}", ipu_id=ipu)
    return model


def make_options(flags: argparse.Namespace, *, training: bool) -> poptorch.Options:
    """Return the options of training or of the test."""
    options = poptorch.Options()
    options.autoRoundNumIPUs(True)
    options.randomSeed(flags.seed)
    options.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.SameAsIpu))
    if training:
        options.deviceIterations(flags.device_iterations)
        options.Training.gradientAccumulation(flags.gradient_accumulation)
        options.outputMode(poptorch.OutputMode.Sum)
    else:
        options.deviceIterations(flags.device_iterations * flags.gradient_accumulation)
    return options


def train(model: QuestionAnswering, questions: TensorDataset, flags: argparse.Namespace) -> list[float]:
    """Train and return the loss of each call."""
    options = make_options(flags, training=True)
    loader = poptorch.DataLoader(options, questions, batch_size=flags.batch_size, shuffle=True)
    if len(loader) == 0:
        raise SystemExit(f"one call takes {loader.combinedBatchSize} questions: raise --num-questions")
    optimiser = poptorch.optim.AdamW(parameter_groups(model), lr=flags.learning_rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, max_lr=flags.learning_rate, total_steps=flags.epochs * len(loader) + 1, pct_start=0.2,
        cycle_momentum=False,
    )
    training_model = poptorch.trainingModel(model, options, optimiser)
    micro_batches = flags.device_iterations * flags.gradient_accumulation
    losses: list[float] = []
    for epoch in range(flags.epochs):
        bar = tqdm(loader, desc=f"Epoch {epoch + 1}/{flags.epochs}")
        for batch in bar:
            training_model.setOptimizer(optimiser)
            _, _, loss = training_model(*batch)
            losses.append(float(loss) / micro_batches)
            schedule.step()
            bar.set_postfix(loss=f"{losses[-1]:.4f}")
    training_model.detachFromDevice()
    return losses


def parameter_groups(model: nn.Module) -> list[dict[str, object]]:
    """Return the parameters in two groups: biases and normalisations do not decay."""
    decaying = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    others = [parameter for parameter in model.parameters() if parameter.dim() <= 1]
    return [{"params": decaying, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]


def test(model: QuestionAnswering, questions: TensorDataset, flags: argparse.Namespace) -> float:
    """Return the share of the questions whose answer is right in both ends."""
    options = make_options(flags, training=False)
    loader = poptorch.DataLoader(options, questions, batch_size=flags.batch_size)
    inference_model = poptorch.inferenceModel(model.eval(), options)
    num_right = num_seen = 0
    for tokens, types, mask, first, last in loader:
        first_scores, last_scores = inference_model(tokens, types, mask)
        right = (first_scores.argmax(dim=1) == first) & (last_scores.argmax(dim=1) == last)
        num_right += int(right.sum())
        num_seen += len(right)
    if num_seen == 0:
        raise SystemExit(f"one call takes {loader.combinedBatchSize} questions: raise --num-questions")
    return num_right / num_seen


def run(arguments: Sequence[str] | None = None) -> Result:
    """Run the example with the arguments of a command line."""
    flags = parse_arguments(arguments)
    torch.manual_seed(flags.seed)
    vocabulary, longest = Vocabulary(), 3
    generator = torch.Generator().manual_seed(flags.seed)
    asked = make_questions(flags.num_questions, flags.num_facts, longest, vocabulary, generator)
    held_back = make_questions(-(-flags.num_questions // 5), flags.num_facts, longest, vocabulary, generator)
    model = make_model(flags, vocabulary, sequence_length(flags.num_facts, longest))
    losses = train(model, asked, flags)
    exact = test(model, held_back, flags)
    print(f"Loss of the first call {losses[0]:.4f}, of the last {losses[-1]:.4f}")
    print(f"Exact answers to questions not trained on: {exact:.2%}")
    return Result(tuple(losses), exact)


if __name__ == "__main__":
    run()
