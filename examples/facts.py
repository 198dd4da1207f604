"""Question answering that can be learned in a minute: facts about named things, and a question about one of them.

A context is a row of facts, each a name followed by the words said of it; a question is a name. The answer is the span
of words that follow the name in the context:

    question: Dora     context: Bela lives in Rome . Dora keeps two goats . Emil ...     answer: keeps two goats
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.utils.data import TensorDataset

PADDING, CLASSIFY, SEPARATE = range(3)
NUM_SPECIAL = 3


@dataclass(frozen=True)
class Vocabulary:
    """The tokens: special ones, then names, then words.

    Attributes:
        num_names: Things that facts are about.
        num_words: Words that are said of them.
    """

    num_names: int = 12
    num_words: int = 24

    def __len__(self) -> int:
        """Return the number of tokens."""
        return NUM_SPECIAL + self.num_names + self.num_words


def make_questions(
    count: int, num_facts: int, longest: int, vocabulary: Vocabulary, generator: torch.Generator
) -> TensorDataset:
    """Return questions with their contexts and answers.

    Args:
        count: How many.
        num_facts: In each context, about as many names.
        longest: Words that are said of a name at most; one at least.
        vocabulary: The tokens.
        generator: Where chance comes from.

    Returns:
        Tokens int64 `[N, T]`, types of token int64 `[N, T]` (0 in the question, 1 in the context), mask `[N, T]`
        (1 for a token, 0 for padding), first positions of answers `[N]` and last ones `[N]`, with
        T = 4 + num_facts * (1 + longest).
    """
    width = sequence_length(num_facts, longest)
    names = torch.rand(count, vocabulary.num_names, generator=generator).argsort(1)[:, :num_facts] + NUM_SPECIAL
    first_word = NUM_SPECIAL + vocabulary.num_names
    words = torch.randint(first_word, len(vocabulary), (count, num_facts, longest), generator=generator)
    lengths = torch.randint(1, longest + 1, (count, num_facts), generator=generator)
    asked = torch.randint(num_facts, (count,), generator=generator)

    tokens = torch.full((count, width), PADDING)
    row = torch.arange(count)
    tokens[:, 0], tokens[:, 1], tokens[:, 2] = CLASSIFY, names[row, asked], SEPARATE
    ends = 3 + (1 + lengths).cumsum(1)  # of each fact, exclusive
    begins = ends - lengths  # of its words
    for fact in range(num_facts):
        tokens[row, begins[:, fact] - 1] = names[:, fact]
        for place in range(longest):
            said = place < lengths[:, fact]
            tokens[row[said], begins[said, fact] + place] = words[said, fact, place]
    tokens[row, ends[:, -1]] = SEPARATE
    types = (torch.arange(width) >= 3).long().expand(count, width).contiguous()
    mask = (tokens != PADDING).float()
    return TensorDataset(tokens, types, mask, begins[row, asked], ends[row, asked] - 1)


def sequence_length(num_facts: int, longest: int) -> int:
    """Return the number of tokens of a question with its context."""
    return 4 + num_facts * (1 + longest)
