import pytest
from bench.fakes import ScriptedClock, ScriptedSubject

from mini_vllm.bench.drive import Contest, Drive, Pace
from mini_vllm.bench.rows import Row
from mini_vllm.bench.workloads import SINGLE


@pytest.fixture
def clock():
    return ScriptedClock()


def empty(peer, weights="q4_1"):
    return Row(work="", weights=weights, peer=peer)


def make(clock, diary, label, rates, **more):
    return ScriptedSubject(label, rates, clock, diary, **more)


def run(clock, contests, **pace):
    drive = Drive(Pace(**{"least": 1, "most": 1, "seconds": 0.0, **pace}), clock)
    return list(drive.run(SINGLE, contests))


def test_ours_goes_before_every_peer_round_after_round(clock):
    diary = []
    ours = make(clock, diary, "A", [10, 20, 30, 40])
    contests = [
        Contest(make(clock, diary, "B", [1, 2]), [(ours, empty("llama.cpp"))]),
        Contest(make(clock, diary, "C", [5, 5]), [(ours, empty("openvino"))]),
    ]
    rows = run(clock, contests, least=2, most=2)
    assert diary == ["warm A", "warm B", "warm A", "warm C", "A", "B", "A", "C", "A", "B", "A", "C"]
    # A gave 10 and 30 before B, 20 and 40 before C
    assert [(row.work, row.peer, row.ours, row.theirs, row.ratio) for row in rows] == [
        ("single", "llama.cpp", 20, 1.5, 12.5),
        ("single", "openvino", 30, 5, 6.0),
    ]


def test_one_sample_of_a_peer_serves_several_of_our_forms(clock):
    diary = []
    small, full = make(clock, diary, "q4_1", [40]), make(clock, diary, "bf16", [20])
    peer = make(clock, diary, "B", [10])
    rows = run(clock, [Contest(peer, [(small, empty("vllm")), (full, empty("vllm", "bf16"))])])
    assert diary[-3:] == ["q4_1", "bf16", "B"]
    assert [(row.weights, row.ratio) for row in rows] == [("q4_1", 4.0), ("bf16", 2.0)]


def test_both_sides_of_a_pair_get_the_same_prompts_and_no_pair_those_of_another(clock):
    ours, peer = make(clock, [], "A", [1] * 3), make(clock, [], "B", [1] * 3)
    run(clock, [Contest(peer, [(ours, empty("vllm"))])], least=3, most=3)
    assert ours.seeds == peer.seeds
    assert len(set(ours.seeds)) == 3


def test_quick_work_gets_more_pairs_up_to_the_most(clock):
    ours, peer = make(clock, [], "A", [1] * 9), make(clock, [], "B", [1] * 9)
    rows = run(clock, [Contest(peer, [(ours, empty("vllm"))])], least=1, most=9, seconds=5.0)
    assert rows[0].pairs == 3  # 2 s a pair: goes on at 2 and 4 s, ends at 6 s
    ours, peer = make(clock, [], "A", [1] * 9), make(clock, [], "B", [1] * 9)
    assert run(clock, [Contest(peer, [(ours, empty("vllm"))])], least=1, most=2, seconds=99.0)[0].pairs == 2


def test_slow_work_gets_the_least(clock):
    ours, peer = make(clock, [], "A", [1] * 9, cost=50.0), make(clock, [], "B", [1] * 9)
    assert run(clock, [Contest(peer, [(ours, empty("vllm"))])], least=2, most=9, seconds=5.0)[0].pairs == 2


def test_a_run_may_insist_on_calm_pairs_up_to_the_most(clock):
    def pairs(foreign, insists):
        ours, peer = make(clock, [], "A", [1] * 9), make(clock, [], "B", [1] * 9, foreign=foreign)
        drive = Drive(Pace(least=2, most=5, seconds=0.0, insists=insists), clock)
        list(drive.run(SINGLE, [contest := Contest(peer, [(ours, empty("vllm"))])]))
        return len(contest.pairs[0])

    assert [pairs(0.5, False), pairs(0.1, True), pairs(0.5, True)] == [2, 2, 5]


def test_a_failing_peer_fails_its_row_and_no_other(clock):
    diary = []
    ours = make(clock, diary, "A", [1] * 9)
    broken = make(clock, diary, "B", [1], fails_at=1)
    sound = make(clock, diary, "C", [2])
    rows = run(clock, [Contest(broken, [(ours, empty("vllm"))]), Contest(sound, [(ours, empty("openvino"))])])
    assert (rows[0].ratio, rows[0].error) == (None, "B: it broke")
    assert (rows[1].ratio, rows[1].error) == (0.5, None)


def test_what_was_measured_before_a_failure_counts(clock):
    ours = make(clock, [], "A", [4, 4, 4])
    peer = make(clock, [], "B", [2, 2], fails_at=2)
    row = run(clock, [Contest(peer, [(ours, empty("vllm"))])], least=3, most=3)[0]
    assert (row.ratio, row.pairs) == (2.0, 1)


def test_at_the_deadline_what_has_not_begun_is_left_out_and_the_rest_keeps_its_pairs(clock):
    ours = make(clock, [], "A", [1] * 9)
    first, second = make(clock, [], "B", [1] * 9, cost=10.0), make(clock, [], "C", [1] * 9)
    contests = [Contest(first, [(ours, empty("vllm"))]), Contest(second, [(ours, empty("openvino"))])]
    rows = run(clock, contests, least=3, most=3, deadline=5.0)
    assert rows[0].pairs == 1
    assert rows[1].error == "left out: the time for the whole run was up"
    late = run(clock, contests, deadline=5.0)
    assert [row.error for row in late] == ["left out: the time for the whole run was up"] * 2
