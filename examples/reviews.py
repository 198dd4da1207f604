"""Made-up reviews with a sentiment, and a tokeniser of their words: nothing has to be fetched."""

from __future__ import annotations

from typing import Any

import torch

GOOD = ("brilliant", "charming", "funny", "gripping", "lovely", "superb", "tender", "witty")
BAD = ("awful", "boring", "clumsy", "dreadful", "dull", "messy", "shallow", "tedious")
PARTS = ("acting", "camera", "ending", "music", "plot", "script", "story", "tempo")
NOT = "not"
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
WORDS = (*SPECIAL, "the", "is", "and", NOT, *PARTS, *GOOD, *BAD)
MAX_CLAUSES = 5
LONGEST = 2 + MAX_CLAUSES * 5
"""Tokens of the longest review, with those at its ends."""

Review = tuple[str, int]


def make_reviews(number: int, generator: torch.Generator) -> list[Review]:
    """Return reviews, and for each 1 if it praises more than it blames and 0 otherwise.

    A review says of one, three or five things that they are, or are not, good or bad.

    Args:
        number: How many.
        generator: Draws the words.
    """
    return [_make_review(generator) for _ in range(number)]


def _make_review(generator: torch.Generator) -> Review:
    def draw(count: int) -> int:
        return int(torch.randint(count, (), generator=generator))

    clauses, praise = [], 0
    for _ in range(1 + 2 * draw((MAX_CLAUSES + 1) // 2)):
        is_good, is_negated = draw(2) == 1, draw(4) == 0
        words = GOOD if is_good else BAD
        negation = f"{NOT} " if is_negated else ""
        clauses.append(f"the {PARTS[draw(len(PARTS))]} is {negation}{words[draw(len(words))]}")
        praise += 1 if is_good != is_negated else -1
    return " and ".join(clauses), int(praise > 0)


def make_tokenizer() -> Any:
    """Return a tokeniser of transformers that knows the words of reviews."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[(word, WORDS.index(word)) for word in ("[CLS]", "[SEP]")],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
    )
