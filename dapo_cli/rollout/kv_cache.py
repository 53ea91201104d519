"""A transformers cache whose layers write in place, for a decode loop whose rows leave as they finish."""

from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer


class RoomyLayer(DynamicLayer):
    """A `DynamicLayer` with spare room behind the sequence, so that a new token is written instead of concatenated,
    which copies the whole cache at every token."""

    ROOM = 64  # tokens of room added at a time

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        """Append [rows, heads, new, size] states; returns views of all states so far."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self._length = 0
            self._keys, self._values = key_states[:, :, :0], value_states[:, :, :0]
        length = self._length + key_states.shape[-2]
        if length > self._keys.shape[-2]:
            self._keys = self._with_room(self._keys, key_states, length)
            self._values = self._with_room(self._values, value_states, length)
        self._keys[:, :, self._length : length] = key_states
        self._values[:, :, self._length : length] = value_states
        return self._set_length(length)

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._keys = self._keys.repeat_interleave(repeats, dim=0)
        self._values = self._values.repeat_interleave(repeats, dim=0)
        self._set_length(self._length)

    def batch_select_indices(self, indices: Tensor) -> None:
        self._keys = self._keys[indices]
        self._values = self._values[indices]
        self._set_length(self._length)

    def _with_room(self, old: Tensor, new: Tensor, length: int) -> Tensor:
        roomy = new.new_empty(*new.shape[:2], length + self.ROOM, new.shape[-1])
        roomy[:, :, : self._length] = old[:, :, : self._length]
        return roomy

    def _set_length(self, length: int) -> tuple[Tensor, Tensor]:
        self._length = length
        self.keys = keys = self._keys[:, :, :length]
        self.values = values = self._values[:, :, :length]
        return keys, values


def roomy_cache(config) -> DynamicCache:
    """The model's own `DynamicCache` with its plain full-attention layers made roomy; other kinds stay as they are."""
    cache = DynamicCache(config=config)
    cache.layers = [RoomyLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache
