import json

import pytest

from mini_vllm.bench import report
from mini_vllm.bench.compare import write_record
from mini_vllm.bench.rows import Pair, Row, failed, row_of_pairs
from mini_vllm.bench.subject import Sample
from mini_vllm.bench.targets import verdict

RECORDED = json.loads("""{
 "machine": {"cpu": "Some Processor", "cores": 2, "limits": {"peak_GOPs": {"f32": 234, "int8": 935}}},
 "ratios": [
  {"work": "prefill_512", "weights": "f32", "peer": "vllm", "ours": 900, "theirs": 1000, "ratio": 0.9,
   "spread": [0.85, 0.95], "pairs": 3, "unit": "tok/s", "limit_share": 0.8, "foreign": 0.02, "detail": "vllm in f32"},
  {"work": "single", "weights": "4bit", "peer": "onnxruntime", "ours": 300.4, "theirs": null, "ratio": null,
   "limit_share": 0.7, "foreign": null, "error": "not installed | run make peers"},
  {"work": "single", "weights": "q4_1", "peer": "llama.cpp", "ours": 300, "theirs": 61.5, "ratio": 4.88,
   "spread": [4.88, 4.88], "pairs": 1, "unit": "tok/s", "limit_share": 0.7, "foreign": 0.3, "detail": ""},
  {"work": "start", "weights": "q4_1", "peer": "llama.cpp", "ours": 0.5, "theirs": 0.25, "ratio": 0.5, "pairs": 1,
   "unit": "s", "limit_share": null, "foreign": 0.0, "detail": ""}
 ]
}""")

TABLE = """\
cpu: Some Processor
cores: 2
limits: peak_GOPs f32 234, int8 935

| work        | weights | against     |      ours |     theirs |  ratio |    spread | of limit | foreign | goal        | note                           |
| ----------- | ------- | ----------- | --------- | ---------- | ------ | --------- | -------- | ------- | ----------- | ------------------------------ |
| single      | q4_1    | llama.cpp   | 300 tok/s | 61.5 tok/s |   4.88 |           |      70% |     30% | target 4.00 |                                |
| single      | 4bit    | onnxruntime | 300 tok/s |          - | failed |           |      70% |       - | missed 1.70 | not installed / run make peers |
| prefill_512 | f32     | vllm        | 900 tok/s | 1000 tok/s |   0.90 | 0.85–0.95 |      80% |      2% | limit       | vllm in f32                    |
| start       | q4_1    | llama.cpp   |   0.500 s |    0.250 s |   0.50 |           |        - |      0% | floor 0.50  |                                |
"""  # noqa: E501


def test_a_recorded_run_renders_as_a_table():
    assert report.render(RECORDED) == TABLE


def test_a_record_is_written_one_row_a_line_and_read_back(tmp_path):
    path = tmp_path / "new" / "record.json"
    write_record(RECORDED, path)
    assert json.loads(path.read_text()) == RECORDED
    assert sum(line.strip().startswith('{"work"') for line in path.read_text().splitlines()) == 4


def test_rows_come_in_the_order_of_the_works_then_weights_then_peers():
    given = [
        Row(work="neighbours", weights="q4_1", peer="self"),
        failed(Row(work="single", weights="bf16", peer="vllm"), "no"),
        row_of_pairs(Row(work="single", weights="bf16", peer="openvino"), [Pair(Sample(1), Sample(1))]),
        Row(work="single", weights="q8_0", peer="llama.cpp"),
    ]
    assert report.sort_rows(given) == [given[3], given[2], given[1], given[0]]


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [(0.2, 0.3, "target 1.00"), (0.5, 0.3, "floor 0.50"), (0.9, 0.3, "floor 1.0 s"), (1.1, 0.3, "missed 0.50")],
)
def test_a_start_within_a_second_is_soon_enough(ours, theirs, expected):
    row = Row(work="start", weights="q4_1", peer="llama.cpp", ours=ours, theirs=theirs, ratio=theirs / ours)
    assert verdict(row) == expected
