"""Whether a scheduler's queues, tables and counters agree. Called when idle and after every step of a test."""

from collections.abc import Mapping
from collections.abc import Sequence as Listed

from mini_vllm.kvcache import KVCache
from mini_vllm.scheduling.sequence import Sequence
from mini_vllm.types import EngineStats


def check(
    live: Mapping[int, Sequence],
    running: Listed[Sequence],
    waiting: Listed[Sequence],
    cache: KVCache,
    stats: EngineStats,
) -> None:
    """Raise AssertionError unless live, running and waiting sequences, their tables and the counters agree."""
    cache.check_integrity()
    assert {s.seq_id for s in running} | {s.seq_id for s in waiting} == set(live), "a sequence is lost"
    assert len(running) + len(waiting) == len(live), "a sequence runs and waits"
    assert list(running) == sorted(running, key=lambda sequence: sequence.rank), "running sequences are out of order"
    for sequence in running:
        assert sequence.is_running and sequence.table.is_open and sequence.is_known
        assert sequence.num_owed >= 1
    for sequence in waiting:
        assert not sequence.is_running and not sequence.table.is_open and sequence.num_computed == 0
    num_blocks_held = sum(len(sequence.table.blocks) for sequence in running)
    assert cache.num_used <= num_blocks_held, "blocks are held by nobody who runs"
    ended = stats.finished_stop + stats.finished_length + stats.finished_abort + stats.finished_error
    assert stats.accepted == ended + stats.running + stats.waiting, "accepted requests do not add up"
