"""An engine that makes tokens at will: everything is real but the model. For measuring what is around the model.

`RECIPE` loads it by name, on a thread or in a process of its own. A step takes `MINI_VLLM_STEP_SECONDS` (0: none).
"""

import os
import time
from collections.abc import Callable, Sequence

from mini_vllm.config import EngineConfig
from mini_vllm.engine.assembly import Engine, Recipe, join, load_words, open_frontend
from mini_vllm.engine.frontend import Frontend, ModelLimits
from mini_vllm.types import SequenceOutput, StepPlan, StepResult

RECIPE = Recipe(engine="mini_vllm.testing.instant:load", frontend="mini_vllm.testing.instant:open_frontend")
STEP_SECONDS = "MINI_VLLM_STEP_SECONDS"
MAX_MODEL_LEN = 131_072
NUM_BLOCKS = 200_000
TEXT = " The quick brown fox jumps over the lazy dog, and then it sleeps."

__all__ = ["RECIPE", "STEP_SECONDS", "InstantExecutor", "load", "open_frontend"]


class InstantExecutor:
    """Says the same tokens over and over, one a step and sequence. `step_seconds`: how long a step takes at least."""

    def __init__(
        self,
        token_ids: Sequence[int],
        *,
        step_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._token_ids = tuple(token_ids)
        self._step_seconds = step_seconds
        self._clock = clock
        self._sleep = sleep
        self._end: float | None = None  # of the last step
        self._num_steps = 0

    def run(self, plan: StepPlan) -> StepResult:
        """One token for each chunk that samples."""
        self._num_steps += 1
        if self._step_seconds:
            now = self._clock()
            self._end = max(now, (now if self._end is None else self._end) + self._step_seconds)
            self._sleep(self._end - now)
        token_ids, count = self._token_ids, len(self._token_ids)
        return StepResult(
            plan.step_id,
            tuple(
                [
                    SequenceOutput(chunk.seq_id, (token_ids[(chunk.start + len(chunk.token_ids)) % count],))
                    for chunk in plan.chunks
                    if chunk.samples
                ]
            ),
        )

    def progress(self) -> int:
        """Steps so far."""
        return self._num_steps

    def reset(self) -> None:
        """There is nothing to forget."""


def load(config: EngineConfig) -> Engine:
    """The engine, with the tokenizer and chat template of the model that the configuration names."""
    from mini_vllm import weights

    checkpoint = weights.open_checkpoint(weights.resolve(config.model.model, revision=config.model.revision))
    words = load_words(config, checkpoint)
    checkpoint.close()
    limits = ModelLimits(
        max_model_len=config.model.max_model_len or MAX_MODEL_LEN,
        vocab_size=words.tokenizer.vocab_size,
        eos_token_ids=words.eos_token_ids,
    )
    executor = InstantExecutor(
        words.tokenizer.encode(TEXT, add_special_tokens=False), step_seconds=float(os.environ.get(STEP_SECONDS, "0"))
    )
    frontend: Frontend = words.frontend(limits)
    return join(config, executor, num_blocks=config.cache.num_blocks or NUM_BLOCKS, frontend=frontend)
