"""The KV cache before paging: each sequence reserves its longest possible length in one piece, at admission.

Kept so that one can measure what paging buys: nothing is shared, and what a short answer leaves of its reservation,
and the gaps between reservations, are lost. This module must not know prefixes.
"""

import bisect

from mini_vllm.kvcache.blocks import Block, BlockTable
from mini_vllm.kvcache.cache import Grant, KVCache, Refusal


class ContiguousCache(KVCache):
    """One run of consecutive blocks for each sequence, first fit."""

    def __init__(self, *, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks=num_blocks, block_size=block_size)
        self._blocks = [Block(block_id) for block_id in range(num_blocks)]
        self._gaps: list[tuple[int, int]] = [(0, num_blocks)]  # half-open intervals, ascending, never adjacent

    @property
    def num_free(self) -> int:
        return sum(end - start for start, end in self._gaps)

    def start(self, table: BlockTable, num_tokens: int, *, reusable: int, promised: int) -> Grant | Refusal:
        assert not table.is_open, "table is already open"
        length = -(-max(table.max_len, num_tokens) // self.block_size)
        fitting = (i for i, (start, end) in enumerate(self._gaps) if end - start >= length)
        i = next(fitting, None)
        if i is None:
            return Refusal.FULL
        start, end = self._gaps[i]
        self._gaps[i : i + 1] = [(start + length, end)] if start + length < end else []
        table.blocks = self._blocks[start : start + length]
        table.is_open = True
        self._open[id(table)] = table
        return Grant(tuple(range(start, start + length)), 0)

    def extend(self, table: BlockTable, num_tokens: int) -> tuple[int, ...] | None:
        assert num_tokens <= len(table.blocks) * self.block_size, "a sequence outgrew its reservation"
        return ()

    def num_missing(self, table: BlockTable, num_tokens: int) -> int:
        return 0

    def commit(self, table: BlockTable, num_computed: int) -> None:
        return None

    def release(self, table: BlockTable) -> None:
        assert self._open.pop(id(table), None) is table, "table is released twice"
        if table.blocks:
            self._give_back(table.blocks[0].block_id, table.blocks[-1].block_id + 1)
        table.reset()

    def check_integrity(self) -> None:
        runs = [(table.blocks[0].block_id, table.blocks[-1].block_id + 1) for table in self._open.values()]
        edge = 0
        for start, end in sorted(runs + self._gaps):
            assert start == edge and end > start, f"blocks [{start}, {end}) overlap others or leave a hole at {edge}"
            edge = end
        assert edge == self.num_blocks, "blocks got lost at the end"
        assert all(a[1] < b[0] for a, b in zip(self._gaps, self._gaps[1:], strict=False)), "gaps were not merged"

    def _give_back(self, start: int, end: int) -> None:
        i = bisect.bisect(self._gaps, (start, end))
        if i < len(self._gaps) and self._gaps[i][0] == end:
            end = self._gaps.pop(i)[1]
        if i > 0 and self._gaps[i - 1][1] == start:
            i -= 1
            start = self._gaps.pop(i)[0]
        self._gaps.insert(i, (start, end))
