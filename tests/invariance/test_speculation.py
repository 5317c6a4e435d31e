"""Guessing ahead never changes a bit: random mixes with every drafter against each request alone without one.

Drafters guess as far as they may at every step, whether it pays or not.
"""

import random
from collections import Counter

import pytest
from invariance.mixes import Scale, draw_mix, load, run_alone, run_concurrently, run_together
from runner.tiny import VOCAB, TinyCheckpoint

from mini_vllm.models import model_info
from mini_vllm.runner.drafting import Drafting

NUM_MIXES = 80  # for each drafter
SCALE = Scale(vocab_size=VOCAB, most_requests=5, longest_tail=40, rare_length=300, most_output=30)
CHANGES = {"max_position_embeddings": 1024}
DRAFTERS = {
    "ngram": {"speculative": "ngram"},
    "suffix": {"speculative": "suffix", "gamma": 3},
    "self": {"speculative": "self", "draft_layers": 3, "gamma": 4},
    "draft": {"speculative": "draft", "draft_model": "tiny", "gamma": 5},
}


def periodic_text() -> list[int]:
    """Stretches that come again, so that there is something to copy."""
    source = random.Random(4)
    stretches = [[source.randrange(VOCAB) for _ in range(source.randint(5, 20))] for _ in range(12)]
    return [token for _ in range(150) for token in source.choice(stretches)]


def eager(executor):
    """The executor with drafters that always guess."""
    drafting = executor.runner.drafting
    executor.runner.drafting = Drafting(
        drafting._drafter, most=drafting._most, max_model_len=drafting.max_model_len, adaptive=False
    )
    return executor


def executors(name: str, form: str = "f32"):
    """Plain ones first; then those that guess, with other threads and block sizes."""
    checkpoint = TinyCheckpoint(form, **CHANGES)
    plain = load(checkpoint, SCALE, threads=1, block_size=16)
    draft = TinyCheckpoint("bf16", **CHANGES)  # the same weights, rounded: right most of the time
    guessing = [
        eager(load(checkpoint, SCALE, threads=threads, block_size=size, draft=draft, **DRAFTERS[name]))
        for threads, size in ((1, 16), (2, 5))
    ]
    return plain, guessing


@pytest.mark.parametrize("name", DRAFTERS)
def test_mixes_equal_their_requests_alone_without_guesses(name):
    plain, guessing = executors(name)
    text, seen = periodic_text(), Counter()
    for seed in range(NUM_MIXES):
        source = random.Random(f"{name} {seed}")
        executor = source.choice(guessing)
        mix = draw_mix(source, SCALE, text, executor)
        if name in ("self", "draft") and "kv_cache" in mix.settings:
            continue  # refused when an engine is made
        outcomes, stats = run_together(executor, mix)
        alone = {request.request_id: run_alone(plain, request) for request in mix.requests}
        for request_id, outcome in outcomes.items():
            where = f"{name}, mix {seed}, {request_id}, {mix.settings}, {mix.num_blocks} blocks"
            if outcome.ending == "abort":
                assert outcome.is_beginning_of(alone[request_id]), where
            else:
                assert outcome == alone[request_id], where
        if seed % 10 == 0:
            for request_id, outcome in run_concurrently(executor, mix).items():
                assert outcome == alone[request_id], f"{name}, mix {seed}, {request_id}, asynchronous"
        seen["drafts"] += stats.drafts
        seen["accepted"] += stats.drafts_accepted
        seen["preempted"] += stats.preemptions > 0
        seen["shared a prefix"] += stats.prefix_hit_tokens > 0
        assert stats.drafts_accepted == sum(stats.drafts_accepted_at)
        assert stats.forwards <= stats.output_tokens + len(mix.requests)
    assert seen["drafts"] > 200 and seen["preempted"] > 3 and seen["shared a prefix"] > 3
    assert seen["accepted"] > (200 if name == "draft" else 10), seen


def test_spc_08_vocabularies_padded_differently():
    """A draft model with fewer rows, and one with more, guess for the same target."""
    for size in (VOCAB - 20, VOCAB + 13):
        target = load(TinyCheckpoint("f32", **CHANGES), SCALE, threads=1, block_size=16)
        draft = padded(TinyCheckpoint("f32", **CHANGES), size)
        assert model_info(draft.config).vocab_size == size
        guessing = eager(
            load(TinyCheckpoint("f32", **CHANGES), SCALE, threads=1, block_size=16, draft=draft, **DRAFTERS["draft"])
        )
        source = random.Random(size)
        mix = draw_mix(source, SCALE, periodic_text(), guessing)
        mix.settings.pop("kv_cache", None)
        outcomes, stats = run_together(guessing, mix)
        for request in mix.requests:
            if outcomes[request.request_id].ending != "abort":
                assert outcomes[request.request_id] == run_alone(target, request)
        assert stats.drafts_accepted > 0


def padded(checkpoint: TinyCheckpoint, rows: int) -> TinyCheckpoint:
    """The same model with another number of rows in its embedding."""
    import numpy as np

    from mini_vllm.kernels.tensors import HostTensor

    name = "model.embed_tokens.weight"
    table = checkpoint._tensors[name].data.view(np.float32).reshape(VOCAB, -1)
    table = np.concatenate([table, table])[:rows].copy()
    checkpoint._tensors[name] = HostTensor(name, "f32", table.shape, table.reshape(-1).view(np.uint8))
    checkpoint.config["vocab_size"] = rows
    return checkpoint
