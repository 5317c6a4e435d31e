"""The KV cache as the scheduler sees it: the only door of this room.

`KVCache` is the contract; `PagedCache` fulfils it with a pool of blocks and shared prefixes, and, with
`retains=False`, for one step at a time; `contiguous.py` reserves one piece per sequence. This module must not know
requests, policies or tensors.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum

from mini_vllm.config import CacheConfig
from mini_vllm.kvcache.blocks import Block, BlockPool, BlockTable, arrange
from mini_vllm.kvcache.prefix import PrefixIndex


class Refusal(Enum):
    """Why a sequence cannot start now."""

    FULL = "full"  # not enough free blocks
    PENDING = "pending"  # its next block is being computed by another sequence: wait, then share it


@dataclass(frozen=True, slots=True)
class Grant:
    """A started sequence: its first blocks, and how many of its tokens they already hold."""

    block_ids: tuple[int, ...]
    num_cached: int


class KVCache(ABC):
    """Blocks for the K and V of every sequence that is being computed.

    A table is closed or open. `start` opens it, `extend` makes room, `commit` says that contents exist, `release`
    closes it. Block ids are valid from the call that returns them until `release`.
    """

    retains = True  # whether a table may stay open from one step to the next
    shares_prefixes = False  # whether `start` ever finds tokens that are already in the cache

    def __init__(self, *, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._open: dict[int, BlockTable] = {}  # by id()

    @staticmethod
    def from_config(config: CacheConfig, *, num_blocks: int) -> "KVCache":
        """The variant that the configuration asks for: contiguous, without memory between steps, or paged."""
        from mini_vllm.kvcache.contiguous import ContiguousCache

        if config.cache_backend == "contiguous":
            return ContiguousCache(num_blocks=num_blocks, block_size=config.block_size)
        return PagedCache(
            num_blocks=num_blocks,
            block_size=config.block_size,
            prefix_caching=config.enable_prefix_caching and config.kv_cache,
            retains=config.kv_cache,
        )

    @property
    def capacity(self) -> int:
        """Tokens that one sequence could hold if it were alone."""
        return self.num_blocks * self.block_size

    @property
    @abstractmethod
    def num_free(self) -> int:
        """Blocks that could be given away now, those that still hold a prefix included."""

    @property
    def num_cached(self) -> int:
        """Free blocks that still hold a prefix."""
        return 0

    @property
    def num_shared(self) -> int:
        """Blocks held by more than one open table."""
        return 0

    @property
    def num_evicted(self) -> int:
        """Cached prefix blocks that were overwritten since the start."""
        return 0

    @property
    def num_used(self) -> int:
        """Blocks held by open tables."""
        return self.num_blocks - self.num_free

    def new_table(self, token_ids: list[int], *, max_len: int, salt: str = "") -> BlockTable:
        """A closed table for a sequence of at most `max_len` tokens, over the owner's live list of token ids."""
        return BlockTable(token_ids, max_len=max_len, salt=salt)

    @abstractmethod
    def start(self, table: BlockTable, num_tokens: int, *, reusable: int, promised: int) -> Grant | Refusal:
        """Open a table if all its `num_tokens` known tokens could be held, beside `promised` blocks for others.

        At most `reusable` of its tokens are taken from the prefix cache. Changes nothing when it refuses.
        """

    @abstractmethod
    def extend(self, table: BlockTable, num_tokens: int) -> tuple[int, ...] | None:
        """Make room for the first `num_tokens` tokens; the ids of the new blocks, or None (and no change) if full."""

    @abstractmethod
    def num_missing(self, table: BlockTable, num_tokens: int) -> int:
        """Blocks that an open table lacks for its first `num_tokens` tokens."""

    @abstractmethod
    def commit(self, table: BlockTable, num_computed: int) -> None:
        """The K and V of the first `num_computed` tokens exist and will not change: their full blocks can be shared."""

    @abstractmethod
    def release(self, table: BlockTable) -> None:
        """Close an open table. Blocks that `commit` has seen full can be found again until they are reused."""

    @abstractmethod
    def check_integrity(self) -> None:
        """Raise AssertionError unless all counts, tables and indexes agree."""


class PagedCache(KVCache):
    """One pool of fixed-size blocks; equal prefixes share full blocks; free blocks are reused in LRU order."""

    def __init__(self, *, num_blocks: int, block_size: int, prefix_caching: bool = True, retains: bool = True) -> None:
        super().__init__(num_blocks=num_blocks, block_size=block_size)
        self.retains = retains
        self.shares_prefixes = prefix_caching
        self._index = PrefixIndex(block_size) if prefix_caching else None
        self._pool = BlockPool(num_blocks, on_evict=self._evict)

    @property
    def num_free(self) -> int:
        return self._pool.num_free

    @property
    def num_cached(self) -> int:
        return self._pool.num_cached

    @property
    def num_shared(self) -> int:
        return self._pool.num_shared

    @property
    def num_evicted(self) -> int:
        return self._pool.num_evicted

    def start(self, table: BlockTable, num_tokens: int, *, reusable: int, promised: int) -> Grant | Refusal:
        assert not table.is_open, "table is already open"
        hits: list[Block] = []
        if self._index is not None:
            if self._index.still_waits(table):
                return Refusal.PENDING
            most = reusable // self.block_size
            hits = self._index.match(table, most)
            if len(hits) < most and self._index.must_wait(table, len(hits)):
                return Refusal.PENDING
        idle_hits = sum(block.ref_count == 0 for block in hits)
        if self._num_blocks(num_tokens) - len(hits) + idle_hits + promised > self._pool.num_free:
            return Refusal.FULL
        self._take_hits(table, hits)
        if self._index is not None:
            self._index.announce(table, num_tokens // self.block_size)
        return Grant(tuple(block.block_id for block in hits), len(hits) * self.block_size)

    def extend(self, table: BlockTable, num_tokens: int) -> tuple[int, ...] | None:
        num_missing = self._num_blocks(num_tokens) - len(table.blocks)
        if num_missing <= 0:
            return ()
        if num_missing > self._pool.num_free:
            return None
        added = [self._pool.take() for _ in range(num_missing)]
        if num_missing > 1:
            added = arrange(added, len(table.blocks))
        table.blocks += added
        return tuple([block.block_id for block in added])

    def num_missing(self, table: BlockTable, num_tokens: int) -> int:
        return max(0, self._num_blocks(num_tokens) - len(table.blocks))

    def commit(self, table: BlockTable, num_computed: int) -> None:
        if self._index is None:
            return
        while table.num_full < num_computed // self.block_size:
            displaced = self._index.publish(table)
            if displaced is not None:
                self._pool.forget(displaced)

    def release(self, table: BlockTable) -> None:
        assert self._open.pop(id(table), None) is table, "table is released twice"
        if self._index is not None:
            self._index.retract(table)
        for block in reversed(table.blocks):
            self._pool.drop(block)
        table.reset()

    def check_integrity(self) -> None:
        self._pool.check_integrity()
        holders: dict[int, int] = {}
        for table in self._open.values():
            assert table.is_open and table.num_full <= len(table.blocks)
            assert len({block.block_id for block in table.blocks}) == len(table.blocks), "a block twice in a table"
            for block in table.blocks:
                holders[block.block_id] = holders.get(block.block_id, 0) + 1
        for block in self._pool.blocks:
            assert block.ref_count == holders.get(block.block_id, 0), f"reference count of block {block.block_id}"
        num_content = sum(block.content is not None for block in self._pool.blocks)
        assert num_content == (0 if self._index is None else len(self._index)), "a block's content is not indexed"
        if self._index is not None:
            self._index.check_integrity(iter(self._open.values()))

    def _take_hits(self, table: BlockTable, hits: list[Block]) -> None:
        for block in hits:
            self._pool.hold(block)
        table.blocks = hits
        table.is_open = True
        table.num_full = table.num_announced = len(hits)
        content = hits[-1].content if hits else None
        table.tail = content.serial if content is not None else 0
        self._open[id(table)] = table

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def _evict(self, block: Block) -> None:
        assert self._index is not None
        self._index.remove(block)
