"""An engine without weights for these tests: a scripted executor under the real scheduler, cache and front end."""

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence

from mini_vllm.config import EngineConfig
from mini_vllm.engine.assembly import Engine, join
from mini_vllm.engine.frontend import Frontend, ModelLimits
from mini_vllm.testing import ByteTokenizer
from mini_vllm.types import Admission, Outputs, SequenceOutput, StepPlan, StepResult, TokenLogprobs

Script = Callable[[Admission, Sequence[int]], int]  # (admission, all known ids) -> the next id


class ScriptedExecutor:
    """Says what a script says. Checks that sequences are admitted once and computed in order."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.known: dict[int, list[int]] = {}
        self.admissions: dict[int, Admission] = {}
        self.plans: list[StepPlan] = []
        self.num_resets = 0

    def run(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        for seq_id in plan.released:
            del self.known[seq_id], self.admissions[seq_id]
        for admission in plan.admitted:
            assert admission.seq_id not in self.known
            self.known[admission.seq_id] = list(admission.prompt_token_ids)
            self.admissions[admission.seq_id] = admission
        outputs = []
        for chunk in plan.chunks:
            admission, known = self.admissions[chunk.seq_id], self.known[chunk.seq_id]
            end = chunk.start + len(chunk.token_ids)
            assert tuple(known[chunk.start : end]) == chunk.token_ids
            sampled, scores = (), ()
            if chunk.outputs is Outputs.ALL:
                targets = admission.prompt_token_ids[chunk.start + 1 : end + 1]
                scores = tuple(_score(token_id, admission.params.prompt_logprobs) for token_id in targets)
            if chunk.samples:
                sampled = (self.script(admission, known),)
                known.append(sampled[0])
            wanted = admission.params.logprobs
            logprobs = () if wanted is None else tuple(_score(token_id, wanted) for token_id in sampled)
            if sampled or scores:
                outputs.append(SequenceOutput(chunk.seq_id, sampled, logprobs, scores))
        return StepResult(plan.step_id, tuple(outputs))

    def reset(self) -> None:
        self.num_resets += 1
        self.known.clear()
        self.admissions.clear()


def _score(token_id: int, num_top: int) -> TokenLogprobs:
    return TokenLogprobs(token_id, -token_id / 256, 1, tuple((token_id + i, -1.0 - i) for i in range(num_top)))


def saying(*texts: Sequence[int], then: int = ord(".")) -> Script:
    """A script that answers the prompt (i,) with texts[i] and goes on with dots for ever."""

    def script(admission: Admission, known: Sequence[int]) -> int:
        text = texts[admission.prompt_token_ids[0] % len(texts)]
        index = len(known) - len(admission.prompt_token_ids)
        return text[index] if index < len(text) else then

    return script


def counting(admission: Admission, known: Sequence[int]) -> int:
    """Digits of the position, so that a lost or repeated token shows; the choice's noise key sets the first."""
    return ord("0") + (admission.noise_key + len(known)) % 10


class SlowExecutor(ScriptedExecutor):
    """A step takes a while, so that what happens beside it can be seen."""

    def __init__(self, script: Script = counting, *, seconds: float = 0.002) -> None:
        super().__init__(script)
        self.seconds = seconds

    def run(self, plan: StepPlan) -> StepResult:
        time.sleep(self.seconds)
        return super().run(plan)


async def eventually(condition: Callable[[], object], seconds: float = 5.0) -> None:
    """Wait for a condition, or fail."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        await asyncio.sleep(0.001)


def make_engine(
    script: Script = counting,
    *,
    tokenizer: ByteTokenizer | None = None,
    max_model_len: int = 512,
    num_blocks: int = 256,
    executor: ScriptedExecutor | None = None,
    eos: Sequence[int] | None = None,
    **options: object,
) -> Engine:
    """The engine; `options` are settings such as `max_num_seqs`."""
    tokenizer = tokenizer or ByteTokenizer()
    limits = ModelLimits(
        max_model_len=max_model_len,
        vocab_size=tokenizer.vocab_size,
        eos_token_ids=tuple(tokenizer.eos_token_ids if eos is None else eos),
    )
    seeds = itertools.count(1000)
    return join(
        EngineConfig.from_options(**options),
        executor or ScriptedExecutor(script),
        num_blocks=num_blocks,
        frontend=Frontend(tokenizer, limits, clock=lambda: 0.0, fresh_seed=lambda: next(seeds)),
    )
