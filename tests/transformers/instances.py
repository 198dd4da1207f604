"""Trainings by `IPUTrainer` in several processes; run by ``tests.distributed.forked``."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.utils.data import IterableDataset

from tests.distributed.forked import ROOT, Scenario
from tests.poptorch.models import Classifier, batch
from tests.transformers import tiny
from torchipu import poptorch
from torchipu.transformers import (
    IPUConfig,
    IPUSeq2SeqTrainer,
    IPUSeq2SeqTrainingArguments,
    IPUTrainer,
    IPUTrainingArguments,
)

torch.set_num_threads(1)  # what a process does in several threads cannot go on in a fork of it
logging.getLogger("torchipu").setLevel(logging.ERROR)
AT_A_PORT = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "{port}", "OMP_NUM_THREADS": "1"}
REPLICAS, ACCUMULATION, MICRO_BATCH, ITERATIONS = 2, 3, 2, 2
CALL = REPLICAS * ACCUMULATION * MICRO_BATCH * ITERATIONS
CONFIG = {
    "layers_per_ipu": [1, 1], "gradient_accumulation_steps": ACCUMULATION, "device_iterations": ITERATIONS,
    "inference_device_iterations": 2, "output_mode": "all",
}
COMMON = {
    "num_train_epochs": 2, "logging_steps": 1, "report_to": [], "disable_tqdm": True, "save_strategy": "no",
    "learning_rate": 0.01, "log_level": "error", "per_device_eval_batch_size": 2, "warmup_steps": 2,
    "per_device_train_batch_size": MICRO_BATCH, "fp32": True,
}


def warm_up() -> None:
    """Compile a model for training and one for inference, which imports much that all processes then have."""
    tiny.bert(1)
    tiny.encoder_decoder("bart", 1)
    poptorch.trainingModel(Classifier()).compile(*batch(4))
    poptorch.inferenceModel(Classifier()).compile(batch(4)[0])



def launched(rank: int, size: int = 2) -> None:
    if size > 1:
        os.environ.update({"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank)})


def right(found: transformers.EvalPrediction) -> dict[str, float]:
    return {"right": float((found.predictions.argmax(-1) == found.label_ids).mean()), "rows": len(found.label_ids)}


def make(
    size: int, train: Any, evaluate: Any = None, *, changes: Any = (), kind: Any = IPUTrainer, **arguments: Any
) -> Any:
    """Return a trainer of `REPLICAS` replicas over all processes."""
    config = IPUConfig(**{**CONFIG, "replication_factor": max(REPLICAS // size, 1), **dict(changes)})
    settings = IPUTrainingArguments(str(Path.cwd()), **{**COMMON, **arguments})
    return kind(
        tiny.bert(2, hidden_dropout_prob=0.2), config, settings, train_dataset=train, eval_dataset=evaluate,
        data_collator=tiny.padded, compute_metrics=right,
    )


def found(trainer: Any) -> dict[str, Any]:
    """Return what training has come to."""
    history = trainer.state.log_history
    return {
        "steps": trainer.state.global_step, "rows of a call": trainer.get_total_train_batch_size(trainer.args),
        "losses": [entry["loss"] for entry in history if "loss" in entry],
        "rates": [entry["learning_rate"] for entry in history if "learning_rate" in entry],
        "weights": {name: value.tolist() for name, value in trainer.model.state_dict().items()},
    }


def train(rank: int, size: int, **arguments: Any) -> Any:
    """Train with dropout, shuffled, two updates a call, evaluating and saving on the way; then predict."""
    launched(rank, size)
    rows, others = tiny.rows(3 * CALL + 5, 0), tiny.rows(11, 1)
    saving = {"save_strategy": "steps", "save_steps": 1, "eval_strategy": "steps", "eval_steps": 3}
    trainer = make(size, rows, others, **saving, **arguments)
    trainer.train()
    result = found(trainer)
    predicted = trainer.predict(others)
    few = trainer.predict(others[:3])  # a process has none of these
    return result | {
        "evaluated": [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry],
        "right": predicted.metrics["test_right"], "rows": predicted.metrics["test_rows"],
        "predictions": predicted.predictions.tolist(), "labels": predicted.label_ids.tolist(),
        "few": [few.predictions.tolist(), few.metrics["test_loss"]],
        "saved": sorted(path.name for path in Path("checkpoint-4").iterdir()),
    }


def train_from_the_middle(rank: int) -> Any:
    """Train to the end of the first epoch and a call more, stop, and go on from there in another trainer."""
    launched(rank)
    rows = tiny.rows(3 * CALL + 5, 0)

    class Stop(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            control.should_training_stop = state.global_step == 4

    saving = {"save_strategy": "steps", "save_steps": 4}
    trainer = make(2, rows, **saving)
    trainer.add_callback(Stop())
    trainer.train()
    resumed = make(2, rows, **saving)
    resumed.train(resume_from_checkpoint=True)
    return found(resumed)


class Stream(IterableDataset):
    """Rows without numbers."""

    def __init__(self, rows: Sequence[Any]) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows)


class Noting:
    """A collator that notes the rows it is given."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def __call__(self, rows: Sequence[Any]) -> Any:
        self.rows += [row["number"] for row in rows]
        return tiny.padded([{name: value for name, value in row.items() if name != "number"} for row in rows])


def note_rows(rank: int, size: int, *, streams: bool, mode: str = "sync", **arguments: Any) -> Any:
    """Return the rows that this process reads in two epochs of training, and in evaluation."""
    launched(rank, size)
    torch.manual_seed(rank)
    rows = [{"number": number, **row} for number, row in enumerate(tiny.rows(2 * CALL + 7, 0))]
    data = Stream(rows) if streams else rows
    more = {"max_steps": 4} if streams else {}
    trainer = make(size, data, data, remove_unused_columns=False, dataloader_mode=mode, **more, **arguments)
    read = []
    loader = trainer.get_train_dataloader()
    for epoch in range(2):
        loader.set_epoch(epoch)
        noting = loader.__dict__["collate_fn"] = Noting()
        list(loader)
        read.append(noting.rows)
    loader = trainer.get_eval_dataloader()
    noting = loader.__dict__["collate_fn"] = Noting()
    sizes = [(len(batch["labels"]), loader.in_step.counts if size > 1 else None) for batch in loader]
    return {"read": read, "evaluated": noting.rows, "sizes": sizes}


def error_of(call: Any) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def refuse(rank: int) -> Any:
    launched(rank)
    result = {"lengths": error_of(make(2, tiny.rows(CALL + rank, 0)).train)}
    grouped = make(2, tiny.rows(CALL, 0), train_sampling_strategy="group_by_length", dataloader_mode="async")
    result["async"] = error_of(grouped.train)
    result["few"] = error_of(make(2, tiny.rows(CALL - 1, 0)).train)
    os.environ.update({"POPDIST_NUM_TOTAL_REPLICAS": "8", "POPDIST_NUM_LOCAL_REPLICAS": "4"})
    result["replicas"] = error_of(lambda: make(2, None, changes={"replication_factor": 3}))
    factors = [make(2, None, changes={"replication_factor": n}).ipu_config.replication_factor for n in (1, 4, 8)]
    return result | {"factors": factors}


def train_without_a_launcher(rank: int) -> Any:
    """Train in a group that the program has formed itself, of which no variable tells."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{Path.cwd()}/meeting", rank=rank, world_size=2)
    trainer = make(2, tiny.rows(CALL, 0), num_train_epochs=1)
    trainer.train()
    return found(trainer) | {"world": trainer.args.world_size}


def generate(rank: int, size: int) -> Any:
    """Train a BART a little, evaluating by what it generates; return what was generated."""
    launched(rank, size)
    settings = IPUSeq2SeqTrainingArguments(
        str(Path.cwd()), **{**COMMON, "predict_with_generate": True, "generation_max_length": 6, "max_steps": 2},
    )
    config = IPUConfig(layers_per_ipu=[2], gradient_accumulation_steps=2, replication_factor=REPLICAS // size)
    trainer = IPUSeq2SeqTrainer(
        tiny.encoder_decoder("bart", 1), config, settings,
        train_dataset=tiny.translations(16, 0), data_collator=tiny.padded,
    )
    trainer.train()
    predicted = trainer.predict(tiny.translations(7, 1))
    return {"tokens": predicted.predictions.tolist(), "loss": predicted.metrics["test_loss"]}


def lose_a_process(rank: int) -> Any:
    """Evaluate in two processes, of which one fails in its first batch."""
    launched(rank)

    class Failing(IPUTrainer):
        def prediction_step(self, *args: Any, **kwargs: Any) -> Any:
            if rank:
                raise ValueError("of this test")
            return super().prediction_step(*args, **kwargs)

    trainer = make(2, None, tiny.rows(8, 0), kind=Failing)
    said = error_of(trainer.evaluate)
    torch.distributed.destroy_process_group()
    return said


SCENARIOS = {
    "alone": Scenario(lambda rank: train(rank, 1), (0,)),
    "together": Scenario(lambda rank: train(rank, 2), (0, 1), AT_A_PORT),
    # What reads ahead is another process, which looks for this module.
    "async": Scenario(
        lambda rank: train(rank, 2, dataloader_mode="async"), (0, 1), {**AT_A_PORT, "PYTHONPATH": str(ROOT)},
    ),
    "resumed": Scenario(train_from_the_middle, (0, 1), AT_A_PORT),
    "rows": Scenario(lambda rank: note_rows(rank, 2, streams=False), (0, 1), AT_A_PORT),
    "grouped": Scenario(
        lambda rank: note_rows(rank, 2, streams=False, train_sampling_strategy="group_by_length"), (0, 1), AT_A_PORT,
    ),
    "streams": Scenario(lambda rank: note_rows(rank, 2, streams=True), (0, 1), AT_A_PORT),
    "rows_alone": Scenario(lambda rank: note_rows(rank, 1, streams=False), (0,)),
    "refusals": Scenario(refuse, (0, 1), AT_A_PORT),
    "generated_alone": Scenario(lambda rank: generate(rank, 1), (0,)),
    "generated": Scenario(lambda rank: generate(rank, 2), (0, 1), AT_A_PORT),
    "lost": Scenario(lose_a_process, (0, 1), AT_A_PORT),
    "without_launcher": Scenario(train_without_a_launcher, (0, 1)),
}
