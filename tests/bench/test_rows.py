import pytest

from mini_vllm.bench.rows import Pair, Row, failed, hardest, row_of_pairs
from mini_vllm.bench.subject import Sample
from mini_vllm.bench.targets import goal, verdict

EMPTY = Row(work="single", weights="q4_1", peer="llama.cpp")


def pair(ours, theirs, foreign=0.0):
    return Pair(Sample(ours, foreign), Sample(theirs, 0.0))


def test_the_ratio_is_the_median_of_the_pairs_not_the_ratio_of_the_medians():
    row = row_of_pairs(EMPTY, [pair(10, 10), pair(30, 10), pair(40, 20)])
    assert (row.ours, row.theirs, row.ratio) == (30, 10, 2.0)
    assert row.spread == (1.0, 3.0)
    assert row.pairs == 3


def test_where_less_is_better_a_ratio_above_one_still_means_ours():
    row = row_of_pairs(EMPTY, [pair(0.5, 1.0), pair(0.5, 2.0)], lower_is_better=True)
    assert row.ratio == 3.0
    assert row.spread == (2.0, 4.0)


def test_disturbed_pairs_are_left_out_while_there_are_calm_ones():
    row = row_of_pairs(EMPTY, [pair(10, 10, 0.1), pair(90, 10, 0.6)])
    assert (row.ratio, row.pairs, row.foreign) == (1.0, 1, 0.1)
    row = row_of_pairs(EMPTY, [pair(10, 10, 0.5), pair(30, 10, 0.6)])
    assert (row.ratio, row.pairs, row.foreign) == (2.0, 2, 0.6)


def test_the_samples_that_count_stay_with_the_row_until_it_is_written():
    row = row_of_pairs(EMPTY, [pair(10, 10, 0.1), pair(90, 10, 0.6)])
    assert row.samples == (Sample(10, 0.1),)
    assert failed(EMPTY, "no", ours=[Sample(3.0)]).samples == (Sample(3.0),)
    assert "samples" not in row.as_json()


def test_an_unknown_load_is_no_reason_to_leave_a_pair_out():
    row = row_of_pairs(EMPTY, [Pair(Sample(4.0), Sample(2.0))])
    assert (row.ratio, row.foreign) == (2.0, None)


def test_a_peer_that_did_nothing_is_a_failed_row():
    row = row_of_pairs(EMPTY, [pair(1, 0), pair(3, 1)])
    assert (row.ours, row.ratio, row.error) == (2, None, "a measured rate is 0, so there is no ratio")


def test_a_failed_row_has_an_error_no_ratio_and_our_figure_if_known():
    row = failed(EMPTY, "not\n installed", ours=[Sample(3.0), Sample(5.0)])
    assert row.as_json() == {
        "work": "single", "weights": "q4_1", "peer": "llama.cpp", "ours": 4.0, "theirs": None, "ratio": None,
        "spread": None, "pairs": 0, "unit": "tok/s", "limit_share": None, "bandwidth": None, "foreign": None,
        "detail": "",
        "error": "not installed",
    }  # fmt: skip
    assert failed(row_of_pairs(EMPTY, [pair(1, 1)]), "later").ratio is None


def test_rows_survive_the_journey_through_json():
    row = row_of_pairs(EMPTY, [pair(10, 10), pair(30, 10)])
    assert Row.from_json(row.as_json()) == row
    assert Row.from_json({"work": "single", "weights": "bf16", "peer": "vllm", "newer": 1}).ratio is None


def test_of_a_peer_in_several_forms_the_best_one_counts():
    slow = row_of_pairs(Row(work="single", weights="q4_1", peer="transformers", detail="f32"), [pair(30, 1)])
    fast = row_of_pairs(Row(work="single", weights="q4_1", peer="transformers", detail="bf16"), [pair(30, 2)])
    broken = failed(slow, "no")
    other = row_of_pairs(EMPTY, [pair(1, 1)])
    assert hardest([slow, fast, broken, other]) == [fast, other]
    assert hardest([broken, fast]) == [fast]
    assert hardest([broken]) == [broken]


def test_cases_of_our_own_rows_are_kept_apart():
    rows = [
        row_of_pairs(Row(work="history_2000", weights="q4_1", peer="self", detail=f"{n}"), [pair(1, 1)]) for n in (1, 2)
    ]
    assert hardest(rows) == rows


@pytest.mark.parametrize(
    ("ratio", "limit_share", "expected"),
    [
        (4.5, 0.1, "target 4.00"),
        (3.0, 0.1, "floor 3.00"),
        (2.9, 0.85, "limit"),
        (2.9, 0.84, "missed 3.00"),
        (None, None, "missed 3.00"),
    ],
)
def test_verdicts(ratio, limit_share, expected):
    row = Row(work="single", weights="q4_1", peer="llama.cpp", ratio=ratio, limit_share=limit_share)
    assert verdict(row) == expected


def test_goals_follow_the_format_and_the_peer():
    def of(work, weights, peer):
        return goal(Row(work=work, weights=weights, peer=peer))

    assert of("single", "4bit", "openvino") == (1.7, 2.2)
    assert of("batch32", "q4_1", "llama.cpp") == (1.7, 2.5)
    assert of("batch8", "q4_1", "transformers") == (5.0, 8.0)
    assert of("batch8", "f32", "transformers") == (1.0, 1.2)
    assert of("prefill_2048", "8bit", "ctranslate2") == (1.1, 1.8)
    assert of("single", "f16", "llama.cpp") is None
    assert of("neighbours", "q4_1", "self") is None
    assert verdict(Row(work="single", weights="f16", peer="llama.cpp", ratio=9.0)) == ""
