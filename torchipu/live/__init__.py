"""Runs to look at while they go on: drawings and tables for notebooks and terminals, scalars for TensorBoard.

`watch` shows a table of a step that is called, `timeline` and `schedule` draw what the IPUs do. Profiles and
explanations draw themselves where they are the value of a cell; from this import on, time lines and schedules do too.
"""

from __future__ import annotations

from torchipu.live.board import Watched, watch
from torchipu.live.scalars import tensorboard_writer, write_scalars
from torchipu.live.shown import Shown, draw_in_notebooks, schedule, timeline

__all__ = ["Shown", "Watched", "schedule", "tensorboard_writer", "timeline", "watch", "write_scalars"]

draw_in_notebooks()
