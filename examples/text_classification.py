"""Train a small BERT to tell praise from blame with IPUTrainer, pipelined over four IPUs, as run_glue.py did.

    python examples/text_classification.py
    python examples/text_classification.py --half --layers-per-ipu 0 2 1 1

The reviews are made up (`reviews.py`), and the model begins with random weights, so that nothing has to be fetched.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from command_line import make_parser, positive
from reviews import LONGEST, Review, make_reviews, make_tokenizer


@dataclass(frozen=True)
class Result:
    """What a run reached.

    Attributes:
        losses: That were logged.
        accuracy: Share of the reviews, not trained on, whose sentiment is found.
        layout: Which part of the model was on which IPU.
    """

    losses: tuple[float, ...]
    accuracy: float
    layout: str


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser(__doc__)
    number, real = positive(int), positive(float)
    parser.add_argument("--output-dir", metavar="FOLDER", help="where the trained model goes; not kept if not given")
    parser.add_argument("--ipu-config", metavar="FOLDER", help="with an ipu_config.json, instead of the flags for it")
    parser.add_argument("--layers-per-ipu", type=int, nargs="+", default=[1, 1, 1, 1], help="-1: a share of the rest")
    parser.add_argument("--replication-factor", type=number, default=1, help="replicas")
    parser.add_argument("--gradient-accumulation", type=number, default=8, help="micro-batches in a weight update")
    parser.add_argument("--batch-size", type=number, default=8, help="reviews in a micro-batch")
    parser.add_argument("--half", action="store_true", help="train in half")
    parser.add_argument("--width", type=number, default=32, help="of a token's state")
    parser.add_argument("--num-layers", type=number, default=4, help="of the encoder")
    parser.add_argument("--num-reviews", type=number, default=2048, help="to train on; a quarter more are held back")
    parser.add_argument("--epochs", type=real, default=8.0, help="passes over the reviews")
    parser.add_argument("--learning-rate", type=real, default=0.002, help="at first; it falls to zero")
    parser.add_argument("--seed", type=int, default=0, help="of weights, reviews and dropout")
    return parser.parse_args(arguments)


def tokenised(reviews: Sequence[Review], tokenizer: Any) -> list[dict[str, Any]]:
    """Return rows of one length: a program takes tensors of one shape."""
    encoded = tokenizer([text for text, _ in reviews], padding="max_length", max_length=LONGEST, truncation=True)
    return [
        {"input_ids": ids, "attention_mask": mask, "labels": label}
        for ids, mask, (_, label) in zip(encoded["input_ids"], encoded["attention_mask"], reviews, strict=True)
    ]


def make_model(flags: argparse.Namespace, num_tokens: int) -> Any:
    """Return a BERT with a head for two classes."""
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(BertConfig(
        vocab_size=num_tokens, hidden_size=flags.width, num_hidden_layers=flags.num_layers, num_attention_heads=4,
        intermediate_size=2 * flags.width, max_position_embeddings=LONGEST, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, initializer_range=0.1,
    ))


def make_ipu_config(flags: argparse.Namespace) -> Any:
    """Return how the model lies on IPUs."""
    from torchipu.transformers import IPUConfig

    if flags.ipu_config:
        return IPUConfig.from_pretrained(flags.ipu_config)
    return IPUConfig(
        layers_per_ipu=flags.layers_per_ipu, replication_factor=flags.replication_factor,
        gradient_accumulation_steps=flags.gradient_accumulation, inference_device_iterations=len(flags.layers_per_ipu),
        recompute_checkpoint_every_layer=True, output_mode="all",
    )


def accuracy(found: Any) -> dict[str, float]:
    """Return the share of predictions that are right."""
    return {"accuracy": float((found.predictions.argmax(axis=-1) == found.label_ids).mean())}


def run(arguments: Sequence[str] | None = None) -> Result:
    """Run the example with the arguments of a command line."""
    from torchipu.transformers import IPUTrainer, IPUTrainingArguments, layout_of

    flags = parse_arguments(arguments)
    tokenizer = make_tokenizer()
    generator = torch.Generator().manual_seed(flags.seed)
    train_rows = tokenised(make_reviews(flags.num_reviews, generator), tokenizer)
    test_rows = tokenised(make_reviews(-(-flags.num_reviews // 4), generator), tokenizer)
    torch.manual_seed(flags.seed)
    with tempfile.TemporaryDirectory() as scratch:
        settings = IPUTrainingArguments(
            output_dir=flags.output_dir or scratch, seed=flags.seed, num_train_epochs=flags.epochs,
            per_device_train_batch_size=flags.batch_size, per_device_eval_batch_size=flags.batch_size,
            learning_rate=flags.learning_rate, fp32=not flags.half, logging_steps=8, logging_first_step=True,
            save_strategy="no", report_to=[],
        )
        trainer = IPUTrainer(
            model=make_model(flags, len(tokenizer)), ipu_config=make_ipu_config(flags), args=settings,
            train_dataset=train_rows, eval_dataset=test_rows, compute_metrics=accuracy, tokenizer=tokenizer,
        )
        trainer.train()
        layout = str(layout_of(trainer.model))
        metrics = trainer.evaluate()
        if flags.output_dir:
            trainer.save_model()
    losses = tuple(entry["loss"] for entry in trainer.state.log_history if "loss" in entry)
    print(layout)
    print(f"Loss at first {losses[0]:.4f}, at last {losses[-1]:.4f}")
    print(f"Sentiments of reviews not trained on: {metrics['eval_accuracy']:.2%} right")
    return Result(losses, metrics["eval_accuracy"], layout)


if __name__ == "__main__":
    run()
