"""Which block holds which prefix: a chained content hash, verified on every hit.

The key of block i is a hash of (key of block i - 1, its token ids); the chain of a tenant starts from a hash of its
salt. A key only finds a candidate. A hit also needs equal token ids, an equal salt, and a parent that is the very
block that was hit before it, so that two chains with colliding keys can never be confused.

This module must not know reference counts or the order of eviction.
"""

import hashlib
from collections.abc import Iterator

from mini_vllm.kvcache.blocks import Block, BlockTable, Content


def root_key(salt: str) -> int:
    """Where the chain of a tenant starts; the same in every process."""
    return int.from_bytes(hashlib.blake2b(salt.encode(), digest_size=8).digest(), "little", signed=True)


def block_key(parent: int, token_ids: tuple[int, ...]) -> int:
    """Key of a full block from the key of the block before it."""
    return hash((parent, token_ids))


class PrefixIndex:
    """Finds the longest run of full blocks whose contents exist, and knows which blocks are being computed."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._blocks: dict[int, Block] = {}  # key -> the block that holds it
        self._pending: dict[int, int] = {}  # key -> open tables that have announced it
        self._last_serial = 0

    def __len__(self) -> int:
        return len(self._blocks)

    def match(self, table: BlockTable, num_blocks: int) -> list[Block]:
        """The blocks that hold the first of the table's `num_blocks` full blocks, as many as exist in a row."""
        self._extend_keys(table, num_blocks)
        hits: list[Block] = []
        parent = 0
        for i in range(num_blocks):
            block = self._find(table, i, parent)
            if block is None or block.content is None:
                break
            hits.append(block)
            parent = block.content.serial
        return hits

    def must_wait(self, table: BlockTable, i: int) -> bool:
        """Whether an open table is about to compute this table's block i; if so, that is kept in mind."""
        table.awaited = table.keys[i] if table.keys[i] in self._pending else None
        return table.awaited is not None

    def still_waits(self, table: BlockTable) -> bool:
        """Whether the block that the table was last told to wait for is still being computed."""
        return table.awaited is not None and table.awaited in self._pending

    def announce(self, table: BlockTable, num_blocks: int) -> None:
        """Blocks [num_full, num_blocks) of an open table are going to be computed: others may wait for them."""
        self._extend_keys(table, num_blocks)
        for key in table.keys[table.num_full : num_blocks]:
            self._pending[key] = self._pending.get(key, 0) + 1
        table.num_announced = num_blocks

    def retract(self, table: BlockTable) -> None:
        """The announced blocks that do not exist yet will not be computed by this table."""
        for i in range(table.num_full, table.num_announced):
            self._settle(table.keys[i])
        table.num_announced = table.num_full

    def publish(self, table: BlockTable) -> Block | None:
        """The contents of block num_full exist: from now on it may be shared.

        If another block already holds the same, that one stays known and this one stays private. Returns a block
        whose place in the index was taken; its content is no longer valid.
        """
        i = table.num_full
        self._extend_keys(table, i + 1)
        key, displaced = table.keys[i], None
        twin = self._find(table, i, table.tail)
        if twin is not None and twin.content is not None:
            table.tail = twin.content.serial
        else:
            displaced = self._blocks.get(key)
            self._last_serial += 1
            token_ids = self._token_ids(table, i)
            table.blocks[i].content = Content(key, self._last_serial, table.tail, token_ids, table.salt)
            table.tail = self._last_serial
            self._blocks[key] = table.blocks[i]
        if i < table.num_announced:
            self._settle(key)
        table.num_full = i + 1
        return displaced

    def remove(self, block: Block) -> None:
        """The block's content is about to be overwritten."""
        assert block.content is not None
        del self._blocks[block.content.key]

    def check_integrity(self, tables: Iterator[BlockTable]) -> None:
        """Raise AssertionError unless index, contents and announcements agree. `tables`: all that are open."""
        for key, block in self._blocks.items():
            assert block.content is not None and block.content.key == key, f"index of block {block.block_id} is stale"
            assert len(block.content.token_ids) == self._block_size
        pending: dict[int, int] = {}
        for table in tables:
            for key in table.keys[table.num_full : table.num_announced]:
                pending[key] = pending.get(key, 0) + 1
        assert pending == self._pending, "announcements disagree with the open tables"

    def _find(self, table: BlockTable, i: int, parent: int) -> Block | None:
        block = self._blocks.get(table.keys[i])
        if block is None or block.content is None:
            return None
        content = block.content
        same = content.parent == parent and content.salt == table.salt
        return block if same and content.token_ids == self._token_ids(table, i) else None

    def _token_ids(self, table: BlockTable, i: int) -> tuple[int, ...]:
        return tuple(table.token_ids[i * self._block_size : (i + 1) * self._block_size])

    def _extend_keys(self, table: BlockTable, num_blocks: int) -> None:
        keys = table.keys
        while len(keys) < num_blocks:
            parent = keys[-1] if keys else root_key(table.salt)
            keys.append(block_key(parent, self._token_ids(table, len(keys))))

    def _settle(self, key: int) -> None:
        if self._pending[key] == 1:
            del self._pending[key]
        else:
            self._pending[key] -= 1
