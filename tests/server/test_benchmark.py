"""/benchmark measures, /benchmark/results and /simulations/latest show what lies in their folders."""

import json
import os
from pathlib import Path

import pytest
from server.rig import MODEL, Rig, answer, error, serving

from mini_vllm.config import ServerConfig


def test_a_small_run_is_measured() -> None:
    with serving(delay=0.002) as rig:
        found = answer(rig.http.post("/benchmark", json={"prompt": "abc", "requests": 5, "max_new_tokens": 20}))
        assert (found["model"], found["requests"], found["prompt_tokens"], found["output_tokens"]) == (
            MODEL,
            5,
            15,
            100,
        )
        assert rig.executor.largest_batch == 5
        assert found["seconds"] >= 19 * 0.002 and found["tokens_per_second"] == pytest.approx(
            100 / found["seconds"], 1e-3
        )
        assert 2 <= found["ttft_ms"]["p50"] < found["latency_ms"]["p50"] <= 1e3 * found["seconds"]
        assert found["ms_per_token"]["mean"] >= 2
        one = answer(rig.http.post("/benchmark", json={"requests": 1, "max_new_tokens": 1}))
        assert one["ms_per_token"] is None and one["output_tokens"] == 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"requests": 0}, "requests"), ({"requests": 17}, "requests"), ({"max_new_tokens": 257}, "max_new_tokens"),
     ({"max_new_tokens": 0}, "max_new_tokens"), ({"prompt": 3}, "prompt")],
)  # fmt: skip
def test_runs_are_small(rig: Rig, fields: dict, param: str) -> None:
    refused = rig.http.post("/benchmark", json=fields)
    assert (refused.status_code, error(refused)["param"]) == (400, param)


@pytest.mark.parametrize(
    ("url", "folder"), [("/benchmark/results", "benchmarks/results"), ("/simulations/latest", "logs/simulations")]
)
def test_the_newest_files_of_a_folder(
    rig: Rig, url: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    missing = rig.http.get(url)
    assert missing.status_code == 404 and folder in error(missing)["message"]
    (tmp_path / folder).mkdir(parents=True)
    assert rig.http.get(url).status_code == 404
    for number in range(12):
        path = tmp_path / folder / f"run-{number}.json"
        path.write_text(json.dumps({"number": number}))
        os.utime(path, (1000 + number, 1000 + number))
    broken = tmp_path / folder / "broken.json"
    broken.write_text("{")
    os.utime(broken, (5000, 5000))
    (tmp_path / folder / "notes.txt").write_text("no JSON")
    found = answer(rig.http.get(url))
    assert found["folder"] == folder
    assert [(each["name"], each["content"]) for each in found["files"][:2]] == [
        ("run-11.json", {"number": 11}),
        ("run-10.json", {"number": 10}),
    ]
    assert len(found["files"]) == 9 and found["files"][0]["modified"] == 1011


def test_simulations_lie_where_out_dir_says(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"summary": 1}')
    with serving(server=ServerConfig(out_dir=str(tmp_path))) as rig:
        found = answer(rig.http.get("/simulations/latest"))
    assert found["folder"] == str(tmp_path) and found["files"][0]["content"] == {"summary": 1}
