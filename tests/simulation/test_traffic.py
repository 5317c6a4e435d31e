"""Traffic from files and out of thin air."""

import json
import statistics
from itertools import pairwise
from pathlib import Path

import pytest

from mini_vllm.errors import InvalidParameterError
from mini_vllm.simulation import traffic
from mini_vllm.simulation.arrivals import token_ids
from mini_vllm.simulation.generators import KINDS, generate

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109

2023-11-16 18:15:48.0000000,879,55
"""


def write(path: Path, content: object) -> str:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def test_the_example_is_read_and_sorted_by_time() -> None:
    arrivals = traffic.load("examples/traffic.json")
    assert [arrival.at for arrival in arrivals] == sorted(arrival.at for arrival in arrivals)
    assert arrivals[2].messages == ({"role": "user", "content": "Name a planet."},) and arrivals[2].priority == -1
    assert arrivals[5].sampling == {"temperature": 0.8, "top_p": 0.95} and arrivals[5].key == "bob"


def test_every_field_of_an_entry(tmp_path: Path) -> None:
    entry = {"at_ms": 1500, "prompt": [5, 6, 7], "max_new_tokens": 9, "deadline_ms": 250, "seed": 4, "id": "x"}
    (arrival,) = traffic.load(write(tmp_path / "t.json", [entry]))
    assert (arrival.at, arrival.deadline, arrival.max_tokens, arrival.name) == (1.5, 0.25, 9, "x")
    assert token_ids(arrival.segments) == (5, 6, 7) and arrival.sampling == {"seed": 4}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ({}, "holds dict; it must be an array"),
        ([], "has no requests"),
        ([5], "entry 0 is int"),
        ([{"prompt": "a"}, {"prompt": "a", "temperture": 1}], "entry 1 has 'temperture'; known are at_ms"),
        ([{"at_ms": 5}], "entry 0 has no prompt"),
        ([{"prompt": "a", "at_ms": -5}], "at_ms is -5; it must be a number"),
        ([{"prompt": "a", "temperature": -1}], "entry 0: temperature is -1"),
        ([{"prompt": [1.5]}], "write a text or token ids"),
        ([{"prompt": "a", "messages": [{}]}], "has both prompt and messages"),
        ([{"messages": 5}], "messages is 5; write at least one"),
        ([{"messages": []}], r"messages is \[\]; write at least one"),
        (
            [{"prompt": "a", "max_new_tokens": 1.5}],
            "max_new_tokens is 1.5; it must be a whole number from 0 to 500,000",
        ),
        ([{"prompt": "a", "max_new_tokens": 1e11}], "max_new_tokens is 100000000000.0; it must be a whole number"),
        ([{"prompt": "a", "priority": 10**30}], "it must be a whole number from -500,000 to 500,000"),
        ([{"prompt": "a", "priority": 0.5}], "priority is 0.5; it must be a whole number"),
        ([{"prompt": "a", "deadline_ms": -1}], "deadline_ms is -1; it must be a number from 0"),
        ([{"prompt": "a", "id": None}], "id is None; it must be a text"),
        ([{"prompt": "a", "key": [1]}], r"key is \[1\]; it must be a text"),
        ([{"prompt": "a", "id": "x"}, {"prompt": "b", "id": "x"}], "entry 1 has the id 'x', as entry 0 has"),
        ('[{"prompt": "a", "at_ms": NaN}]', "at_ms is nan; it must be a number from 0"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, content: object, message: str) -> None:
    with pytest.raises(InvalidParameterError, match=message):
        traffic.load(write(tmp_path / "t.json", content))


def test_an_azure_trace_counts_from_its_first_row(tmp_path: Path) -> None:
    arrivals = traffic.load(write(tmp_path / "azure.csv", AZURE))
    assert [round(arrival.at, 4) for arrival in arrivals] == [0.0, 1.3194, 4.3146]
    assert [(arrival.num_prompt, arrival.max_tokens) for arrival in arrivals] == [(374, 44), (879, 55), (396, 109)]
    plain = traffic.load(
        write(tmp_path / "t.csv", "arrived_at,num_prefill_tokens,num_decode_tokens\n7.5,10,2\n8,20,3\n")
    )
    assert [arrival.at for arrival in plain] == [0.0, 0.5]


def test_a_csv_without_its_columns_or_with_a_bad_row(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameterError, match="has the columns a, b; it needs a time"):
        traffic.load(write(tmp_path / "t.csv", "a,b\n1,2\n"))
    with pytest.raises(InvalidParameterError, match="line 3"):
        traffic.load(write(tmp_path / "t.csv", "time,prompt,output\n1,2,3\nx,2,3\n"))
    with pytest.raises(InvalidParameterError, match="cannot be read: No such file or directory; name a"):
        traffic.load(str(tmp_path / "none.json"))


@pytest.mark.parametrize("kind", KINDS)
def test_generators_give_the_same_for_the_same_seed(kind: str) -> None:
    spec = f"{kind}:requests=60,rate=5,spread=0.5,seed="
    assert generate(spec + "1") == generate(spec + "1") != generate(spec + "2")
    arrivals = generate(spec + "1")
    assert len(arrivals) == 60
    assert [arrival.at for arrival in arrivals] == sorted(arrival.at for arrival in arrivals)
    ids = [set(token_ids(arrival.segments[-1:])) for arrival in arrivals]
    assert not ids[0] & ids[1], "prompts of one's own share nothing"


def test_rates_lengths_and_burstiness_are_as_asked() -> None:
    steady = generate("poisson:requests=4000,rate=8,prompt=300,output=50,spread=0.6,keys=3")
    assert 4000 / steady[-1].at == pytest.approx(8, rel=0.05)
    lengths = [arrival.num_prompt for arrival in steady]
    assert statistics.mean(lengths) == pytest.approx(300, rel=0.05)
    assert statistics.stdev(lengths) / 300 == pytest.approx(0.6, rel=0.1)
    assert {arrival.key for arrival in steady} == {"key 0", "key 1", "key 2"}

    def variation(kind: str) -> float:
        times = [arrival.at for arrival in generate(f"{kind}:requests=4000,rate=8,burst=4")]
        gaps = [b - a for a, b in pairwise(times)]
        return statistics.stdev(gaps) / statistics.mean(gaps)

    assert variation("poisson") == pytest.approx(1.0, rel=0.1)
    assert variation("bursty") == pytest.approx(4.0, rel=0.25)


def test_a_day_has_a_busy_and_a_quiet_half() -> None:
    arrivals = generate("diurnal:requests=4000,rate=10,period=100,depth=0.9")
    busy = sum(arrival.at % 100 < 50 for arrival in arrivals)
    assert busy / 4000 > 0.7


def test_prefixes_are_shared_and_conversations_hold_their_answers() -> None:
    prefixes = {arrival.segments[0] for arrival in generate("shared_prefix:requests=50,prefixes=3,shared=64")}
    assert len(prefixes) == 3 and {length for _, length in prefixes} == {64}
    turns = generate("multi_turn:requests=10,turns=5,rate=1,prompt=20,output=10,shared=30")
    talk = [arrival for arrival in turns if arrival.key == "user 1"]
    assert [arrival.num_prompt for arrival in talk] == [50, 80, 110, 140, 170]
    for before, after in pairwise(talk):
        assert after.segments[: len(before.segments)] == before.segments
        assert after.segments[len(before.segments)] == (before.answer_base, before.max_tokens)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("poisson:speed=3", "sets 'speed'; known are rate"),
        ("poisson:rate=fast", "rate is 'fast'; it must be a number"),
        ("poisson:rate=0", r"rate is 0; it must lie in \[1e-09, 1e\+09\]"),
        ("poisson:rate=inf", "rate is inf; it must lie in"),
        ("poisson:spread=nan", "spread is nan; it must lie in"),
        ("poisson:requests=1e3", "requests is '1e3'; it must be a whole number"),
        ("poisson:prompt=1000000000000", r"prompt is 1e\+12; it must lie in \[1, 500000\]"),
        ("bursty:burst=1e200", r"burst is 1e\+200; it must lie in"),
        ("multi_turn:think=inf", "think is inf; it must lie in"),
        ("diurnal:depth=2", r"depth is 2; it must lie in \[0, 1\]"),
    ],
)
def test_bad_settings_of_a_generator_are_named(spec: str, message: str) -> None:
    with pytest.raises(InvalidParameterError, match=message):
        generate(spec)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("1,inf,4", "line 2: prompt tokens are 'inf'; write a whole number from 0 to 500,000"),
        ("1,-5,4", "line 2: prompt tokens are '-5'"),
        ("1,4,1e30", "line 2: output tokens are '1e30'"),
        ("nan,4,4", "line 2: the time is 'nan'; write seconds, or a date such as"),
        ("yesterday,4,4", "line 2: the time is 'yesterday'"),
        ("1,4", "line 2 has 2 columns; it needs 3"),
    ],
)
def test_bad_rows_of_a_csv_file_are_named(tmp_path: Path, row: str, message: str) -> None:
    with pytest.raises(InvalidParameterError, match=message):
        traffic.load(write(tmp_path / "t.csv", f"TIMESTAMP,ContextTokens,GeneratedTokens\n{row}\n"))
