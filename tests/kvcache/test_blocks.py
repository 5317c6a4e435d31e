"""The pool: reference counts, order of reuse, and that misuse is noticed."""

import pytest

from mini_vllm.kvcache.blocks import Block, BlockPool, Content, FreeList, arrange


def content(serial: int) -> Content:
    return Content(key=serial, serial=serial, parent=0, token_ids=(1, 2), salt="")


def pool_of(num_blocks: int) -> tuple[BlockPool, list[int]]:
    evicted: list[int] = []
    return BlockPool(num_blocks, on_evict=lambda block: evicted.append(block.block_id)), evicted


def test_free_list_keeps_order_and_length() -> None:
    blocks, free = [Block(i) for i in range(4)], FreeList()
    free.push_back(blocks[0])
    free.push_back(blocks[1])
    free.push_front(blocks[2])
    free.push_back(blocks[3])
    assert [block.block_id for block in free] == [2, 0, 1, 3]
    free.remove(blocks[1])
    assert [free.pop_front().block_id for _ in range(len(free))] == [2, 0, 3]
    assert len(free) == 0


def test_free_list_refuses_a_double_free() -> None:
    free, block = FreeList(), Block(0)
    free.push_back(block)
    with pytest.raises(AssertionError, match="freed twice"):
        free.push_front(block)
    free.remove(block)
    with pytest.raises(AssertionError, match="not in the free list"):
        free.remove(block)


def test_empty_blocks_are_reused_before_cached_ones_and_those_by_age() -> None:
    pool, evicted = pool_of(4)
    blocks = [pool.take() for _ in range(4)]
    for i in (2, 0, 1):
        blocks[i].content = content(i + 1)
    for i in (2, 3, 0, 1):
        pool.drop(blocks[i])
        pool.check_integrity()
    assert (pool.num_free, pool.num_cached) == (4, 3)
    assert [pool.take().block_id for _ in range(4)] == [3, 2, 0, 1]
    assert evicted == [2, 0, 1]
    assert (pool.num_free, pool.num_cached) == (0, 0)


def test_a_block_is_free_when_its_last_holder_drops_it() -> None:
    pool, _ = pool_of(2)
    block = pool.take()
    block.content = content(1)
    pool.hold(block)
    pool.drop(block)
    assert pool.num_free == 1
    pool.drop(block)
    assert (pool.num_free, pool.num_cached) == (2, 1)
    pool.hold(block)
    assert (pool.num_free, pool.num_cached, block.ref_count) == (1, 0, 1)
    pool.drop(block)
    with pytest.raises(AssertionError, match="does not hold"):
        pool.drop(block)


def test_forgetting_a_free_block_makes_it_the_next_to_be_reused() -> None:
    pool, evicted = pool_of(3)
    blocks = [pool.take() for _ in range(3)]
    for i, block in enumerate(blocks):
        block.content = content(i + 1)
        pool.drop(block)
    pool.forget(blocks[1])
    pool.check_integrity()
    assert pool.num_cached == 2
    assert pool.take() is blocks[1]
    assert evicted == []


def test_integrity_check_sees_a_lost_block_and_a_wrong_count() -> None:
    pool, _ = pool_of(3)
    pool.take().ref_count = 0
    with pytest.raises(AssertionError, match="lost"):
        pool.check_integrity()
    pool, _ = pool_of(3)
    pool.num_cached = 1
    with pytest.raises(AssertionError, match="num_cached"):
        pool.check_integrity()


@pytest.mark.parametrize(
    ("ids", "place", "expected"),
    [
        ([], 0, []),
        ([7, 6, 5, 4], 0, [4, 5, 6, 7]),
        ([9, 8, 7, 6, 5, 4, 3], 2, [3, 8, 4, 5, 6, 7, 9]),  # 4 to 7 at places 4 to 7
        ([4, 5, 6, 7], 1, [4, 5, 6, 7]),  # nothing else fills places 1 to 3
        ([12, 2, 8, 9, 10, 11, 1], 8, [8, 9, 10, 11, 1, 2, 12]),
        ([4, 5, 6, 7, 0, 1, 2, 3], 3, [4, 0, 1, 2, 3, 5, 6, 7]),
        ([6], 3, [6]),
        ([7, 6], 1, [6, 7]),  # fewer than there are places before the next set's
        ([], 1, []),
    ],
)
def test_neighbours_come_to_lie_at_places_where_kernels_read_them_in_one_piece(
    ids: list[int], place: int, expected: list[int]
) -> None:
    assert [block.block_id for block in arrange([Block(i) for i in ids], place)] == expected
