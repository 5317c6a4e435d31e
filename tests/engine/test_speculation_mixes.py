"""Random requests to the default model with every drafter, in a cramped engine, against a roomy one without guesses.

Grammars, stop strings and tokens, minimum lengths, bans, penalties, several choices, the end of the context; few
blocks, so that requests are preempted, and prompts in small chunks. Drafters always guess.
"""

import random

import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.types.structured import StructuredOutputsParams

NUM_REQUESTS = 64
MOST = 160  # tokens of context
ROOMY = dict(max_model_len=MOST, max_num_seqs=8, num_blocks=200)
CRAMPED = dict(
    max_model_len=MOST, max_num_seqs=6, num_blocks=18, max_num_batched_tokens=40, prefill_chunk_size=13, gamma=5
)
DRAFTERS = {
    "ngram": {"speculative": "ngram"},
    "suffix": {"speculative": "suffix"},
    "self": {"speculative": "self", "draft_layers": 22},
    "draft": {"speculative": "draft"},
}
WORDS = (
    "red fox",
    "and blue",
    "fox and",
    "red hen;",
    "one,",
    "two,",
    "three,",
    "the river",
    "runs to",
    "the sea",
    "sky",
)
GRAMMARS = (
    {"choice": ["the red fox", "the red hen", "a blue fox and a red hen"]},
    {"regex": r"(red|blue) (fox|hen)( and (red|blue) (fox|hen)){2,4}\."},
    {"json": {"type": "array", "items": {"enum": ["fox", "hen", "sea"]}, "minItems": 4, "maxItems": 6}},
    {"json_object": True},
)


def draw(source: random.Random) -> tuple[str, SamplingParams]:
    """A prompt with something to copy, and how to go on."""

    def maybe(share: float, value: object, otherwise: object) -> object:
        return value if source.random() < share else otherwise

    phrase = " ".join(source.choice(WORDS) for _ in range(source.randint(4, 12)))
    prompt = f"{phrase}. " * source.randint(1, 4) + phrase[: source.randint(1, len(phrase))]
    params = {
        "n": maybe(0.2, 2, 1),
        "seed": source.randrange(2**31),
        "temperature": maybe(0.5, 0.0, source.choice([0.4, 0.8, 1.2])),
        "top_p": maybe(0.3, 0.9, 1.0),
        "max_tokens": maybe(0.1, None, source.randint(1, 40)),
        "ignore_eos": source.random() < 0.5,
        "frequency_penalty": maybe(0.2, 0.4, 0.0),
        "repetition_penalty": maybe(0.2, 1.2, 1.0),
        "stop": maybe(0.3, source.sample(["fox", "sea.", "the sea", "ree, fo", "\n"], 2), []),
        "stop_token_ids": maybe(0.2, [source.randrange(1000)], []),
        "bad_words": maybe(0.2, ["blue", "river runs"], []),
        "logit_bias": maybe(0.2, {source.randrange(2000): 4.0}, {}),
        "logprobs": maybe(0.5, source.randint(0, 3), None),
        "prompt_logprobs": maybe(0.1, 1, None),
    }
    if source.random() < 0.3:
        params["structured_outputs"] = StructuredOutputsParams(**source.choice(GRAMMARS))
        params["max_tokens"] = 40
    elif params["max_tokens"] is not None:
        params["min_tokens"] = maybe(0.3, source.randint(0, params["max_tokens"]), 0)
    return prompt, SamplingParams(**params)


REQUESTS = [draw(random.Random(f"speculation {number}")) for number in range(NUM_REQUESTS)]


def answers(llm: LLM) -> list[object]:
    prompts, params = [prompt for prompt, _ in REQUESTS], [each for _, each in REQUESTS]
    return [
        (choice.text, choice.token_ids, choice.logprobs, choice.finish_reason, choice.stop_reason)
        for output in llm.generate(prompts, params)
        for choice in output.outputs
    ]


@pytest.fixture(scope="module")
def plain(default_model):
    with LLM(default_model, **ROOMY) as llm:
        found = answers(llm)
    reasons = [reason for *_, reason, _ in found]
    assert reasons.count("stop") > 10 and reasons.count("length") > 10
    return found


@pytest.mark.parametrize("name", DRAFTERS)
def test_spc_01_random_requests_in_a_cramped_engine(name, plain, default_model):
    settings = {**DRAFTERS[name], **({"draft_model": str(default_model)} if name == "draft" else {})}
    with LLM(default_model, **CRAMPED, **settings) as llm:
        llm.engine.core.executor.runner.drafting._adaptive = False
        for number, (found, expected) in enumerate(zip(answers(llm), plain, strict=True)):
            assert found == expected, f"{name}, answer {number}"
        stats = llm.engine.core.stats()
        assert stats.preemptions > 0 and stats.drafts_accepted > 20 and stats.drafts > stats.drafts_accepted
        llm.engine.core.scheduler.check_integrity()
