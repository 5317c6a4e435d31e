"""What runs beside a request, and how it is run, never changes a bit of it: random mixes against each request alone.

Tokens, logprobs and prompt logprobs are compared for equality, which for these floats is equality of bits.
"""

import random
from collections import Counter
from dataclasses import dataclass

import pytest
from invariance.mixes import Mix, Scale, draw_mix, load, run_alone, run_concurrently, run_together
from quality.measuring import read_documents
from quality.requantised import QUANTISED, Requantised
from runner.tiny import VOCAB, TinyCheckpoint
from runner.tiny_k import TinyKCheckpoint

from mini_vllm import weights
from mini_vllm.kernels.native_abi import bind_library
from mini_vllm.runner.executor import LocalExecutor
from mini_vllm.text import Tokenizer

K_MIX = "q2_k to q6_k"  # one model of all of them
FORMS = ("f32", "bf16", "f16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", K_MIX)
ISAS = bind_library().mv_isa_names().decode().split()
NUM_MIXES = 200
TINY = Scale(vocab_size=VOCAB, most_requests=6, longest_tail=50, rare_length=600, most_output=30)
LAYOUTS = ((1, 16), (2, 16), (2, 5), (3, 32))  # (threads, block size); the first also runs requests alone


def tiny_checkpoint(form: str):
    """Random weights; half of the formats get Mistral's window, the others Llama's full attention."""
    changes = {"max_position_embeddings": 1024}
    if form in ("bf16", "q4_1", "f32"):
        changes |= {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 40}
    if form == K_MIX:
        return TinyKCheckpoint(max_position_embeddings=1024)
    if form in QUANTISED:
        return Requantised(TinyCheckpoint("f32", **changes), form)
    return TinyCheckpoint(form, **changes)


def tiny_executors(form: str) -> list[LocalExecutor]:
    checkpoint = tiny_checkpoint(form)
    return [load(checkpoint, TINY, threads=threads, block_size=size) for threads, size in LAYOUTS]


@dataclass
class Seen:
    """What the mixes really did, so that a test cannot pass by doing nothing."""

    events: Counter
    token_ids: set[int]

    def note(self, mix: Mix, outcomes, stats) -> None:
        self.events["requests"] += len(outcomes)
        self.events["preempted"] += stats.preemptions > 0
        self.events["shared a prefix"] += stats.prefix_hit_tokens > 0
        self.events["aborted"] += stats.finished_abort
        self.events["prompt logprobs"] += sum(bool(outcome.prompt_logprobs) for outcome in outcomes.values())
        for name in ("kv_cache", "cache_backend", "enable_prefix_caching"):
            self.events[name] += name in mix.settings
        for outcome in outcomes.values():
            self.token_ids.update(outcome.token_ids)


def compare(executors: list[LocalExecutor], scale: Scale, text: list[int], seeds, *, label: str) -> Seen:
    """Every mix together and its requests alone; every tenth mix over the asynchronous door as well."""
    seen = Seen(Counter(), set())
    for seed in seeds:
        source = random.Random(f"{label} {seed}")
        executor = source.choice(executors)
        mix = draw_mix(source, scale, text, executor)
        outcomes, stats = run_together(executor, mix)
        alone = {request.request_id: run_alone(executors[0], request) for request in mix.requests}
        for request_id, outcome in outcomes.items():
            where = f"{label}, mix {seed}, {request_id}, {mix.settings}, {mix.num_blocks} blocks"
            if outcome.ending == "abort":
                assert outcome.is_beginning_of(alone[request_id]), where
            else:
                assert outcome == alone[request_id], where
        seen.note(mix, outcomes, stats)
        if seed % 10 == 0:
            for request_id, outcome in run_concurrently(executor, mix).items():
                assert outcome == alone[request_id], f"{label}, mix {seed}, {request_id}, asynchronous"
    return seen


def tiny_text() -> list[int]:
    source = random.Random(1)
    return [source.randrange(VOCAB - 3) for _ in range(2000)]


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_two_hundred_mixes_equal_their_requests_alone(form):
    seen = compare(tiny_executors(form), TINY, tiny_text(), range(NUM_MIXES), label=form)
    events = seen.events
    assert len(seen.token_ids) > VOCAB // 2, "outputs that repeat themselves prove nothing"
    assert events["requests"] > 4 * NUM_MIXES and events["prompt logprobs"] > NUM_MIXES // 2
    assert events["preempted"] > NUM_MIXES // 10 and events["shared a prefix"] > NUM_MIXES // 10
    assert min(events[name] for name in ("kv_cache", "cache_backend", "enable_prefix_caching", "aborted")) > 10


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("form", FORMS)
def test_mixes_on_every_instruction_set(form, isa, monkeypatch):
    monkeypatch.setenv("MINI_VLLM_ISA", isa)
    executors = tiny_executors(form)
    assert {executor.description["instruction_set"] for executor in executors} == {isa}
    compare(executors, TINY, tiny_text(), range(5), label=f"{form} {isa}")


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("form", ["q8_0", "q4_1"])  # without and with a sliding window
def test_mixes_over_keys_and_values_in_int8(form, isa, monkeypatch):
    monkeypatch.setenv("MINI_VLLM_ISA", isa)
    checkpoint = tiny_checkpoint(form)
    executors = [load(checkpoint, TINY, threads=t, block_size=size, kv_cache_dtype="int8") for t, size in LAYOUTS]
    assert {executor.description["kv_format"] for executor in executors} == {"q8"}
    seen = compare(executors, TINY, tiny_text(), range(20), label=f"int8 store {form}")
    assert seen.events["preempted"] and seen.events["shared a prefix"]


@pytest.mark.slow
def test_mixes_of_the_default_model(default_model):
    checkpoint = weights.open_checkpoint(default_model)
    tokenizer = Tokenizer.from_checkpoint(checkpoint.path, checkpoint.tokenizer_metadata)
    text = tokenizer.encode("\n".join(read_documents()))
    scale = Scale(tokenizer.vocab_size, most_requests=5, longest_tail=40, rare_length=400, most_output=24)
    executors = [load(checkpoint, scale, threads=threads, block_size=size) for threads, size in LAYOUTS[::2]]
    seen = compare(executors, scale, text, range(12), label="default model")
    checkpoint.close()
    assert len(seen.token_ids) > 100 and seen.events["preempted"] and seen.events["shared a prefix"]
