"""What torch calls at the end of its import: ``torch.backends`` is the group of entry points for that.

It is no part of the package torchipu, whose import fails where torch is too new or the kernels are not built: an error
here would make ``import torch`` fail for everybody.
"""

import logging


def install() -> None:
    """Let torchipu add itself to packages that are imported from now on, or leave it if it cannot be imported."""
    try:
        from torchipu import hooks

        hooks.install()
    except Exception as error:  # whoever imports torchipu sees it
        logging.getLogger("torchipu").debug("torchipu is not there for other packages: %s", error)
