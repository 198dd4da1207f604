"""Parts of one program on several processes: which ops each has, what goes between them, and in which order they run.

A part is what one process has of a model whose pipeline several processes run: the ops of its IPUs, their weights,
accumulators and optimiser states.
"""
