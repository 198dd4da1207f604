"""A user's model while it is captured: how it is run, and what is refused in PopTorch's words."""
