"""The variables of a device program in the bytes of the tiles."""

from __future__ import annotations

import numpy as np

from torchipu.device.stores import Place, Slot, Stores, Values
from torchipu.device.tiles.layout import Held, is_wide, spread_of, to_bits, to_values
from torchipu.device.tiles.memory import NOBODY, TileMemory
from torchipu.errors import DeviceProgramError
from torchipu.ir.program import Executable, Variable
from torchipu.ir.region import Numbers


class TileStores(Stores):
    """The variables of all replicas, where the memory pass has put them.

    Args:
        executable: With addresses.
        num_tiles: Tiles of an IPU.
        tile_bytes: Memory of each.
    """

    def __init__(self, executable: Executable, num_tiles: int, tile_bytes: int) -> None:
        super().__init__(executable)
        self.num_tiles, self.tile_bytes = num_tiles, tile_bytes
        self._memories: dict[tuple[int, int], TileMemory] = {}
        self._held: dict[Variable, Held] = {}
        self._names = ["nobody"]
        self._addresses_of = executable.addresses

    # ------------------------------------------------------------------ bytes
    def memory(self, ipu: int, replica: int) -> TileMemory:
        """Return the tiles of an IPU."""
        key = (ipu, replica)
        if key not in self._memories:
            self._memories[key] = TileMemory(self.num_tiles, self.tile_bytes)
        return self._memories[key]

    def release(self) -> None:
        """Give back the memory of all tiles."""
        self._memories.clear()

    def held(self, variable: Variable) -> Held:
        """Return where a variable lies.

        Raises:
            DeviceProgramError: It has no address, or reaches beyond the tile.
        """
        if variable not in self._held:
            begin = self._addresses_of.get(variable.name, (-1, -1))[0]
            wide = is_wide(variable)
            held = Held(variable.name, variable.dtype, spread_of(variable.mapping, 4 if wide else 1), begin, 0, wide)
            if not wide:
                held.spread = spread_of(variable.mapping, held.element_bytes)
            held.variable = variable
            held.owner = self.new_owner(variable.name, variable.depth)
            end = begin + variable.depth * held.spread.largest
            if begin < 0 or end > self.tile_bytes:
                raise DeviceProgramError(
                    f"%{variable.name} on ipu {variable.ipu} lies at {begin} to {end} B of tiles that have "
                    f"{self.tile_bytes} B"
                )
            self._held[variable] = held
        return self._held[variable]

    def new_owner(self, name: str, slots: int = 1) -> int:
        """Return the first of so many numbers that mark the bytes of a value."""
        self._names += [name] * slots
        return len(self._names) - slots

    def name_of(self, owner: int) -> str:
        """Return who has written what is marked so."""
        return self._names[owner]

    # ------------------------------------------------------------------ vertices
    def enter(self, variable: Variable, at: Place, *, keeps: bool, shares: bool = False) -> int:
        """Begin to write a variable for a moment, element by element, and return its slot.

        Args:
            variable: The variable.
            at: Where it is written.
            keeps: Whether what is there stays, to be overwritten in place.
            shares: Whether each replica writes no more than its share.
        """
        number = self._begin(variable, at, is_share=shares).number
        if not keeps:
            held = self.held(variable)
            places = self._places(held, number)
            sizes = np.full(len(places), held.element_bytes, np.int64)
            for replica in range(self.replicas):
                self.memory(variable.ipu, replica).own(places, sizes, NOBODY)
        return number

    def slot_read(self, variable: Variable, at: Place, *, shares: bool = False) -> int:
        """Return the slot that a moment reads; see ``read`` for what is refused."""
        return self._checked(variable, at, shares=shares).number

    def require_all(self, variable: Variable, slot: int, at: Place) -> None:
        """Refuse a variable of which an element is not its own."""
        held = self.held(variable)
        places = self._places(held, slot)
        for replica in range(self.replicas):
            self._require(held, slot, places, replica, at)

    # ------------------------------------------------------------------ values (Stores)
    def _keep(self, variable: Variable, slot: Slot, values: Values) -> None:
        held = self.held(variable)
        places = self._places(held, slot.number)
        sizes = np.full(len(places), held.element_bytes, np.int64)
        for replica in range(self.replicas):
            memory = self.memory(variable.ipu, replica)
            bits = to_bits(values[replica].reshape(-1), held)
            memory.bytes.view(held.bits)[places // held.element_bytes] = bits
            memory.own(places, sizes, held.owner + slot.number)

    def _keep_row(self, variable: Variable, slot: Slot, row: int, values: Values) -> None:
        held = self.held(variable)
        size = held.num_elements // variable.shape[0]
        places = np.ascontiguousarray(self._places(held, slot.number)[row * size : (row + 1) * size])
        for replica in range(self.replicas):
            memory = self.memory(variable.ipu, replica)
            memory.bytes.view(held.bits)[places // held.element_bytes] = to_bits(values[replica].reshape(-1), held)

    def _kept(self, variable: Variable, slot: Slot, at: Place | None) -> Values:
        held = self.held(variable)
        places = self._places(held, slot.number)
        found = []
        for replica in range(self.replicas):
            memory = self.memory(variable.ipu, replica)
            self._require(held, slot.number, places, replica, at)
            bits = memory.bytes.view(held.bits)[places // held.element_bytes]
            found.append(to_values(bits, held).reshape(variable.shape))
        return np.stack(found)

    def _places(self, held: Held, slot: int) -> Numbers:
        first = held.places(self.tile_bytes)
        return first if slot == 0 else first + slot * held.spread.largest

    def _require(self, held: Held, slot: int, places: Numbers, replica: int, at: Place | None) -> None:
        """Refuse to read elements that others have overwritten, or that nobody has written."""
        assert held.variable is not None
        memory = self.memory(held.variable.ipu, replica)
        sizes = np.full(len(places), held.element_bytes, np.int64)
        wrong = memory.stranger(places, sizes, held.owner + slot)
        if wrong < 0:
            return
        message = self.strange(memory, held, int(places[wrong]), wrong, held.owner + slot)
        raise at.fault(message) if at is not None else DeviceProgramError(message)

    def strange(self, memory: TileMemory, held: Held, place: int, element: int, owner: int) -> str:
        """Say who has written an element that is not its value's own."""
        owners = memory.owners[place : place + held.element_bytes]
        other = next((int(one) for one in owners if one != owner), owner)
        tile, address = divmod(place, self.tile_bytes)
        if other == NOBODY:
            return f"reads element {element} of %{held.name} on tile {tile}, which nobody has written"
        by = f"%{self.name_of(other)}" if self.name_of(other) != held.name else "another micro-batch"
        return f"reads element {element} of %{held.name} at {address} B of tile {tile}, where {by} was written since"
