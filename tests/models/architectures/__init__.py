"""Architectures of timm and transformers, small and with random weights, through ``torch.compile`` beside eager."""
