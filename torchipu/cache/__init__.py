"""The compile cache: captures of models, and which programs fit, found again in a folder by all they depend on."""
