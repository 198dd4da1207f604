"""Block and BeginBlock: the user's word on which IPU computes which part of the model, as FX annotations."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.fx.traceback import annotate

from torchipu.errors import OptionsError, PlacementError

BLOCK_KEY = "ipu_block"
"""Key of ``node.meta["custom"]`` that holds ``(name, ipu_id or None)``."""

SCOPE_KEY = "ipu_scopes"
"""Key that holds the named scopes from the outermost on: the path of the module that each began in, and its name."""

ATTRIBUTES_KEY = "ipu_attributes"
"""Key that holds what the user attaches to ops: by name a text."""

PARTIALS_KEY = "ipu_partials"
"""Key of ``node.meta["custom"]`` that holds the type of partials."""
SIDE_BY_SIDE_KEY = "ipu_side_by_side"
"""Key that holds the number of a region of convolutions that run together, and the tiles that each has at least."""
PARTIALS_TYPES = ("float", "half")


def Partials(dtype: str) -> AbstractContextManager[None]:  # noqa: N802 - beside Block
    """Return a context manager, also usable as a decorator, whose products and convolutions have partials of a type.

    It wins over the option ``partials_type``, for these ops and their gradients. Products of floats are summed as
    floats in any case.

    Args:
        dtype: ``half`` or ``float``.

    Raises:
        OptionsError: It is something else.
    """
    if not torch.compiler.is_compiling():
        check_partials(dtype)
    return annotate({PARTIALS_KEY: dtype})


def SideBySide(number: int, reserved_tiles: int = 1) -> AbstractContextManager[None]:  # noqa: N802 - beside Block
    """Return a context manager whose convolutions, and whose gradients, run together, each on tiles of its own.

    Args:
        number: Number of the region in the model.
        reserved_tiles: Tiles that each of its convolutions has at least.
    """
    return annotate({SIDE_BY_SIDE_KEY: (number, reserved_tiles)})


def check_partials(dtype: object) -> None:
    """Raise OptionsError unless the matrix unit has partials of this type."""
    if dtype not in PARTIALS_TYPES:
        raise OptionsError(
            f"partials are 'float' or 'half', got {dtype!r}", option="partials_type", value=dtype,
            allowed="'float' or 'half'",
            remedy="use 'float' or 'half', the types in which the matrix unit accumulates",
        )


def Block(name: str, ipu_id: int | None = None) -> AbstractContextManager[None]:  # noqa: N802 - PopTorch's word
    """Return a context manager, also usable as a decorator, whose ops form one block.

    It is a function on purpose: what it returns is torch's own annotation, which Dynamo can trace in a full graph
    and which reaches the forward and the backward nodes. Blocks nest; the inner one holds.

    Args:
        name: Name of the block in reports and errors.
        ipu_id: IPU that computes the block, from 0; None leaves it to the order of the blocks.

    Raises:
        PlacementError: The name is no text, or the IPU is no number from 0.

    Example:
        >>> with Block("encoder", ipu_id=0):
        ...     pass
    """
    if not torch.compiler.is_compiling():  # Dynamo cannot trace the raise; the import of the graph checks again
        check_block(name, ipu_id)
    return annotate({BLOCK_KEY: (name, ipu_id)})


def check_block(name: object, ipu_id: object) -> None:
    """Raise PlacementError unless these can be the name and the IPU of a block."""
    if not isinstance(name, str) or not name:
        raise PlacementError(
            f"a block needs a name of at least one letter, got {name!r}", remedy='write Block("encoder")',
        )
    if ipu_id is None or (isinstance(ipu_id, int) and not isinstance(ipu_id, bool) and ipu_id >= 0):
        return
    raise PlacementError(
        f"block {name!r}: ipu_id must be a whole number from 0, got {ipu_id!r}",
        remedy="count the IPUs of the model from 0, or leave ipu_id out",
    )


class BlockForward:
    """A module's forward within a block; an object and not a closure, so that the module can be copied and pickled.

    Args:
        forward: The bound forward.
        name: Name of the block.
        ipu_id: IPU of the block, or None.
    """

    def __init__(self, forward: Callable[..., Any], name: str, ipu_id: int | None) -> None:
        self.__wrapped__ = forward
        self.spec = (name, ipu_id)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the forward under the annotation."""
        with annotate({BLOCK_KEY: self.spec}):
            return self.__wrapped__(*args, **kwargs)


def BeginBlock(  # noqa: N802 - PopTorch's word
    module: torch.nn.Module, name: str | None = None, ipu_id: int | None = None,
) -> torch.nn.Module:
    """Begin a block at a module: it holds from this module's ops on until another block begins.

    The module's own ops are annotated; those that follow without a block of their own are given to the same block
    by the placement pass. Parameters, names and type of the module stay as they are.

    Args:
        module: First module of the block; changed in place.
        name: Name of the block; None takes the class name of the module.
        ipu_id: IPU that computes the block, from 0; None leaves it to the order of the blocks.

    Returns:
        The same module.

    Raises:
        PlacementError: ``module`` is no module, or the name or the IPU is not valid.
    """
    if not isinstance(module, torch.nn.Module):
        raise PlacementError(
            f"BeginBlock needs a torch.nn.Module, got {type(module).__name__}",
            remedy="pass the first layer of the block, or use Block(...) around the code",
        )
    name = type(module).__name__ if name is None else name
    check_block(name, ipu_id)
    forward = module.forward
    if isinstance(forward, BlockForward):
        forward = forward.__wrapped__
    object.__setattr__(module, "forward", BlockForward(forward, name, ipu_id))
    return module
