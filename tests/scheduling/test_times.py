"""When a request arrived, started, gave its first token and ended, on the scheduler's clock. A step takes 1 second."""

from scheduling.driving import Rig, prompt_of

from mini_vllm.types import RequestMetrics, TokenDelta


def deltas_of(rig: Rig) -> dict[str, list[TokenDelta]]:
    """All deltas by request, driven to the end; each step is committed half a second after its plan."""
    found: dict[str, list[TokenDelta]] = {}
    while rig.scheduler.has_work():
        rig.time += 0.5
        plan = rig.scheduler.plan()
        rig.time += 0.5
        for delta in rig.scheduler.commit(plan, rig.executor.run(plan)):
            found.setdefault(delta.request_id, []).append(delta)
    return found


def test_times_are_those_of_the_steps() -> None:
    rig = Rig(prefill_chunk_size=16)
    rig.add("a", prompt_of(40), max_tokens=3, ignore_eos=True)
    deltas = deltas_of(rig)["a"]
    assert [delta.time for delta in deltas] == [3.0, 4.0, 5.0]
    first, second, last = (delta.metrics for delta in deltas)
    assert first == RequestMetrics(arrival=0.0, started=0.5, first_token=3.0, last_token=3.0, num_forwards=1)
    assert second is None
    assert last == RequestMetrics(
        arrival=0.0, started=0.5, first_token=3.0, last_token=5.0, finished=5.0, num_forwards=3
    )


def test_a_request_that_waits_for_a_row_starts_later() -> None:
    rig = Rig(max_num_seqs=1)
    rig.add("a", prompt_of(8), max_tokens=2, ignore_eos=True)
    rig.add("b", prompt_of(8, 1), max_tokens=1, arrival=0.25)
    found = deltas_of(rig)
    assert found["b"][-1].metrics == RequestMetrics(
        arrival=0.25, started=2.5, first_token=3.0, last_token=3.0, finished=3.0, num_forwards=1
    )


def test_an_abort_in_the_queue_never_started() -> None:
    rig = Rig(max_num_seqs=1)
    rig.add("a", prompt_of(8), max_tokens=4, ignore_eos=True)
    rig.add("b", prompt_of(8, 1))
    rig.step()
    rig.scheduler.abort("b")
    assert deltas_of(rig)["b"][-1].metrics == RequestMetrics(finished=1.5)


def test_preemptions_are_counted_and_the_start_stays() -> None:
    rig = Rig(num_blocks=4, block_size=4, enable_prefix_caching=False)
    rig.add("a", prompt_of(4), max_tokens=8, ignore_eos=True)
    rig.add("b", prompt_of(4, 1), max_tokens=8, ignore_eos=True)
    found = deltas_of(rig)
    last = found["b"][-1].metrics
    assert last is not None and last.num_preemptions > 0 and last.started == 0.5 and last.first_token == 1.0
    assert found["b"][-1].num_preemptions == last.num_preemptions == rig.scheduler.stats().preemptions
    assert found["a"][-1].num_preemptions == 0


def test_a_full_queue_counts_what_it_refuses() -> None:
    import pytest

    from mini_vllm.errors import EngineBusyError

    rig = Rig(max_waiting=1)
    rig.add("a", prompt_of(4))
    for _ in range(2):
        with pytest.raises(EngineBusyError):
            rig.add("b", prompt_of(4))
    stats = rig.scheduler.stats()
    assert (stats.accepted, stats.rejected, stats.waiting) == (1, 2, 1)
