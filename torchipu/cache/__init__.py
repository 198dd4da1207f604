"""The compile cache: captures of models in a folder, found again by all that they depend on."""
