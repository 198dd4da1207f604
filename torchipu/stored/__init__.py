"""Files of ours that hold tensors and graphs: their format, and what is written of a capture."""
