"""The command ``poprun``: starts one process an instance, under torchrun's elastic agent, and ends them together."""
