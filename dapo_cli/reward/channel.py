"""Messages between a pool and a worker over a socket: length, then JSON. No verdict can run code in the pool."""

import contextlib
import json
import socket
import struct
from typing import Any

_LENGTH = struct.Struct("!Q")
MAX_MESSAGE_BYTES = 1 << 30
CHUNK_BYTES = 1 << 16


class Channel:
    """One end. In the parent it never blocks: a worker that is stopped, or holds its lock, must not stop the pool.

    Any OSError or ValueError means that the other end is gone or talks nonsense.
    """

    def __init__(self, end: socket.socket, *, blocking: bool) -> None:
        self.socket = end
        self.socket.setblocking(blocking)
        self._received = bytearray()
        self._to_send = bytearray()

    def fileno(self) -> int:
        return self.socket.fileno()

    @property
    def sending(self) -> bool:
        return bool(self._to_send)

    def send(self, message: Any) -> None:
        data = json.dumps(message).encode()
        self._to_send += _LENGTH.pack(len(data)) + data
        self.flush()

    def flush(self) -> None:
        """Send what the socket takes now; all of it where the channel blocks."""
        with contextlib.suppress(BlockingIOError):
            while self._to_send:
                sent = self.socket.send(self._to_send)
                del self._to_send[:sent]

    def receive(self) -> list[Any]:
        """The messages that have arrived, at least one where the channel blocks. Raises EOFError at the end."""
        messages = self._whole_messages()
        while not messages:
            try:
                data = self.socket.recv(CHUNK_BYTES)
            except BlockingIOError:
                return []
            if not data:
                raise EOFError
            self._received += data
            messages = self._whole_messages()
        return messages

    def close(self) -> None:
        self.socket.close()

    def _whole_messages(self) -> list[Any]:
        messages = []
        while len(self._received) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._received)
            if length > MAX_MESSAGE_BYTES:
                raise ValueError(f"a message of {length} bytes")
            if len(self._received) < _LENGTH.size + length:
                break
            messages.append(json.loads(bytes(self._received[_LENGTH.size : _LENGTH.size + length])))
            del self._received[: _LENGTH.size + length]
        return messages
