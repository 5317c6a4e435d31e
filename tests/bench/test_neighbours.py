"""`mini-vllm bench neighbours` with the real engine and small loads: its record is what it prints."""

import json

from mini_vllm.bench import compare, self_rows, subject
from mini_vllm.bench.workloads import Work
from mini_vllm.cli.app import main

DETAILS = [
    "32 streams beside 1 spinning process, against quiet",
    "32 streams beside 3 spinning processes, against quiet",
    "1 stream beside 1 spinning process, against quiet",
    "1 stream beside 3 spinning processes, against quiet",
    "32 streams, quiet, against a plain static split",
    "1 stream, quiet, against a plain static split",
]


def test_the_record_is_written_where_json_says(default_model, tmp_path, monkeypatch, capsys):
    small = {1: Work("neighbours", "decode", 1, 8, 4), 32: Work("neighbours", "output", 32, 8, 4)}
    monkeypatch.setattr(self_rows, "STREAMS", small)
    monkeypatch.setattr(subject, "REST_SECONDS", 0.0)
    monkeypatch.setattr(compare, "_raise_priority", lambda: 0)
    path = tmp_path / "new" / "record.json"
    assert main(["bench", "neighbours", "--quick", "--threads", "1", "--json", str(path)]) == 0
    printed = capsys.readouterr().out
    record = json.loads(path.read_text())
    assert (record["machine"]["mode"], record["machine"]["threads"]) == ("quick", 1)
    assert [row["detail"] for row in record["ratios"]] == DETAILS
    # A pair that others disturbed counts only where there is no better one.
    assert all(1 <= row["pairs"] <= 2 and row["ours"] > 0 and row["theirs"] > 0 for row in record["ratios"])
    assert all(row["ratio"] > 0 and row["work"] == "neighbours" for row in record["ratios"])
    assert main(["bench", "show", str(path)]) == 0
    assert capsys.readouterr().out == printed and DETAILS[0] in printed
