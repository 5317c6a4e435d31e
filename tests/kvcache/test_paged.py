"""The paged cache: growth, sharing, verification on hit, eviction, and waiting for a block in the making."""

from collections.abc import Iterator

import pytest

from mini_vllm.config import CacheConfig
from mini_vllm.kvcache import BlockTable, ContiguousCache, Grant, KVCache, PagedCache, Refusal
from mini_vllm.kvcache import prefix as prefix_module

made: list[KVCache] = []


@pytest.fixture(autouse=True)
def check_after() -> Iterator[None]:
    """Every cache that a test made is intact at its end."""
    made.clear()
    yield
    for cache in made:
        cache.check_integrity()


def cache_of(num_blocks: int = 8, *, block_size: int = 4, prefix_caching: bool = True) -> PagedCache:
    cache = PagedCache(num_blocks=num_blocks, block_size=block_size, prefix_caching=prefix_caching)
    made.append(cache)
    return cache


def table_of(cache: KVCache, token_ids: list[int], salt: str = "") -> BlockTable:
    return cache.new_table(token_ids, max_len=len(token_ids), salt=salt)


def start(cache: KVCache, table: BlockTable, *, reusable: int | None = None, promised: int = 0) -> Grant | Refusal:
    num_tokens = len(table.token_ids)
    return cache.start(table, num_tokens, reusable=num_tokens - 1 if reusable is None else reusable, promised=promised)


def compute(cache: KVCache, token_ids: list[int], salt: str = "") -> BlockTable:
    """A table whose tokens have all been computed."""
    table = table_of(cache, token_ids, salt)
    assert isinstance(start(cache, table), Grant)
    assert cache.extend(table, len(token_ids)) is not None
    cache.commit(table, len(token_ids))
    return table


def ids(table: BlockTable) -> list[int]:
    return [block.block_id for block in table.blocks]


def test_extend_adds_a_block_only_when_one_is_full() -> None:
    cache = cache_of(3)
    table = table_of(cache, list(range(12)))
    assert start(cache, table) == Grant((), 0)
    assert [cache.extend(table, n) for n in (1, 4, 5, 8, 9)] == [(0,), (), (1,), (), (2,)]
    assert cache.num_used == 3
    assert cache.extend(table, 13) is None, "the pool has no fourth block"
    assert ids(table) == [0, 1, 2], "a refused extension changes nothing"
    cache.release(table)
    assert cache.num_used == 0


def test_a_block_is_shared_only_once_its_contents_exist() -> None:
    cache = cache_of()
    first = table_of(cache, list(range(9)))
    start(cache, first)
    cache.extend(first, 9)
    assert start(cache, table_of(cache, list(range(9)))) is Refusal.PENDING
    cache.commit(first, 4)
    assert start(cache, table_of(cache, [0, 1, 2, 3, 99, 98])) == Grant((0,), 4), "its second block is another"
    assert start(cache, table_of(cache, list(range(9)))) is Refusal.PENDING, "one of its two blocks is still missing"
    cache.commit(first, 9)
    assert start(cache, table_of(cache, list(range(9)))) == Grant((0, 1), 8)


def test_who_waits_is_let_go_when_the_computing_sequence_leaves() -> None:
    cache = cache_of()
    first, second = table_of(cache, list(range(9))), table_of(cache, list(range(9)))
    start(cache, first)
    cache.extend(first, 9)
    assert start(cache, second) is Refusal.PENDING
    cache.commit(first, 4)
    cache.release(first)  # preempted or aborted half-way
    assert start(cache, second) == Grant((0,), 4)


def test_two_that_compute_the_same_block_share_one_afterwards() -> None:
    cache = cache_of()
    tables = [table_of(cache, list(range(8))) for _ in range(2)]
    for table in tables:
        assert isinstance(start(cache, table, reusable=0), Grant)  # they must not read the cache
        cache.extend(table, 8)
    cache.commit(tables[0], 8)
    cache.commit(tables[1], 8)
    assert start(cache, table_of(cache, [*range(8), 9])) == Grant(tuple(ids(tables[0])), 8)
    for table in tables:
        cache.release(table)
    assert (cache.num_free, cache.num_cached) == (6, 0), "the third holds the shared ones; the twins were not indexed"


def test_the_last_token_is_never_taken_from_the_cache() -> None:
    cache = cache_of()
    cache.release(compute(cache, list(range(8))))
    assert start(cache, table_of(cache, list(range(8)))) == Grant((0,), 4)


def test_another_salt_is_another_world() -> None:
    cache = cache_of()
    cache.release(compute(cache, list(range(8)), salt="a"))
    assert start(cache, table_of(cache, [*range(8), 1], salt="b")) == Grant((), 0)
    assert start(cache, table_of(cache, [*range(8), 1], salt="a")) == Grant((0, 1), 8)


def test_salts_whose_keys_collide_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_module, "root_key", lambda salt: 7)
    cache = cache_of()
    cache.release(compute(cache, list(range(8)), salt="a"))
    assert start(cache, table_of(cache, [*range(8), 1], salt="b")) == Grant((), 0)


def test_equal_block_after_another_prefix_is_no_hit() -> None:
    cache = cache_of()
    cache.release(compute(cache, [1, 1, 1, 1, 5, 6, 7, 8]))
    assert start(cache, table_of(cache, [2, 2, 2, 2, 5, 6, 7, 8, 9])) == Grant((), 0)
    assert start(cache, table_of(cache, [5, 6, 7, 8, 9])) == Grant((), 0)


def test_colliding_keys_are_found_out_by_token_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_module, "block_key", lambda parent, token_ids: 7)
    cache = cache_of()
    cache.release(compute(cache, [1, 1, 1, 1, 5]))
    assert start(cache, table_of(cache, [2, 2, 2, 2, 5])) == Grant((), 0)
    made[0].check_integrity()


def test_colliding_chains_are_found_out_by_their_parents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two different first blocks with one key: the second block of one must not serve the other."""
    monkeypatch.setattr(prefix_module, "block_key", lambda parent, token_ids: hash(token_ids[1:]))
    cache = cache_of()
    cache.release(compute(cache, [1, 0, 0, 0, 5, 6, 7, 8, 9]))
    cache.release(compute(cache, [2, 0, 0, 0, 9]))  # displaces the first block of the other chain
    assert start(cache, table_of(cache, [2, 0, 0, 0, 5, 6, 7, 8, 9])) == Grant((2,), 4)


def test_the_least_recently_used_chain_goes_first_and_its_tail_before_its_head() -> None:
    cache = cache_of(6)
    old, new = compute(cache, [1] * 12), compute(cache, [2] * 12)
    old_ids, new_ids = ids(old), ids(new)
    cache.release(old)
    cache.release(new)
    assert cache.num_cached == 6
    other = table_of(cache, [3] * 24)
    start(cache, other)
    taken = [cache.extend(other, num_tokens) for num_tokens in range(4, 28, 4)]
    assert taken == [(block_id,) for block_id in (*reversed(old_ids), *reversed(new_ids))]


def test_a_hit_makes_a_chain_recent() -> None:
    cache = cache_of(4)
    for token in (1, 2):
        cache.release(compute(cache, [token] * 8))
    table = table_of(cache, [*[1] * 8, 9])
    assert start(cache, table) == Grant((0, 1), 8)
    cache.release(table)
    other = table_of(cache, [3] * 8)
    start(cache, other)
    assert cache.extend(other, 8) == (2, 3), "the blocks of the chain that was not asked for"


def test_start_counts_what_is_promised_and_what_hits_save() -> None:
    cache = cache_of(4)
    held = compute(cache, list(range(8)))
    wanted = [*range(8), *range(50, 58)]
    assert start(cache, table_of(cache, wanted), promised=1) is Refusal.FULL
    assert start(cache, table_of(cache, wanted), promised=0) == Grant(tuple(ids(held)), 8)
    assert held.blocks[0].ref_count == 2


def test_idle_hits_are_not_counted_as_free_blocks() -> None:
    cache = cache_of(4)
    cache.release(compute(cache, list(range(8))))
    assert cache.num_free == 4
    assert start(cache, table_of(cache, [*range(8), *range(50, 62)])) is Refusal.FULL, "5 blocks, 2 of them hits, of 4"
    assert start(cache, table_of(cache, [*range(8), *range(50, 58)])) == Grant((0, 1), 8)


def test_sch_07_index_and_pool_agree_through_reuse() -> None:
    cache = cache_of(8)
    a, b = [100 + i for i in range(16)], [200 + i for i in range(32)]
    for token_ids, expected in ((a, 0), (b, 0), (a, 0), (b, 16)):
        table = table_of(cache, token_ids)
        grant = start(cache, table)
        assert isinstance(grant, Grant)
        for end in range(grant.num_cached + 1, len(token_ids) + 1):
            assert cache.extend(table, end) is not None
            cache.commit(table, end)
            cache.check_integrity()
        assert grant.num_cached == expected
        for i, block in enumerate(table.blocks):
            assert block.content is not None
            assert block.content.token_ids == tuple(token_ids[4 * i : 4 * i + 4])
        cache.release(table)
        cache.check_integrity()
    assert (cache.num_free, cache.num_cached) == (8, 8)


def test_without_prefix_caching_nothing_is_kept() -> None:
    cache = cache_of(prefix_caching=False)
    cache.release(compute(cache, list(range(8))))
    assert cache.num_cached == 0
    assert start(cache, table_of(cache, [*range(8), 1])) == Grant((), 0)


def test_release_twice_is_noticed() -> None:
    cache = cache_of()
    table = compute(cache, list(range(5)))
    cache.release(table)
    with pytest.raises(AssertionError, match="released twice"):
        cache.release(table)


def test_the_configuration_chooses_the_variant() -> None:
    paged = KVCache.from_config(CacheConfig(block_size=4), num_blocks=3)
    off = KVCache.from_config(CacheConfig(kv_cache=False), num_blocks=3)
    contiguous = KVCache.from_config(CacheConfig(cache_backend="contiguous"), num_blocks=3)
    assert (paged.retains, paged.shares_prefixes, paged.capacity) == (True, True, 12)
    assert (off.retains, off.shares_prefixes) == (False, False)
    assert isinstance(contiguous, ContiguousCache)
    assert (contiguous.retains, contiguous.shares_prefixes) == (True, False)


def test_blocks_taken_at_once_lie_side_by_side_in_the_table() -> None:
    cache = cache_of(16)
    first, second = compute(cache, [1] * 20), compute(cache, [2] * 36)
    assert ids(first) == [0, 1, 2, 3, 4]
    assert ids(second) == [8, 9, 10, 11, 5, 6, 7, 12, 13], "the one whole set, at places 0 to 3; then the rest"
    cache.release(second)
    third = table_of(cache, [3] * 16)
    start(cache, third)
    assert cache.extend(third, 16) == (12, 13, 14, 15), "two never used, and the tail of the least recent chain"


def test_extend_returns_the_ids_of_the_table_in_its_order_arranged_from_where_it_ends() -> None:
    cache = cache_of(28)
    table = table_of(cache, list(range(80)))
    start(cache, table)
    given = [cache.extend(table, 4)]
    compute(cache, [1] * 20)
    given += [cache.extend(table, num_tokens) for num_tokens in (12, 44, 80)]
    assert [block_id for added in given if added for block_id in added] == ids(table)
    assert given[:2] == [(0,), (6, 7)]
    assert given[2] == (12, 8, 9, 10, 11, 13, 14, 15), "place 3, then the set at places 4 to 7, though none is full"
