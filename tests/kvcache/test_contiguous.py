"""The contiguous cache: one piece per sequence, gaps merged."""

import random

import pytest

from mini_vllm.kvcache import BlockTable, ContiguousCache, Grant, Refusal


def reserve(cache: ContiguousCache, max_len: int) -> tuple[BlockTable, Grant | Refusal]:
    table = cache.new_table([1], max_len=max_len)
    return table, cache.start(table, 1, reusable=0, promised=0)


def test_a_sequence_reserves_its_longest_length_at_once() -> None:
    cache = ContiguousCache(num_blocks=8, block_size=4)
    table, grant = reserve(cache, 17)
    assert grant == Grant((0, 1, 2, 3, 4), 0)
    assert [cache.extend(table, n) for n in (1, 17, 20)] == [(), (), ()]
    with pytest.raises(AssertionError, match="outgrew"):
        cache.extend(table, 21)
    assert reserve(cache, 13)[1] is Refusal.FULL
    assert reserve(cache, 12)[1] == Grant((5, 6, 7), 0)
    cache.check_integrity()
    assert cache.num_free == 0


def test_free_blocks_in_two_gaps_do_not_make_one_piece() -> None:
    cache = ContiguousCache(num_blocks=6, block_size=4)
    tables = [reserve(cache, 8)[0] for _ in range(3)]
    cache.release(tables[0])
    cache.release(tables[2])
    assert cache.num_free == 4
    assert reserve(cache, 12)[1] is Refusal.FULL
    cache.release(tables[1])
    cache.check_integrity()
    assert reserve(cache, 24)[1] == Grant((0, 1, 2, 3, 4, 5), 0)


def test_random_reservations_lose_nothing() -> None:
    rng, cache = random.Random(0), ContiguousCache(num_blocks=40, block_size=4)
    tables: list[BlockTable] = []
    refused = 0
    for _ in range(600):
        if tables and rng.random() < 0.45:
            cache.release(tables.pop(rng.randrange(len(tables))))
        else:
            table, grant = reserve(cache, rng.randrange(1, 40))
            refused += grant is Refusal.FULL
            tables += [table] if isinstance(grant, Grant) else []
        cache.check_integrity()
        assert cache.num_used == sum(len(table.blocks) for table in tables)
    assert refused > 10
    for table in tables:
        cache.release(table)
    assert cache.num_free == 40
