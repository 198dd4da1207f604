"""Hugging Face transformers on the emulated IPU, in the manner of optimum-graphcore.

`IPUTrainer` with `IPUTrainingArguments` and `IPUConfig` trains pipelined models, each step one program;
`IPUSeq2SeqTrainer` generates when it evaluates;
`pipeline_model` places a model for a loop of one's own. They are imported at their first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchipu.transformers.batches import FixedLengthCollator
    from torchipu.transformers.configuration import IPUConfig
    from torchipu.transformers.pipelining import Layout, layout_of, pipeline_model, to_pipelined, unplace
    from torchipu.transformers.seq2seq import IPUSeq2SeqTrainer, IPUSeq2SeqTrainingArguments
    from torchipu.transformers.trainer import IPUTrainer
    from torchipu.transformers.training_arguments import IPUTrainingArguments

_MODULE_BY_NAME = {
    "FixedLengthCollator": "batches",
    "IPUConfig": "configuration",
    "IPUSeq2SeqTrainer": "seq2seq",
    "IPUSeq2SeqTrainingArguments": "seq2seq",
    "IPUTrainer": "trainer",
    "IPUTrainingArguments": "training_arguments",
    "Layout": "pipelining",
    "layout_of": "pipelining",
    "pipeline_model": "pipelining",
    "to_pipelined": "pipelining",
    "unplace": "pipelining",
}

__all__ = [
    "FixedLengthCollator",
    "IPUConfig",
    "IPUSeq2SeqTrainer",
    "IPUSeq2SeqTrainingArguments",
    "IPUTrainer",
    "IPUTrainingArguments",
    "Layout",
    "layout_of",
    "pipeline_model",
    "to_pipelined",
    "unplace",
]


def __getattr__(name: str) -> Any:
    """Import the module of a public name at its first use.

    Raises:
        ImportError: It needs a package that is not installed.
    """
    if name not in _MODULE_BY_NAME:
        raise AttributeError(f"module 'torchipu.transformers' has no attribute {name!r}")
    try:
        value = getattr(importlib.import_module(f"{__name__}.{_MODULE_BY_NAME[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name not in ("transformers", "accelerate"):
            raise
        raise ImportError(
            f"torchipu.transformers.{name} needs {error.name}, which is not installed\n"
            '  do      pip install "torchipu[transformers]"', name=error.name,
        ) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names, imported or not."""
    return sorted(__all__)
