"""An operator that finds the most likely label sequences of CTC outputs by a prefix beam search."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import library

Floats = NDArray[np.float64]

library.define(
    "torchipu::ctc_beam_search",
    "(Tensor log_probs, Tensor lengths, int blank, int beam_width, int top_paths) -> (Tensor, Tensor, Tensor)",
)


@library.register_fake("torchipu::ctc_beam_search")  # type: ignore[untyped-decorator]
def _like(
    log_probs: torch.Tensor, lengths: torch.Tensor, blank: int, beam_width: int, top_paths: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    steps, batch, _ = log_probs.shape
    found = log_probs.new_empty((batch, top_paths))
    sizes = log_probs.new_empty((batch, top_paths), dtype=torch.int32)
    return found, sizes, log_probs.new_empty((batch, top_paths, steps), dtype=torch.int32)


@library.impl("torchipu::ctc_beam_search", "CompositeExplicitAutograd")
def _search(
    log_probs: torch.Tensor, lengths: torch.Tensor, blank: int, beam_width: int, top_paths: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    found, sizes, paths = _like(log_probs, lengths, blank, beam_width, top_paths)
    found.fill_(-torch.inf)
    sizes.zero_()
    paths.fill_(blank)
    values = log_probs.detach().double().numpy()
    for sample, length in enumerate(lengths.tolist()):
        beams = search(values[: max(0, length), sample], blank, beam_width)
        for rank, (labels, score) in enumerate(beams[:top_paths]):
            found[sample, rank], sizes[sample, rank] = score, len(labels)
            paths[sample, rank, : len(labels)] = torch.tensor(labels, dtype=torch.int32)
    return found, sizes, paths


def search(log_probs: Floats, blank: int, beam_width: int) -> list[tuple[tuple[int, ...], float]]:
    """Return label sequences with their log probabilities, the most likely first.

    Args:
        log_probs: Log probability of each class at each step, ``[T, C]``.
        blank: Class that stands for no label.
        beam_width: Sequences that are kept from step to step.
    """
    prefixes: list[tuple[int, ...]] = [()]
    # Log probabilities of all ways to a prefix that end with a blank, and with its last label.
    with_blank, with_label = np.zeros(1), np.full(1, -np.inf)
    for step in log_probs:
        in_all = np.logaddexp(with_blank, with_label)
        last = np.array([prefix[-1] if prefix else blank for prefix in prefixes])
        rows = np.arange(len(prefixes))
        longer = in_all[:, None] + step
        # A label that repeats the last one makes a prefix longer only behind a blank.
        longer[rows, last] = with_blank + step[last]
        longer[:, blank] = -np.inf
        stays_blank = in_all + step[blank]
        stays_label = with_label + step[last]
        _join(prefixes, longer, stays_label)
        scores = np.concatenate([np.logaddexp(stays_blank, stays_label), longer.ravel()])
        chosen = np.argsort(-scores, kind="stable")[:beam_width]
        chosen = chosen[scores[chosen] > -np.inf]
        classes, count = step.shape[0], len(prefixes)
        stays = chosen < count
        origin, label = np.where(stays, chosen, (chosen - count) // classes), (chosen - count) % classes
        prefixes = [
            prefixes[row] if same else (*prefixes[row], int(added))
            for row, added, same in zip(origin, label, stays, strict=True)
        ]
        with_blank = np.where(stays, stays_blank[origin], -np.inf)
        with_label = np.where(stays, stays_label[origin], longer[origin, label])
    return list(zip(prefixes, np.logaddexp(with_blank, with_label).tolist(), strict=True))


def _join(prefixes: list[tuple[int, ...]], longer: Floats, stays_label: Floats) -> None:
    """Add the ways that make one prefix into another one that is kept already to those of that one."""
    place = {prefix: row for row, prefix in enumerate(prefixes)}
    for row, prefix in enumerate(prefixes):
        shorter = place.get(prefix[:-1]) if prefix else None
        if shorter is not None:
            stays_label[row] = np.logaddexp(stays_label[row], longer[shorter, prefix[-1]])
            longer[shorter, prefix[-1]] = -np.inf


def ctc_beam_search(
    log_probs: torch.Tensor, lengths: torch.Tensor, blank: int, beam_width: int, top_paths: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Find the most likely label sequences.

    Args:
        log_probs: ``[T, N, C]``.
        lengths: Steps of each sample, ``[N]``.
        blank: Class that stands for no label.
        beam_width: Sequences that are kept from step to step.
        top_paths: Sequences that are returned.

    Returns:
        Log probabilities ``[N, top_paths]``, lengths ``[N, top_paths]``, and labels ``[N, top_paths, T]``, filled up
        with blanks. Where there are fewer sequences, the probability is minus infinity.
    """
    found: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = torch.ops.torchipu.ctc_beam_search(
        log_probs, lengths, blank, beam_width, top_paths
    )
    return found
