"""The pure parts: entries that leave with their text however it is cut, rates that fall to nothing, the API's page."""

import itertools

from hypothesis import given
from hypothesis import strategies as st
from server.rig import Rig

from mini_vllm.server.stats import StatsView
from mini_vllm.server.translate.logprobs import LogprobAligner
from mini_vllm.testing import ByteTokenizer
from mini_vllm.text import Detokenizer
from mini_vllm.types import EngineStats, StepStats, TextDelta, TokenLogprobs


def deltas_of(text: str, token_cuts: list[int], held: list[int]):
    """Byte tokens of a text in groups, their text coming `held` characters late, a final delta that brings the rest."""
    tokens = [TokenLogprobs(value, -1.0, 1) for value in text.encode()]
    groups = [tokens[a:b] for a, b in itertools.pairwise([0, *sorted(token_cuts), len(tokens)])]
    decoder = Detokenizer(ByteTokenizer())
    known, shown = "", 0
    for group, late in itertools.zip_longest(groups, held[: len(groups)], fillvalue=0):
        known += decoder.push([found.token_id for found in group or []])
        upto = max(shown, len(known) - late)
        yield TextDelta(request_id="r", text=known[shown:upto], logprobs=tuple(group or []))
        shown = upto
    yield TextDelta(request_id="r", text=known[shown:], finish_reason="length")


@given(
    text=st.text(max_size=20),
    cuts=st.lists(st.integers(0, 40), max_size=6),
    held=st.lists(st.integers(0, 5), max_size=7),
)
def test_entries_join_to_the_text_in_every_prefix_and_none_is_lost(text: str, cuts: list[int], held: list[int]) -> None:
    aligner = LogprobAligner(Detokenizer(ByteTokenizer()), keeps_end=True, shows_end=False)
    emitted, entries = "", []
    for delta in deltas_of(text, [min(cut, len(text.encode())) for cut in cuts], held):
        emitted += delta.text
        entries += aligner.push(delta)
        joined = "".join(entry.text for entry in entries)
        assert emitted.startswith(joined)
    assert joined == emitted == text
    assert [entry.token_id for entry in entries] == list(text.encode())
    assert all(text[entry.offset :].startswith(entry.text) for entry in entries)


class Counters:
    """An engine's counters and a clock, both turned by hand."""

    def __init__(self) -> None:
        self.now = 100.0
        self.stats = EngineStats()

    def view(self) -> StatsView:
        return StatsView(lambda: self.stats, lambda: self.now)


def test_rates_are_of_the_last_seconds_and_fall_to_zero() -> None:
    counters = Counters()
    view = counters.view()
    rates = []
    for second in range(20):
        counters.now = 100.0 + second
        counters.stats = EngineStats(output_tokens=min(second, 10) * 50)
        view.sample()
        rates.append(view.read().tokens_per_second)
    assert rates[:5] == [0.0, 50.0, 50.0, 50.0, 50.0]
    assert rates[10] == 50.0
    assert 0 < rates[12] < 50
    assert rates[16:] == [0.0] * 4
    assert view.read().uptime_seconds == 19.0


def test_batch_size_is_of_the_latest_step_and_zero_when_idle() -> None:
    step = StepStats(
        step_id=1, kind="decode", num_tokens=3, num_sequences=3, num_waiting=0, num_running=3, num_preempted=0,
        blocks_used=3, blocks_cached=0, blocks_total=9, prefix_hit_tokens=0,
    )  # fmt: skip
    counters = Counters()
    counters.stats = EngineStats(running=3, last_step=step)
    assert counters.view().read().batch_size == 3
    counters.stats = EngineStats(running=0, last_step=step)
    assert counters.view().read().batch_size == 0


def test_stats_have_the_fields_that_people_watch(rig: Rig) -> None:
    stats = rig.stats()
    assert stats["gpu_memory_total_mb"] > stats["gpu_memory_used_mb"] > 1
    assert 0 < stats["gpu_memory_pct"] < 100
    for name in ("active_requests", "queue_depth", "tokens_per_second", "batch_size", "total_tokens_generated"):
        assert stats[name] >= 0
    assert stats["kv_blocks_total"] == 512


def test_the_page_describes_what_is_served(rig: Rig) -> None:
    page = rig.http.get("/openapi.json").json()
    assert set(page["paths"]) == {
        "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/embeddings",
        "/v1/models", "/v1/models/{model}", "/health", "/stats", "/v1/messages", "/v1/messages/count_tokens",
        "/benchmark", "/benchmark/results", "/simulations/latest",
        "/metrics", "/metrics/prometheus", "/prometheus/metrics", "/trace", "/models", "/ready", "/version",
        "/generate", "/tokenize", "/tokenizer_info", "/detokenize", "/apply-template",
    }  # fmt: skip
    schemas = page["components"]["schemas"]
    operation = page["paths"]["/v1/chat/completions"]["post"]
    assert operation["requestBody"]["content"]["application/json"]["schema"] == {
        "$ref": "#/components/schemas/ChatRequest"
    }
    assert {"200", "400", "404", "413", "415", "429", "500", "503"} <= set(operation["responses"])
    references = set(_references(page))
    assert references and all(name in schemas for name in references)
    assert not any("422" in each["responses"] for path in page["paths"].values() for each in path.values())


def _references(node) -> list[str]:
    if isinstance(node, dict):
        found = [node["$ref"].rpartition("/")[2]] if isinstance(node.get("$ref"), str) else []
        return found + [name for value in node.values() for name in _references(value)]
    return [name for value in node for name in _references(value)] if isinstance(node, list) else []


def test_the_chat_page_is_one_file_that_needs_no_other(rig: Rig) -> None:
    response = rig.http.get("/")
    assert response.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in response.headers["content-security-policy"]
    assert "://" not in response.text
    assert len(response.text.splitlines()) <= 200
