"""Loaders: which elements a call gets, and processes that read ahead; `poptorch._dataloader` is the door to them."""
