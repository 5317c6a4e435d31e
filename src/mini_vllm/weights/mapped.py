"""A file mapped into memory, and a cursor that reads it with a bound on every step.

Knows bytes only: nothing of tensors, formats or models.
"""

import mmap
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mini_vllm.errors import WeightsError

# Once this many bytes of views were handed out, resident pages of the mapping are dropped. They come back on use.
_DROP_AFTER = 32 * 2**20


class MappedFile:
    """A read-only mapping. Views stay valid after `close` for as long as somebody holds them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self.size = file.seek(0, 2)
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if self.size else None
        except OSError as error:
            raise WeightsError(f"{path}: cannot be read ({error.strerror or error}); check path and rights") from error
        self._handed_out = 0

    @property
    def buffer(self) -> Any:
        """What `struct.unpack_from` and slicing (to bytes) work on."""
        return self._map if self._map is not None else b""

    def view(self, offset: int, num_bytes: int) -> npt.NDArray[np.uint8]:
        """Bytes as a read-only array [num_bytes], without a copy. The caller has checked the bounds."""
        assert offset >= 0 and offset + num_bytes <= self.size, "a view must lie inside the file"
        self._handed_out += num_bytes
        if self._handed_out > _DROP_AFTER:
            self.drop_pages()
            self._handed_out = num_bytes
        return np.frombuffer(self.buffer, dtype=np.uint8, count=num_bytes, offset=offset)

    def drop_pages(self) -> None:
        """Give resident pages back to the system; views refault them from the page cache when touched again.

        This is what bounds the peak while a checkpoint is packed: only the tensors in use stay resident.
        """
        if self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Unmap, or leave that to the last view."""
        if self._map is not None:
            try:
                self._map.close()
            except BufferError:
                self._map = None  # a view is still held; the mapping dies with it


class Cursor:
    """Reads little-endian values one after another; running past the end is a `WeightsError` naming the field."""

    def __init__(self, file: MappedFile) -> None:
        self.path = file.path
        self.position = 0
        self.size = file.size
        self._buffer = file.buffer

    def fail(self, problem: str) -> WeightsError:
        """An error that names the file."""
        return WeightsError(f"{self.path}: {problem}; the file is broken or truncated, fetch it again")

    def unpack(self, code: str, field: str) -> Any:
        """One scalar of the given `struct` code."""
        width = struct.calcsize("<" + code)
        self._need(width, field)
        (value,) = struct.unpack_from("<" + code, self._buffer, self.position)
        self.position += width
        return value

    def text(self, field: str) -> str:
        """A string: its length in bytes as u64, then UTF-8."""
        return self.texts(1, field)[0]

    def texts(self, count: int, field: str) -> list[str]:
        """`count` strings. The count must have been checked against the file by `check_count`."""
        buffer, position, size = self._buffer, self.position, self.size
        read_length = struct.Struct("<Q").unpack_from
        found: list[str] = []
        try:
            for _ in range(count):
                (length,) = read_length(buffer, position)
                start = position + 8
                position = start + length
                if position > size:
                    raise self._past_end(field, length, start)
                found.append(buffer[start:position].decode())
        except struct.error:
            raise self._past_end(field, 8, position) from None
        except UnicodeDecodeError as error:
            raise self.fail(f"{field} holds text that is not UTF-8 ({error.reason})") from None
        self.position = position
        return found

    def array(self, dtype: str, count: int, field: str) -> npt.NDArray[Any]:
        """`count` numbers, as a copy of their own."""
        width = np.dtype(dtype).itemsize * count
        self._need(width, field)
        values = np.frombuffer(self._buffer, dtype=dtype, count=count, offset=self.position).copy()
        self.position += width
        return values

    def check_count(self, count: int, smallest: int, field: str) -> int:
        """The count, if that many items of at least `smallest` bytes can still lie in the file."""
        if count * smallest > self.size - self.position:
            raise self.fail(f"{field} is {count}, more than the {self.size - self.position} bytes left can hold")
        return count

    def _need(self, width: int, field: str) -> None:
        if width > self.size - self.position:
            raise self._past_end(field, width, self.position)

    def _past_end(self, field: str, width: int, position: int) -> WeightsError:
        return self.fail(f"{field} needs {width} bytes at offset {position} but the file has {self.size}")


def check_no_overlap(path: Path, spans: Iterable[tuple[int, int, str]]) -> None:
    """Refuse (start, end, name) spans that share bytes."""
    last_end, last_name = -1, ""
    for start, end, name in sorted(spans):
        if start < last_end:
            raise WeightsError(
                f"{path}: tensors {last_name!r} and {name!r} overlap; the file is broken, fetch it again"
            )
        last_end, last_name = end, name
