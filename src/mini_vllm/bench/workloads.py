"""The work that every engine is given: shapes, prompts, units. Must not know engines, processes or clocks."""

import random
from dataclasses import dataclass

FIRST_ID, LAST_ID = 1000, 39_999  # ordinary tokens of every vocabulary that is measured here, no special ones


@dataclass(frozen=True, slots=True)
class Work:
    """`batch` requests of `prompt_len` + `new_tokens` tokens, and which rate of it counts.

    kind: "decode" = tokens per second of one stream after its first token; "output" = output tokens per second of all
    streams, prefill included; "prompt" = prompt tokens per second up to the first token.
    """

    name: str
    kind: str
    batch: int
    prompt_len: int
    new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0

    def rate(self, seconds: float, seconds_to_first: float = 0.0) -> float:
        """Tokens per second; `seconds_to_first` is needed for kind "decode"."""
        if self.kind == "decode":
            return (self.new_tokens - 1) / max(seconds - seconds_to_first, 1e-9)
        count = self.batch * (self.prompt_len if self.kind == "prompt" else self.new_tokens)
        return count / max(seconds, 1e-9)


SINGLE = Work("single", "decode", 1, 128, 128)
BATCH8 = Work("batch8", "output", 8, 128, 128)
BATCH32 = Work("batch32", "output", 32, 128, 128)
PREFILL_512 = Work("prefill_512", "prompt", 1, 512, 1)
PREFILL_2048 = Work("prefill_2048", "prompt", 1, 2048, 1)
SAMPLED32 = Work("sampled32", "output", 32, 128, 128, temperature=0.8, top_p=0.95)
TINYLLAMA = Work("tinyllama", "decode", 1, 128, 128)

THROUGHPUT = (SINGLE, BATCH8, BATCH32, PREFILL_512, PREFILL_2048)


def make_prompts(batch: int, length: int, *, seed: int, ids: tuple[int, int] = (FIRST_ID, LAST_ID)) -> list[list[int]]:
    """`batch` prompts of random token ids; another seed shares no prefix, so that no cache can help."""
    source = random.Random(seed)
    return [[source.randint(*ids) for _ in range(length)] for _ in range(batch)]
