"""The score card: the machine model beside what was measured on IPUs, row by row.

The rows lie in ``rows/``, with their sources; each kind of row has a function that makes a workload of a row, compiles
it as any model is compiled, and takes one number from the program. `torchipu score` prints what comes of it.
"""

from torchipu.score.card import Result, Score, score
from torchipu.score.kinds import Kind, NotExpressed, Prediction
from torchipu.score.rows import Row

__all__ = ["Kind", "NotExpressed", "Prediction", "Result", "Row", "Score", "score"]
