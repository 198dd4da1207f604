"""``Options.TensorLocations``: where tensors lie, and how many tiles move them."""

from __future__ import annotations

from typing import Any, Self

from torchipu.poptorch.options.values import OptionsDict

MIN_IO_TILES = 32
MAX_IO_TILES = 192


class TensorLocationSettings(OptionsDict):
    """Where tensors of one kind are kept; each method returns the object, so calls can be chained."""

    def useOnChipStorage(self, use: bool | None = True) -> Self:
        """Keep them in tile memory, or in Streaming Memory.

        Args:
            use: True for tile memory; None for the default.
        """
        if use is None:
            return self.deleteIfExists("onChip")
        if not isinstance(use, bool):
            raise AssertionError(f"useOnChipStorage takes a bool, not {type(use)}")
        return self.createOrSet(onChip=use)

    def useReplicatedTensorSharding(self, use: bool = True) -> Self:
        """Give each replica a part of them.

        Args:
            use: Whether to.
        """
        if not isinstance(use, bool):
            raise AssertionError(f"useReplicatedTensorSharding takes a bool, not {type(use)}")
        return self.createOrSet(useReplicatedTensorSharding=use)

    def minElementsForOffChip(self, min_elements: int) -> Self:
        """Keep smaller tensors in tile memory in any case.

        Args:
            min_elements: From how many elements on a tensor may leave it.
        """
        if not isinstance(min_elements, int):
            raise AssertionError(f"minElementsForOffChip takes an int, not {type(min_elements)}")
        return self.createOrSet(minElementsForOffChip=min_elements)

    def minElementsForReplicatedTensorSharding(self, min_elements: int) -> Self:
        """Leave smaller tensors whole.

        Args:
            min_elements: From how many elements on a tensor is cut.
        """
        if not isinstance(min_elements, int):
            raise AssertionError(f"minElementsForReplicatedTensorSharding takes an int, not {type(min_elements)}")
        return self.createOrSet(minElementsForReplicatedTensorSharding=min_elements)

    def useIOTilesToLoad(self, use: bool = True) -> Self:
        """Load them through the tiles set apart for transfers.

        Args:
            use: Whether to.
        """
        if not isinstance(use, bool):
            raise AssertionError(f"useIOTilesToLoad takes a bool, not {type(use)}")
        return self.createOrSet(useIOTilesToLoad=use)

    def useIOTilesToStore(self, use: bool = True) -> Self:
        """Store them through the tiles set apart for transfers.

        Args:
            use: Whether to.
        """
        if not isinstance(use, bool):
            raise AssertionError(f"useIOTilesToStore takes a bool, not {type(use)}")
        return self.createOrSet(useIOTilesToStore=use)


class _TensorLocationOptions(OptionsDict):
    """Where weights, activations, optimiser states and accumulators are kept."""

    def __init__(self) -> None:
        super().__init__(
            location_activation=TensorLocationSettings(),
            location_weight=TensorLocationSettings(),
            location_optimizer=TensorLocationSettings(),
            location_accumulator=TensorLocationSettings(),
        )

    def setActivationLocation(self, location: TensorLocationSettings) -> Self:
        """Set where activations are kept.

        Args:
            location: The place.
        """
        return self._place(location_activation=location)

    def setWeightLocation(self, location: TensorLocationSettings) -> Self:
        """Set where weights are kept.

        Args:
            location: The place.
        """
        return self._place(location_weight=location)

    def setOptimizerLocation(self, location: TensorLocationSettings) -> Self:
        """Set where the states of the optimiser are kept.

        Args:
            location: The place.
        """
        return self._place(location_optimizer=location)

    def setAccumulatorLocation(self, location: TensorLocationSettings) -> Self:
        """Set where the accumulators of gradients are kept.

        Args:
            location: The place.
        """
        return self._place(location_accumulator=location)

    def numIOTiles(self, num_tiles: int) -> Self:
        """Set tiles apart for transfers.

        Args:
            num_tiles: Even, 32 to 192.

        Raises:
            AssertionError: It is not.
        """
        if not isinstance(num_tiles, int):
            raise AssertionError(f"numIOTiles takes an int, not {type(num_tiles)}")
        if not (MIN_IO_TILES <= num_tiles <= MAX_IO_TILES) or num_tiles % 2 != 0:
            raise AssertionError(f"numIOTiles must be an even number between {MIN_IO_TILES} and {MAX_IO_TILES}.")
        return self.createOrSet(numIOTiles=num_tiles)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an option; the number of tiles by way of its setter, which is an attribute of the same name."""
        if name == "numIOTiles":
            self.numIOTiles(value)
        else:
            super().__setattr__(name, value)

    def toDict(self) -> dict[str, Any]:
        """Return all options by name, places as dictionaries too."""
        return {
            name: value.toDict() if isinstance(value, TensorLocationSettings) else value
            for name, value in self._values.items()
        }

    def _place(self, **location: TensorLocationSettings) -> Self:
        return self.set(**location)
