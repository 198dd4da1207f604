"""`ctc_beam_search_decoder`: the most likely label sequences of CTC outputs."""

from __future__ import annotations

from typing import Any

import torch

from torchipu.capture.beam_search import ctc_beam_search
from torchipu.poptorch.poptorch_core import createPoptorchError


def ctc_beam_search_decoder(
    probs: torch.Tensor, lengths: torch.Tensor, blank: int = 0, beam_width: int = 100, top_paths: int = 1,
) -> list[torch.Tensor]:
    """Find the most likely label sequences by a prefix beam search.

    Args:
        probs: Log probabilities, ``[T, N, C]``.
        lengths: Steps of each sample, ``[N]``.
        blank: Class that stands for no label.
        beam_width: Sequences that are kept from step to step.
        top_paths: Sequences that are returned, at most ``beam_width``.

    Returns:
        Log probabilities ``[N, top_paths]``, lengths ``[N, top_paths]``, and labels ``[N, top_paths, T]``, filled up
        with blanks.

    Raises:
        Error: An argument is of another type or size.
    """
    for name, value in (("probs", probs), ("lengths", lengths)):
        if not isinstance(value, torch.Tensor):
            raise createPoptorchError(
                f"poptorch.ctc_beam_search_decoder: {name} must be a tensor, not {type(value)}"
            )
    if probs.dim() != 3 or lengths.shape != probs.shape[1:2]:
        raise _refusal(
            f"probs must be [T, N, C] and lengths [N], but they are {list(probs.shape)} and {list(lengths.shape)}"
        )
    classes = probs.shape[2]
    _check_whole("blank", blank, 0, classes - 1)
    _check_whole("beam_width", beam_width, 1, None)
    _check_whole("top_paths", top_paths, 1, beam_width)
    return list(ctc_beam_search(probs.detach(), lengths, blank, beam_width, top_paths))


def _check_whole(name: str, value: Any, least: int, most: int | None) -> None:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or value < least or (most is not None and value > most):
        up_to = "" if most is None else f" to {most}"
        raise _refusal(f"{name} must be an integer from {least}{up_to}, not {value!r}")


def _refusal(message: str) -> Exception:
    return createPoptorchError(f"poptorch.ctc_beam_search_decoder: {message}")
