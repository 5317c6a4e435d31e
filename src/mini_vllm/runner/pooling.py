"""A prompt's hidden states as one vector, however the prompt was cut into chunks. Must not know models or plans."""

import numpy as np
import numpy.typing as npt

from mini_vllm.types import Pooling


class Pool:
    """Of one sequence. The mean is summed token by token in float64, so that no cut changes a bit of it."""

    def __init__(self, pooling: Pooling) -> None:
        self._takes_all = pooling == "mean"
        self._sum: npt.NDArray[np.float64] | None = None
        self._count = 0

    def num_rows(self, length: int) -> int:
        """How many of a chunk's tokens, its last ones, must be given."""
        return length if self._takes_all else 1

    def add(self, start: int, rows: npt.NDArray[np.float32]) -> None:
        """The states of the next chunk [T, H], which begins at position `start`; at 0 everything begins anew."""
        if start == 0 or not self._takes_all:
            self._sum, self._count = np.zeros(rows.shape[1]), 0
        assert self._sum is not None, "a mean starts with the first token"
        self._count += len(rows)
        for row in rows:
            self._sum += row

    def result(self) -> tuple[float, ...]:
        """The vector [H], rounded to float32."""
        assert self._sum is not None and self._count, "nothing was added"
        return tuple((self._sum / self._count).astype(np.float32).tolist())
