"""The engine on its own thread, seen from asyncio."""

import asyncio
import gc
import itertools
import threading
import time

import pytest
from engine.parts import ScriptedExecutor, SlowExecutor, counting, eventually, make_engine

from mini_vllm.engine.client import MAX_PENDING, ThreadClient
from mini_vllm.errors import ContextLengthError, EngineBusyError, EngineDeadError, InvalidParameterError
from mini_vllm.types import SamplingParams


def requests_of(engine, prompt="ab", **params):
    return engine.frontend.prepare(prompt, SamplingParams(**{"temperature": 0.0, **params})).requests


def with_client(use, **options):
    """Run `use(engine, client)` in a loop of its own."""
    engine = make_engine(**options)
    client = ThreadClient(engine.core)
    try:
        asyncio.run(use(engine, client))
    finally:
        client.shutdown(timeout=5)
    engine.core.scheduler.check_integrity()


def test_a_submission_streams_its_tokens_in_order_and_ends():
    async def use(engine, client):
        deltas = [delta async for delta in client.submit(*requests_of(engine, max_tokens=40))]
        tokens = [token_id for delta in deltas for token_id in delta.token_ids]
        assert len(tokens) == 40 and [(b - a) % 10 for a, b in itertools.pairwise(tokens)] == [1] * 39
        assert [delta.finish_reason for delta in deltas] == [None] * (len(deltas) - 1) + ["length"]

    with_client(use)


def test_one_submission_of_several_requests_is_one_stream():
    async def use(engine, client):
        requests = requests_of(engine, max_tokens=7, n=5)
        stream = client.submit(*requests)
        await stream.accepted()
        counts = dict.fromkeys([request.request_id for request in requests], 0)
        async for delta in stream:
            counts[delta.request_id] += len(delta.token_ids)
        assert list(counts.values()) == [7] * 5

    with_client(use)


def test_a_refused_submission_raises_and_leaves_nothing_behind():
    async def use(engine, client):
        with pytest.raises(ContextLengthError):
            await client.submit(*requests_of(engine, "x" * 100, max_tokens=400)).accepted()
        stream = client.submit(*requests_of(engine, "x" * 100, max_tokens=400))
        with pytest.raises(ContextLengthError):
            await anext(stream)
        with pytest.raises(EngineBusyError):
            await client.submit(*requests_of(engine, n=9)).accepted()
        await eventually(lambda: client.snapshot().waiting + client.snapshot().running == 0)
        assert [d.finish_reason async for d in client.submit(*requests_of(engine, max_tokens=1))] == ["length"]

    with_client(use, num_blocks=8, max_waiting=4)


def test_an_id_in_use_is_refused_and_free_again_afterwards():
    async def use(engine, client):
        [request] = requests_of(engine, max_tokens=5)
        stream = client.submit(request)
        with pytest.raises(InvalidParameterError, match="in use"):
            client.submit(request)
        assert len([delta async for delta in stream]) == 5
        assert len([delta async for delta in client.submit(request)]) == 5

    with_client(use, executor=SlowExecutor())


def test_abort_ends_the_stream_with_reason_abort():
    async def use(engine, client):
        [request] = requests_of(engine, max_tokens=400)
        stream = client.submit(request)
        await anext(stream)
        client.abort(request.request_id)
        client.abort("nobody")
        reasons = [delta.finish_reason async for delta in stream]
        assert reasons[-1] == "abort" and len(reasons) < 200

    with_client(use, executor=SlowExecutor(seconds=0.01))


@pytest.mark.parametrize("way", ["aclose", "break", "cancel", "drop"])
def test_can_01_a_reader_that_leaves_frees_its_blocks_within_a_step(way):
    async def use(engine, client):
        stream = client.submit(*requests_of(engine, "a prompt of some blocks, to be seen", max_tokens=400))
        await anext(stream)
        assert client.snapshot().blocks_used > 0
        if way == "aclose":
            await stream.aclose()
            assert [delta async for delta in stream] == []
        elif way == "cancel":
            reader = asyncio.ensure_future(_read(stream))
            await asyncio.sleep(0.01)
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
        elif way == "break":
            async for _ in stream:
                break
        steps = client.snapshot().steps
        del stream
        gc.collect()
        await eventually(lambda: client.snapshot().running == 0)
        stats = client.snapshot()
        assert stats.blocks_used == 0 and stats.finished_abort == 1
        assert stats.steps - steps <= 4  # those that ran while the abort was on its way, and the one that obeyed it

    with_client(use, executor=SlowExecutor(seconds=0.01), enable_prefix_caching=False)


async def _read(stream):
    async for _ in stream:
        pass


@pytest.mark.slow
def test_can_06_200_streams_closed_at_random_times_leave_no_trace():
    async def one(engine, client, seconds):
        stream = client.submit(*requests_of(engine, "some prompt", max_tokens=300, n=1 + int(seconds * 1e6) % 2))
        task = asyncio.ensure_future(_read(stream))
        await asyncio.sleep(seconds)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def use(engine, client):
        for round_ in range(20):
            delays = [((i * 7919 + round_) % 200) / 200 * 0.1 for i in range(200)]
            await asyncio.gather(*(one(engine, client, seconds) for seconds in delays))
            await eventually(lambda: client.snapshot().running + client.snapshot().waiting == 0)
            assert client.snapshot().blocks_used == 0
        assert len([d async for d in client.submit(*requests_of(engine, max_tokens=9))]) == 9
        stats = client.snapshot()
        assert stats.accepted == stats.finished_abort + stats.finished_length

    with_client(use, num_blocks=300)


def test_a_slow_reader_gets_joined_deltas_and_loses_nothing():
    async def use(engine, client):
        requests = requests_of(engine, max_tokens=300, n=2, logprobs=0)
        stream = client.submit(*requests)
        await eventually(lambda: client.snapshot().finished_length == 2)
        await asyncio.sleep(0.01)
        deltas = [delta async for delta in stream]
        assert len(deltas) <= MAX_PENDING + 2
        for request in requests:
            mine = [delta for delta in deltas if delta.request_id == request.request_id]
            tokens = [token_id for delta in mine for token_id in delta.token_ids]
            assert len(tokens) == 300 and [(b - a) % 10 for a, b in itertools.pairwise(tokens)] == [1] * 299
            assert [entry.token_id for delta in mine for entry in delta.logprobs] == tokens
            assert [delta.finish_reason for delta in mine][-1] == "length"

    with_client(use)


def test_one_wake_up_per_step_however_many_streams(monkeypatch):
    async def use(engine, client):
        loop, wakes = asyncio.get_running_loop(), []
        original = loop.call_soon_threadsafe
        monkeypatch.setattr(loop, "call_soon_threadsafe", lambda *args: (wakes.append(1), original(*args))[1])
        streams = [client.submit(*requests_of(engine, max_tokens=20)) for _ in range(30)]
        await asyncio.gather(*(_read(stream) for stream in streams))
        stats = client.snapshot()
        assert stats.output_tokens == 600
        assert len(wakes) <= stats.steps + 30  # at most one per step, and one for each round of admissions

    with_client(use, executor=SlowExecutor())


def test_an_idle_engine_sleeps():
    async def use(engine, client):
        await _read(client.submit(*requests_of(engine, max_tokens=2)))
        await asyncio.sleep(0.02)
        steps, cpu = client.snapshot().steps, time.process_time()
        await asyncio.sleep(0.3)
        assert client.snapshot().steps == steps
        assert time.process_time() - cpu < 0.1

    with_client(use)


def test_a_failed_step_ends_the_streams_and_the_engine_goes_on():
    class Failing(ScriptedExecutor):
        def run(self, plan):
            if len(self.plans) == 5:
                self.plans.append(plan)
                raise ArithmeticError("no")
            return super().run(plan)

    async def use(engine, client):
        streams = [client.submit(*requests_of(engine, max_tokens=50)) for _ in range(3)]
        for stream in streams:
            last = [delta async for delta in stream][-1]
            assert last.finish_reason == "error" and "ArithmeticError: no" in last.error
        assert client.is_alive
        assert len([d async for d in client.submit(*requests_of(engine, max_tokens=9))]) == 9

    with_client(use, executor=Failing(counting))


def test_when_the_engine_dies_everybody_waiting_is_told():
    class Dying(ScriptedExecutor):
        def run(self, plan):
            if len(self.plans) == 3:
                raise ArithmeticError("the step failed")
            return super().run(plan)

        def reset(self):
            raise MemoryError("and so did the reset")

    async def use(engine, client):
        streams = [client.submit(*requests_of(engine, max_tokens=50)) for _ in range(9)]
        for stream in streams:
            with pytest.raises(EngineDeadError, match="and so did the reset"):
                await _read(stream)
        await eventually(lambda: not client.is_alive)
        with pytest.raises(EngineDeadError):
            client.submit(*requests_of(engine))

    with_client(use, executor=Dying(counting), max_num_seqs=4)


def test_shutdown_tells_unfinished_streams_and_ends_the_thread():
    async def use(engine, client):
        stream = client.submit(*requests_of(engine, max_tokens=400))
        await anext(stream)
        await asyncio.to_thread(client.shutdown)
        with pytest.raises(EngineDeadError, match="shut down"):
            await _read(stream)
        assert not client.is_alive
        client.abort("anything")
        client.shutdown()

    before = threading.active_count()
    with_client(use, executor=SlowExecutor())
    assert threading.active_count() <= before


def test_a_refused_submission_stays_refused_when_what_was_queued_of_it_ends_before_anybody_looks():
    async def use(engine, client):
        stream = client.submit(*requests_of(engine, n=2, max_tokens=4))
        time.sleep(0.1)  # the refusal and the end of the first request wait for this loop
        with pytest.raises(EngineBusyError):
            await anext(stream)
        await eventually(lambda: client.snapshot().finished_abort == 1)

    with_client(use, max_waiting=1)


def test_streams_of_two_asyncio_loops_share_the_engine():
    engine = make_engine(executor=SlowExecutor(seconds=0.001))
    client = ThreadClient(engine.core)
    found = {}

    async def use(name):
        deltas = [delta async for delta in client.submit(*requests_of(engine, name, max_tokens=30))]
        found[name] = sum(len(delta.token_ids) for delta in deltas)

    threads = [threading.Thread(target=lambda name=name: asyncio.run(use(name))) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=10)
    client.shutdown(timeout=5)
    assert found == {"one": 30, "two": 30}


def test_a_stream_whose_loop_is_closed_is_aborted():
    engine = make_engine(executor=SlowExecutor(seconds=0.01))
    client = ThreadClient(engine.core)
    kept = []

    async def leave():
        kept.append(client.submit(*requests_of(engine, max_tokens=400)))
        await anext(kept[0])

    asyncio.run(leave())
    asyncio.run(eventually(lambda: client.snapshot().running == 0))
    assert client.snapshot().finished_abort == 1
    client.shutdown(timeout=5)
