import pytest
from bench.fakes import ScriptedClock, ScriptedSubject

from mini_vllm.bench.limits import Limits
from mini_vllm.bench.roofline import SMOLLM2, Weights, limit, step_bytes
from mini_vllm.bench.rows import Pair, Row, row_of_pairs
from mini_vllm.bench.shares import Gauged, with_share
from mini_vllm.bench.subject import Sample
from mini_vllm.bench.workloads import BATCH32, PREFILL_512, SINGLE

F32 = Weights("f32", "f32", "f32")
RUN = Limits(((1.0, 85e9), (1e9, 85e9)), {"f32": 234e9, "bf16": 468e9, "int8": 935e9})
STEP = step_bytes(1, 192, shape=SMOLLM2, weights=F32)


class Memory:
    """Gives its bandwidths in turn, and writes down of how many bytes it was asked."""

    def __init__(self, *rates, diary=None):
        self.rates, self.asked, self.diary = list(rates), [], diary

    def __call__(self, num_bytes):
        self.asked.append(num_bytes)
        if self.diary is not None:
            self.diary.append("memory")
        return self.rates.pop(0)


def gauged(memory, rates, diary=None):
    subject = ScriptedSubject("ours", rates, ScriptedClock(), diary if diary is not None else [])
    return Gauged(subject, SMOLLM2, F32, memory)


def shared(*samples, work=SINGLE):
    """The row of these samples of ours."""
    row = row_of_pairs(Row(work=work.name, weights="f32", peer="vllm"), [Pair(mine, Sample(1)) for mine in samples])
    return with_share(row, work, shape=SMOLLM2, weights=F32, limits=RUN)


def test_memory_is_read_just_before_and_just_after_over_the_bytes_of_a_step():
    diary = []
    memory = Memory(52e9, 54e9, diary=diary)
    ours = gauged(memory, [90.0], diary)
    ours.warm(SINGLE, seed=1)
    assert ours.measure(SINGLE, seed=1) == Sample(90.0, 0.0, (52e9, 54e9))
    assert diary == ["warm ours", "memory", "ours", "memory"]
    # 134,479,872 weights and 192 tokens of K and V in float32
    assert memory.asked == [STEP, STEP] and STEP == 4 * 134_479_872 + 192 * 46_080
    assert ours.label == "ours"


def test_a_batch_reads_the_history_of_all_its_streams():
    memory = Memory(50e9, 50e9)
    gauged(memory, [300.0]).measure(BATCH32, seed=1)
    assert memory.asked == [4 * 134_479_872 + 32 * 192 * 46_080] * 2


def test_a_prompt_is_bound_by_arithmetic_and_nothing_is_read_beside_it():
    ours = gauged(Memory(), [800.0])
    sample = ours.measure(PREFILL_512, seed=1)
    assert sample == Sample(800.0, 0.0)
    row = shared(sample, work=PREFILL_512)
    assert row.limit_share == 800 / limit(PREFILL_512, SMOLLM2, F32, RUN) and row.bandwidth is None


def test_a_share_is_the_median_over_pairs_each_at_its_own_bandwidth():
    # a step at 52e9 and at 85e9 bytes per second: 95.1 and 155.4 tokens per second at most
    row = shared(Sample(90.0, None, (52e9, 52e9)), Sample(140.0, None, (84e9, 86e9)), Sample(85.0, None, (52e9, 52e9)))
    assert row.limit_share == pytest.approx(140 * STEP / 85e9)
    assert [90 * STEP / 52e9 > row.limit_share > 85 * STEP / 52e9, row.bandwidth] == [True, pytest.approx(52)]


def test_between_two_bandwidths_that_are_close_the_mean_counts():
    assert shared(Sample(90.0, None, (50e9, 54e9))).limit_share == pytest.approx(90 * STEP / 52e9)


def test_a_sample_during_which_memory_changed_counts_only_without_a_steadier_one():
    steady, changed = Sample(90.0, None, (52e9, 52e9)), Sample(110.0, None, (52e9, 85e9))
    assert shared(changed, steady, changed).limit_share == pytest.approx(90 * STEP / 52e9)
    assert shared(changed).limit_share == pytest.approx(110 * STEP / 68.5e9)
    assert shared(changed).bandwidth == pytest.approx(68.5)


def test_a_disturbed_pair_gives_no_share_while_there_are_calm_ones():
    row = shared(Sample(90.0, 0.0, (52e9, 52e9)), Sample(20.0, 0.6, (52e9, 52e9)), Sample(20.0, 0.6, (52e9, 52e9)))
    assert row.limit_share == pytest.approx(90 * STEP / 52e9)


def test_without_a_reading_the_bandwidth_of_the_run_counts():
    assert gauged(Memory(None, 52e9), [90.0]).measure(SINGLE, seed=1).bandwidths == (52e9,)
    sample = gauged(Memory(None, None), [90.0]).measure(SINGLE, seed=1)
    assert sample.bandwidths == ()
    row = shared(sample)
    assert (row.limit_share, row.bandwidth) == (pytest.approx(90 * STEP / 85e9), None)
    assert with_share(Row(work="single", weights="f32", peer="vllm"), SINGLE, shape=SMOLLM2, weights=F32,
                      limits=RUN).limit_share is None  # fmt: skip


def test_the_peaks_of_the_run_bound_a_step_that_memory_does_not():
    work = BATCH32
    slow, fast = (shared(Sample(300.0, None, (rate, rate)), work=work).limit_share for rate in (20e9, 900e9))
    assert slow == pytest.approx(300 / limit(work, SMOLLM2, F32, RUN.with_bandwidth(20e9)))
    assert fast == pytest.approx(300 / limit(work, SMOLLM2, F32, RUN.with_bandwidth(1e15)))
