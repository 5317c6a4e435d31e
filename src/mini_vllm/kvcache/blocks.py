"""Blocks of the KV cache as numbers: who holds which, and which is reused first. No tensors, no tokens' meaning.

This module must not know sequences, requests or the scheduler.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Content:
    """What a full block holds, for those who may share it: its tokens after exactly the chain `parent`."""

    key: int  # chained hash, see prefix.py
    serial: int  # unique among all contents ever published: the identity of this chain
    parent: int  # serial of the block before it; 0 for the first block of a sequence
    token_ids: tuple[int, ...]
    salt: str


class Block:
    """A place for the K and V of `block_size` consecutive tokens. It lies in the free list iff ref_count is 0."""

    __slots__ = ("block_id", "content", "next", "prev", "ref_count")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_count = 0  # block tables that hold it
        self.content: Content | None = None  # set while the prefix index leads here
        self.prev: Block | None = None
        self.next: Block | None = None


class FreeList:
    """A doubly linked list through the blocks, in order of reuse: front first. Every operation is O(1)."""

    def __init__(self) -> None:
        self._anchor = Block(-1)  # between the last and the first
        self._anchor.prev = self._anchor.next = self._anchor
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Block]:
        block = self._anchor.next
        while block is not None and block is not self._anchor:
            yield block
            block = block.next

    def push_front(self, block: Block) -> None:
        """The next block to be reused."""
        self._link(block, self._anchor, self._anchor.next)

    def push_back(self, block: Block) -> None:
        """The last block to be reused."""
        self._link(block, self._anchor.prev, self._anchor)

    def pop_front(self) -> Block:
        """Remove and return the first; the list must not be empty."""
        block = self._anchor.next
        assert block is not None and block is not self._anchor, "free list is empty"
        self.remove(block)
        return block

    def remove(self, block: Block) -> None:
        """Unlink a block that is in this list."""
        before, after = block.prev, block.next
        assert before is not None and after is not None, f"block {block.block_id} is not in the free list"
        before.next, after.prev = after, before
        block.prev = block.next = None
        self._length -= 1

    def _link(self, block: Block, before: Block | None, after: Block | None) -> None:
        assert block.next is None, f"block {block.block_id} is freed twice"
        assert before is not None and after is not None
        block.prev, block.next = before, after
        before.next = after.prev = block
        self._length += 1


class BlockPool:
    """All blocks: reference counts and order of reuse.

    Free blocks without content are reused first, then free blocks with content, least recently used first. A block is
    made when it is first taken, so that a large pool costs nothing until it is used.
    `on_evict(block)` is called while a block's content is still set, when a free block with content is reused.
    """

    def __init__(self, num_blocks: int, *, on_evict: Callable[[Block], None]) -> None:
        self.blocks: list[Block] = []  # those that were ever taken
        self.num_blocks = num_blocks
        self.num_cached = 0  # free blocks with content
        self.num_shared = 0  # blocks with more than one holder
        self.num_evicted = 0  # contents overwritten since the start
        self._free = FreeList()  # of those that were taken before: without content, then with
        self._on_evict = on_evict

    @property
    def num_free(self) -> int:
        """Blocks that `take` can give, those with content included."""
        return len(self._free) + self.num_blocks - len(self.blocks)

    def take(self) -> Block:
        """The first free block, emptied and held once. There must be one."""
        if len(self._free) == self.num_cached and len(self.blocks) < self.num_blocks:
            block = Block(len(self.blocks))
            self.blocks.append(block)
        else:
            block = self._free.pop_front()
        if block.content is not None:
            self.num_cached -= 1
            self.num_evicted += 1
            self._on_evict(block)
            block.content = None
        block.ref_count = 1
        return block

    def hold(self, block: Block) -> None:
        """One more holder of a block with content, free or not."""
        if block.ref_count == 0:
            self._free.remove(block)
            self.num_cached -= 1
        elif block.ref_count == 1:
            self.num_shared += 1
        block.ref_count += 1

    def drop(self, block: Block) -> None:
        """One holder less; the last makes it free. Drop a chain tail first, so that its tail is evicted first."""
        assert block.ref_count > 0, f"block {block.block_id} is dropped by one who does not hold it"
        block.ref_count -= 1
        if block.ref_count:
            self.num_shared -= block.ref_count == 1
            return
        if block.content is None:
            self._free.push_front(block)
        else:
            self._free.push_back(block)
            self.num_cached += 1

    def forget(self, block: Block) -> None:
        """Remove a block's content, because another block took its place in the index."""
        block.content = None
        if block.ref_count == 0:
            self.num_cached -= 1
            self._free.remove(block)
            self._free.push_front(block)

    def check_integrity(self) -> None:
        """Raise AssertionError unless every block is either free or held, and the counts agree."""
        free = list(self._free)
        assert len(free) == len(self._free), "free list length disagrees with its links"
        assert len({block.block_id for block in free}) == len(free), "a block lies twice in the free list"
        assert all(block.ref_count == 0 for block in free), "a held block lies in the free list"
        held = [block for block in self.blocks if block.ref_count > 0]
        assert len(free) + len(held) == len(self.blocks), "blocks got lost: neither free nor held"
        assert all(block.next is None and block.prev is None for block in held), "a held block is linked"
        assert sum(block.ref_count > 1 for block in held) == self.num_shared, "num_shared disagrees with the blocks"
        with_content = [block.content is not None for block in free]
        assert sum(with_content) == self.num_cached, "num_cached disagrees with the free list"
        assert with_content == sorted(with_content), "a block with content would be evicted before an empty one"


NEIGHBOURS = 4  # ids 4 n … 4 n + 3: kernels read them in one piece where they lie at places 4 m … 4 m + 3 of a table


def arrange(blocks: list[Block], place: int) -> list[Block]:
    """The same blocks, best ordered for the places of a table from `place` on: neighbours together, the rest around."""
    sets: dict[int, list[Block]] = {}
    for block in sorted(blocks, key=lambda block: block.block_id):
        sets.setdefault(block.block_id // NEIGHBOURS, []).append(block)
    whole = [each for each in sets.values() if len(each) == NEIGHBOURS]
    single = [block for each in sets.values() if len(each) < NEIGHBOURS for block in each]
    lead = min(-place % NEIGHBOURS, len(blocks))  # places before the first set's
    while len(single) < lead:
        single += whole.pop()
    return single[:lead] + [block for each in whole for block in each] + single[lead:]


class BlockTable:
    """One sequence's share of the cache. Made by `KVCache.new_table`, kept across preemption, opaque to its owner.

    Token i lies in blocks[i // block_size]. `token_ids` is the owner's live list; it only grows.

    | blocks                      | state                                                      |
    | --------------------------- | ---------------------------------------------------------- |
    | [0, num_full)               | contents exist, full, known to the prefix index            |
    | [num_full, num_announced)   | other sequences wait for these rather than compute them    |
    | [num_full, len(blocks))     | being filled                                               |
    """

    __slots__ = (
        "awaited",
        "blocks",
        "is_open",
        "keys",
        "max_len",
        "num_announced",
        "num_full",
        "salt",
        "tail",
        "token_ids",
    )

    def __init__(self, token_ids: list[int], *, max_len: int, salt: str) -> None:
        self.token_ids = token_ids
        self.max_len = max_len  # most tokens whose K and V this sequence will ever hold
        self.salt = salt
        self.keys: list[int] = []  # chained hashes of the full blocks, as far as they were asked for
        self.blocks: list[Block] = []
        self.is_open = False
        self.awaited: int | None = None  # key of the block for which `start` was last refused as pending
        self.num_full = 0
        self.num_announced = 0
        self.tail = 0  # serial of block num_full - 1

    def reset(self) -> None:
        """Back to holding nothing."""
        self.blocks = []
        self.is_open = False
        self.num_full = self.num_announced = self.tail = 0
