"""What measures the server: its client counts right, its figures are judged right, and a small run goes through."""

import asyncio
import json

import httpx
import pytest

from mini_vllm.bench.figures import Figure, render, table, write_record
from mini_vllm.bench.http_client import Connection, RequestFailed
from mini_vllm.bench.served import Served, Setup
from mini_vllm.bench.surface import Effort, Surface
from mini_vllm.bench.surface_loads import COMPLETIONS, STREAM, percentile, stream_chats
from mini_vllm.errors import ConfigError, MiniVLLMError
from mini_vllm.testing.instant import InstantExecutor
from mini_vllm.types import Chunk, Outputs, StepPlan

TINY = Effort(
    stream_tokens=5,
    filling_tokens=5,
    num_requests=320,
    health_seconds=0.5,
    health_streams=2,
    rounds=1,
    first_rounds=1,
    streams=(1, 8),
    model_tokens={1: 4, 2: 3},
)


def ask(url, *requests):
    async def run():
        connection = await Connection.open(url)
        try:
            return [await connection.ask(*request) for request in requests]
        finally:
            connection.close()

    return asyncio.run(run())


@pytest.fixture(scope="module")
def served():
    with Served(Setup(options={"max_num_seqs": 8})) as server:
        yield server


def test_the_client_counts_what_the_server_says(served):
    whole = {"prompt": "a", "max_tokens": 7, "ignore_eos": True}
    answers = ask(
        served.url,
        (COMPLETIONS, whole),
        (COMPLETIONS, {**whole, **STREAM}),
        ("/health",),
        (COMPLETIONS, {**whole, **STREAM, "max_tokens": 300}),
    )
    assert [answer.status for answer in answers] == [200] * 4
    assert [answers[i].num_tokens() for i in (0, 1, 3)] == [7, 7, 300]
    assert 2 <= answers[1].num_events <= 8 and answers[0].num_events == answers[2].num_events == 0
    assert all(answer.asked < answer.first <= answer.last for answer in answers)
    with pytest.raises(RequestFailed, match="without usage"):
        answers[2].num_tokens()


def test_what_fails_says_so(served):
    with pytest.raises(RequestFailed, match=r"answered with 400.*n is 0"):
        ask(served.url, (COMPLETIONS, {"prompt": "a", "n": 0}))
    with pytest.raises(RequestFailed, match="404"):
        ask(served.url, ("/nowhere",))


def test_a_server_says_what_it_has_used(served):
    before = served.usage()
    ask(served.url, *[(COMPLETIONS, {"prompt": "a", "max_tokens": 50, **STREAM})] * 20)
    after = served.usage()
    assert 0 < after.cpu_seconds - before.cpu_seconds < 10
    assert 20e6 < after.memory_bytes < 2e9
    assert served.tree_seconds() is None or served.tree_seconds() > 0


def test_256_streams_at_once_are_all_complete():
    with Served(Setup(options={"max_num_seqs": 64, "max_waiting": 300})) as server:
        cost = asyncio.run(stream_chats(server, 256, 30))
    assert cost.num_tokens == 256 * 30 and cost.num_events <= 256 * 32
    assert 0 < cost.micros_per_token < 1e5 and cost.seconds > 0


def test_a_server_that_does_not_start_says_why():
    with pytest.raises(MiniVLLMError, match=r"did not start: .*nowhere"):
        Served(Setup(model="/nowhere/at/all"))


def test_an_engine_at_will_says_its_words_in_turn_at_its_pace():
    waited = []
    executor = InstantExecutor([5, 6, 7], step_seconds=0.5, clock=lambda: sum(waited), sleep=waited.append)
    chunk = Chunk(1, 4, (9,), 0, (), Outputs.LAST, samples=True)
    silent = Chunk(2, 0, (9, 9), 0, (), Outputs.NONE, samples=False)
    results = [executor.run(StepPlan(step, (chunk, silent))) for step in range(3)]
    assert [[(out.seq_id, out.token_ids) for out in result.outputs] for result in results] == [[(1, (7,))]] * 3
    assert waited == [0.5, 0.5, 0.5] and executor.progress() == 3


def test_a_small_run_measures_every_part(tmp_path):
    figures = list(Surface(TINY).run())
    whats = {figure.what for figure in figures}
    assert len(whats) == 6 and len(figures) == 8 + 1 + 2 + 6 + 2
    assert all(figure.value > 0 for figure in figures if "memory" not in figure.what and "above" not in figure.what)
    record = {"machine": {"cores": 2}, "figures": [figure.as_json() for figure in figures]}
    write_record(record, tmp_path / "new" / "record.json")
    again = json.loads((tmp_path / "new" / "record.json").read_text())
    assert render(again) == render(record) and render(record).startswith("cores: 2\n\n| what")


class Asked(Surface):
    """Asks the real servers how many threads compute, and measures nothing."""

    async def _compare(self, servers):
        for server in servers.values():
            async with httpx.AsyncClient() as client:
                self.threads.append((await client.get(f"{server.url}/stats")).json()["threads"])
        return []


def test_the_real_model_computes_on_the_threads_asked_for():
    surface = Asked(TINY, threads=1)
    surface.threads = []
    assert list(surface.run(["model"])) == [] and surface.threads == [1, 1]


def test_parts_that_do_not_exist_are_refused():
    with pytest.raises(ConfigError, match="cost, memory, health, model"):
        list(Surface(TINY).run(["speed"]))


def test_goals_are_upper_or_lower_limits():
    most = Figure(what="time", value=5.0, unit="ms", goal=5.0)
    least = Figure(what="rate", value=0.899, unit="", goal=0.9, at_least=True)
    free = Figure(what="other", value=1234.5, unit="MiB")
    assert (most.is_met, least.is_met, free.is_met) == (True, False, None)
    lines = table([most, least, free]).splitlines()
    assert lines[0].replace(" ", "") == "|what|form|load|figure|goal|met|note|"
    assert [cell.strip() for cell in lines[2].split("|")][4:7] == ["5.00 ms", "≤ 5", "yes"]
    assert [cell.strip() for cell in lines[3].split("|")][4:7] == ["0.90", "≥ 0.9", "NO"]
    assert len({len(line) for line in lines}) == 1


def test_percentiles():
    assert percentile(range(1001), 0.99) == 990.0
