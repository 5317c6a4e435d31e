"""Executors on a real (random) model: loading, and the equivalences, to the last bit on the native path."""

import numpy as np
import pytest
from quality.requantised import QUANTISED, Requantised
from runner.tiny import VOCAB, TinyCheckpoint
from runner.toy import Driver

from mini_vllm import runner
from mini_vllm.config import EngineConfig
from mini_vllm.errors import ConfigError
from mini_vllm.runner.inputs import InputBuilder
from mini_vllm.runner.loading import choose_executor
from mini_vllm.types import Admission, Chunk, Outputs, SamplingParams, StepPlan

PROMPT = np.random.default_rng(3).integers(0, VOCAB, 45).tolist()
RICH = {
    "temperature": 1.3, "top_p": 0.95, "repetition_penalty": 1.1, "frequency_penalty": 0.2, "logprobs": 3,
    "prompt_logprobs": 2, "max_tokens": 64,
}  # fmt: skip


def load(form="f32", **options):
    options = {"model": "tiny", "executor": "native", "num_blocks": 64, "max_num_seqs": 8, **options}
    checkpoint = Requantised(TinyCheckpoint("f32"), form) if form in QUANTISED else TinyCheckpoint(form)
    return runner.load_executor(EngineConfig.from_options(**options), checkpoint, vocab_size=VOCAB - 5)


@pytest.fixture(scope="module", params=["f32", "bf16"])
def executor(request):
    return load(request.param)


def drive(executor):
    executor.reset()
    return Driver(executor.runner, block_size=16, num_blocks=64)


def result(driver, seq_id):
    sequence = driver.sequences[seq_id]
    return sequence["tokens"][sequence["prompt"] :], sequence["logprobs"], sequence["prompt_logprobs"]


def alone(executor, *, prompt=PROMPT, count=12, most=10**9, **options):
    driver = drive(executor)
    driver.add(0, prompt, **options)
    driver.generate(0, count, most)
    return result(driver, 0)


@pytest.mark.parametrize("most", [1, 7, 15, 16, 17, len(PROMPT) - 1])
def test_chunked_equals_whole(executor, most):
    assert alone(executor, most=most, **RICH) == alone(executor, **RICH)


def test_batched_equals_alone(executor):
    prompts = [PROMPT[:n] for n in (45, 1, 16, 33)]
    driver = drive(executor)
    for i, prompt in enumerate(prompts):
        driver.add(i, prompt, key=i, **RICH)
    while live := [i for i, s in driver.sequences.items() if len(s["tokens"]) < s["prompt"] + 12]:
        driver.step(*(driver.chunk(i, 9) for i in live))
    together = [result(driver, i) for i in range(4)]
    assert together == [alone(executor, prompt=prompt, key=i, **RICH) for i, prompt in enumerate(prompts)]


def test_evicted_and_recomputed_equals_undisturbed(executor):
    driver = drive(executor)
    driver.add(0, PROMPT, **RICH)
    for count in (3, 8):
        driver.generate(0, count)
        driver.evict(0)
        driver.step()
    driver.generate(0, 12)
    assert result(driver, 0) == alone(executor, **RICH)


@pytest.mark.parametrize("options", [{"temperature": 0, "max_tokens": 64}, {"top_p": 0.95, "max_tokens": 64}])
def test_steps_begun_ahead_change_nothing(executor, monkeypatch, options):
    """While others come, go, and lose their blocks: what was begun is taken, or dropped without a trace."""
    confirmed = []
    confirm = InputBuilder.confirm
    monkeypatch.setattr(
        InputBuilder, "confirm", lambda *arguments: confirmed.append(confirm(*arguments)) or confirmed[-1]
    )
    expected = [alone(executor, prompt=PROMPT[: 20 + i], key=i, count=40, **options) for i in range(3)]
    assert sum(layout is not None for layout in confirmed) > 80
    confirmed.clear()
    driver = drive(executor)
    for i, count in enumerate((10, 25, 30)):
        driver.add(i, PROMPT[: 20 + i], key=i, **options)
        driver.generate(0, count)
        driver.evict(0)
        driver.generate(i, 4)
    driver.release(1)
    driver.generate(0, 40)
    driver.generate(2, 40)
    assert [result(driver, i) for i in (0, 2)] == [expected[0], expected[2]]
    assert sum(layout is None for layout in confirmed) >= 3  # another sequence's turn, or its blocks were gone


def test_drafts_change_nothing(executor):
    expected = alone(executor, **RICH)
    driver = drive(executor)
    driver.add(0, PROMPT, **RICH)
    driver.generate(0, 1)
    while (done := len(driver.sequences[0]["tokens"]) - len(PROMPT)) < 12:
        drafts = [*expected[0][done : done + 2], 0][: 11 - done]
        driver.step(driver.chunk(0, drafts=drafts))
    assert result(driver, 0) == expected


def test_outputs_are_lively_and_padding_is_never_chosen(executor):
    tokens = alone(executor, count=64, temperature=0)[0]
    assert len(set(tokens)) >= 10
    assert max(tokens) < VOCAB - 5


def test_logits_in_slices_equal_logits_at_once(monkeypatch):
    expected = alone(load(), **RICH)
    monkeypatch.setattr("mini_vllm.runner.loading.MAX_LOGIT_BYTES", 3 * 4 * VOCAB)
    assert alone(load(), **RICH) == expected


@pytest.mark.parametrize(("form", "tolerance"), [("f32", 1e-4), ("f16", 2e-2)])  # f16: K and V are rounded
def test_torch_gives_the_same_tokens(form, tolerance):
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    try:
        reference = alone(load(form, executor="torch", threads=1), count=24, temperature=0, prompt_logprobs=1)
    finally:
        torch.set_num_threads(before)
    native = alone(load(form), count=24, temperature=0, prompt_logprobs=1)
    assert native[0] == reference[0]
    for position, report in reference[2].items():
        assert abs(native[2][position].logprob - report.logprob) < tolerance * max(1, -report.logprob)


def test_hidden_states_come_from_the_model(executor):
    executor.reset()
    ids = tuple(PROMPT[:5])
    admission = Admission(0, ids, SamplingParams(), (), (), 0, "mean")
    outputs = executor.run(StepPlan(7, (Chunk(0, 0, ids, 0, (3,), Outputs.HIDDEN, False),), (admission,)))
    assert outputs.step_id == 7
    assert outputs.seconds > 0
    assert np.array(outputs.outputs[0].hidden).shape == (64,)


def test_description_and_numbers():
    executor = load("bf16", block_size=8, num_blocks=None, kv_cache_memory="1MiB", max_model_len=200)
    assert executor.block_size == 8
    assert executor.max_model_len == 200
    assert executor.num_blocks == min(2**20 // (2 * 4 * 2 * 16 * 8 * 2), 8 * 25)
    assert executor.info.vocab_size == VOCAB
    assert executor.description["op_table"] == "native"
    assert executor.description["sampler"] == "native"
    assert executor.description["kv_format"] == "bf16"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "cuda"}, r"executor native runs on the CPU only, but device is cuda"),
        ({"max_model_len": 257}, r"max_model_len is 257 but LlamaForCausalLM reads at most 256"),
        ({"num_blocks": None, "kv_cache_memory": "4KiB"}, r"one sequence of max_model_len 256 needs"),
    ],
)
def test_impossible_settings_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        load(**options)


def test_auto_takes_the_native_library_on_a_cpu_and_torch_on_a_gpu():
    def chosen(**options):
        return choose_executor(EngineConfig.from_options(model="tiny", **options).model, TinyCheckpoint())

    assert chosen() == "native"
    assert chosen(device="cuda") == "torch"
    assert chosen(executor="torch") == "torch"
    other = TinyCheckpoint(model_type="gpt_neox")
    assert choose_executor(EngineConfig.from_options(model="tiny").model, other) == "hf"


def test_progress_moves_with_every_op(executor):
    driver = drive(executor)
    driver.add(0, PROMPT)
    before = executor.progress()
    driver.generate(0, 1, 10**9)
    assert executor.progress() - before > 2 * executor.info.num_layers
    assert executor.progress() == executor.progress()


def test_progress_of_the_torch_executor_moves_with_every_layer():
    executor = load(executor="torch")
    driver = drive(executor)
    driver.add(0, PROMPT)
    before = executor.progress()
    driver.generate(0, 1, 10**9)
    assert executor.progress() - before == executor.info.num_layers


def test_times_add_up_by_kind_of_op():
    executor = load()
    driver = drive(executor)
    driver.add(0, PROMPT)
    driver.generate(0, 2)
    assert executor.op_seconds() == {}
    driver.generate(0, 6)
    times = executor.op_seconds()
    assert {"embed", "linear", "attend", "rope_store"} <= set(times) and "layer_norm" not in times
    assert 0 < sum(times.values()) < 10
    assert executor.op_seconds() == {}


@pytest.mark.parametrize("form", ["f32", "f16", "bf16", "q8_0"])
def test_greedy_steps_that_read_the_head_in_part_choose_the_same_tokens(form):
    """A sequence that reports log-probabilities needs all logits; one that does not, the largest alone."""
    executor = load(form, threads=2)
    executor.op_seconds()
    kinds = []
    for number in range(24):
        driver = drive(executor)
        prompt = [(7 * number + 3 * i * i) % VOCAB for i in range(5 + number)]
        for seq_id, options in ((0, {}), (1, {"logprobs": 1})):
            driver.add(seq_id, prompt, temperature=0.0, **options)
            driver.generate(seq_id, 12)
            kinds.append("screen_rest" in executor.op_seconds())
        assert driver.sequences[0]["tokens"] == driver.sequences[1]["tokens"]
    assert any(kinds[::2]) and not any(kinds[1::2])


@pytest.mark.parametrize("form", ["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1"])
def test_the_kv_cache_leaves_room_for_the_copy_that_greedy_steps_make_of_the_head(monkeypatch, form):
    """Of 211 rows of 64 columns: 14 panels of 16, 6 bits a number, a float16 scale for 32, and 12 bytes a row."""
    copy = 14 * 16 * (64 * 6 // 8 + 2 * 2 + 12) if form in ("f32", "f16", "bf16", "q8_0") else 0
    block = 4 * 2 * 2 * 16 * 16 * 2
    for num_bytes, blocks in ((copy + 20 * block - 1, 19), (copy + 20 * block, 20)):
        monkeypatch.setattr("mini_vllm.runner.loading._free_bytes", lambda device, num_bytes=num_bytes: num_bytes)
        executor = load(form, num_blocks=None, kv_cache_memory_share=1.0, kv_cache_dtype="bfloat16")
        assert executor.num_blocks == blocks
    executor.op_seconds()
    driver = Driver(executor.runner, block_size=16, num_blocks=blocks)
    driver.add(0, PROMPT, temperature=0.0)
    driver.generate(0, 2)
    assert ("screen_make" in executor.op_seconds()) == (copy > 0)


class Spy:
    """Passes calls of a program's `follow` on, and remembers whether the next step was begun."""

    def __init__(self, executor, monkeypatch):
        self.begun = []
        follow = executor.runner._program.follow

        def watched(*arguments):
            tokens, begun = follow(*arguments)
            self.begun.append(begun)
            return tokens, begun

        monkeypatch.setattr(executor.runner._program, "follow", watched)


def test_greedy_steps_follow_each_other_within_a_block(monkeypatch):
    executor = load(threads=2)
    spy = Spy(executor, monkeypatch)
    prompt = [5, 9, 2, 77, 31]
    expected, _, _ = alone(executor, prompt=prompt, count=40, temperature=0.0, max_tokens=99, logprobs=0)
    assert spy.begun == []  # log-probabilities need all logits
    tokens, _, _ = alone(executor, prompt=prompt, count=40, temperature=0.0, max_tokens=99)
    assert tokens == expected
    # The prompt's step gives the first token; the last one of a block waits for the scheduler's next block.
    assert spy.begun == [position % 16 != 15 for position in range(5, 44)]
    spy.begun.clear()
    tokens, _, _ = alone(executor, prompt=prompt, count=8, temperature=0.0, max_tokens=8)
    assert tokens == expected[:8] and spy.begun == [True] * 6 + [False]
    spy.begun.clear()
    tokens, _, _ = alone(executor, prompt=prompt, count=6, temperature=0.0, max_tokens=99, stop=(expected[3],))
    assert tokens == expected[:6]
    assert spy.begun == [token != expected[3] for token in expected[1:6]]


def test_the_library_and_the_runner_agree_on_what_goes_on(monkeypatch):
    """The rule stands twice: `goes_on` for tokens that the library chooses, `can_guess` for those drawn here."""
    executor = load(threads=2)
    follow, builder = executor.runner._program.follow, executor.runner._builder
    answers, source = [], np.random.default_rng(8)

    def watched(*arguments):
        tokens, begun = follow(*arguments)
        answers.append((begun, builder._decoding.can_guess(tokens)))
        return tokens, begun

    monkeypatch.setattr(executor.runner._program, "follow", watched)
    for seqs in [1, 2, 3, 4] * 4:
        driver = drive(executor)
        for seq_id in range(seqs):
            stop = tuple(source.integers(0, VOCAB, 12).tolist())  # some of them will come
            prompt = PROMPT[: source.integers(1, 45)]
            driver.add(seq_id, prompt, temperature=0.0, max_tokens=int(source.integers(2, 60)), stop=stop)
        for _ in range(20):
            driver.step(*(driver.chunk(seq_id) for seq_id in range(seqs)))
    assert all(library == runner for library, runner in answers)
    assert answers.count((True, True)) > 50 and answers.count((False, False)) > 50


def test_what_follows_is_dropped_when_the_plan_asks_for_something_else(monkeypatch):
    """Sequences come, go, are evicted and join while steps are under way; each gets what it gets alone."""
    executor = load(threads=2)
    prompts = [PROMPT[start : start + 9] for start in range(6)]
    expected = [
        alone(executor, prompt=prompt, count=40, temperature=0.0, max_tokens=99, logprobs=0)[0] for prompt in prompts
    ]
    spy = Spy(executor, monkeypatch)
    source = np.random.default_rng(4)
    driver = drive(executor)
    live = []
    for turn, number in enumerate([*range(6)] * 3):
        seq_id = 100 * turn + number
        driver.add(seq_id, prompts[number], temperature=0.0, max_tokens=99)
        live.append(seq_id)
        for _ in range(source.integers(1, 9)):
            some = [i for i in live if source.random() < 0.9] or live
            driver.step(*(driver.chunk(i) for i in some))
        for i in live:
            found = driver.sequences[i]["tokens"][9:]
            assert found == expected[i % 100][: len(found)]
        if source.random() < 0.3:
            driver.evict(live[0])
        if len(live) > 2:
            driver.release(live.pop(int(source.integers(len(live)))))
    assert spy.begun.count(True) > 10 and spy.begun.count(False) > 2


def test_logits_that_are_not_numbers_are_left_to_the_sampler(monkeypatch, caplog):
    executor = load(threads=2)
    driver = drive(executor)
    driver.add(0, PROMPT[:5], temperature=0.0)
    driver.generate(0, 2)
    monkeypatch.setattr(executor.runner._program, "follow", lambda *_: ([-1], False))
    monkeypatch.setattr(executor.runner._program, "logits", lambda start, stop: np.full((1, VOCAB), np.nan, np.float32))
    driver.step(driver.chunk(0))
    assert driver.sequences[0]["tokens"][-1] == 0 and "not numbers" in caplog.text
