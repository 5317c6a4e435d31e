"""A model that would say what it is told, behind the real runner and sampler: what grammars make of it is real.

The prompt's `say:TEXT` is what its logits prefer, byte by byte from where the answer stands; then EOS, and if that is
not allowed either, the lowest byte that is. A TEXT that ends in `~` is repeated for ever.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from server.rig import MODEL, TEMPLATE, Rig, serving_model

from mini_vllm.config import EngineConfig
from mini_vllm.engine.assembly import join
from mini_vllm.engine.async_llm import AsyncLLM
from mini_vllm.engine.frontend import Frontend, ModelLimits
from mini_vllm.grammar import GrammarCompiler
from mini_vllm.runner import ModelRunner
from mini_vllm.sampling import make_sampler
from mini_vllm.testing import ByteTokenizer
from mini_vllm.text.chat import ChatTemplate
from mini_vllm.types import StepPlan, StepResult

ANSWER = b"<|im_start|>assistant\n"


class PuppetProgram:
    """Logits of what comes next in the text that the prompt holds; its store holds token ids in place of K and V."""

    max_logit_rows = 64

    def __init__(self, tokenizer: ByteTokenizer, *, num_blocks: int, block_size: int) -> None:
        self._tokenizer = tokenizer
        self._store = np.full(num_blocks * block_size, -1, dtype=np.int64)
        self._block_size = block_size
        self._histories: list[list[int]] = []

    def run(self, inputs):
        self._store[inputs.slots] = inputs.token_ids
        rows = []
        for r, length in enumerate(inputs.seq_lens):
            where = np.arange(length)
            flat = inputs.block_tables[r][where // self._block_size] * self._block_size + where % self._block_size
            history = self._store[flat].tolist()
            first, last = inputs.query_starts[r : r + 2]
            rows += [history[: inputs.positions[t] + 1] for t in range(first, last)]
        self._histories = [rows[i] for i in inputs.logit_rows]
        return np.zeros((len(self._histories), 1), dtype=np.float32)

    def logits(self, start: int, stop: int):
        return np.stack([self._prefer(history) for history in self._histories[start:stop]])

    def _prefer(self, history: list[int]):
        logits = -np.arange(self._tokenizer.vocab_size, dtype=np.float32) / 1000
        logits[self._tokenizer.eos_token_ids[0]] = 5
        text = b"".join(self._tokenizer.token_bytes(i) for i in history)
        prompt, _, said = text.rpartition(ANSWER)
        wanted = prompt.rpartition(b"say:")[2].partition(b"<|im_end|>")[0]
        if wanted.endswith(b"~"):
            wanted = wanted[:-1] * (len(said) // max(1, len(wanted) - 1) + 2)
        if len(said) < len(wanted):
            logits[wanted[len(said)]] = 9
        return logits


class PuppetExecutor:
    """`LocalExecutor` without a model's description."""

    def __init__(self, runner: ModelRunner) -> None:
        self.runner = runner

    def run(self, plan: StepPlan) -> StepResult:
        return StepResult(plan.step_id, self.runner.run(plan))

    def reset(self) -> None:
        self.runner.clear()


def make_puppet(*, template: str = TEMPLATE, tool_format: str = "auto", num_blocks: int = 512, **options) -> AsyncLLM:
    """The engine over the puppet."""
    tokenizer = ByteTokenizer(merges=[b'{"', b"\n\n", b"    ", "é".encode()])
    config = EngineConfig.from_options(**options)
    eos = tokenizer.eos_token_ids
    grammars = GrammarCompiler(tokenizer, eos_token_ids=eos)
    runner = ModelRunner(
        PuppetProgram(tokenizer, num_blocks=num_blocks, block_size=config.cache.block_size),
        make_sampler(limit=tokenizer.vocab_size),
        block_size=config.cache.block_size,
        max_model_len=4096,
        max_tokens=config.scheduler.max_num_batched_tokens,
        max_rows=config.scheduler.max_num_seqs,
        grammars=grammars,
    )
    frontend = Frontend(
        tokenizer,
        ModelLimits(max_model_len=4096, vocab_size=tokenizer.vocab_size, eos_token_ids=eos),
        clock=time.monotonic,
        chat_template=ChatTemplate(template, tool_format=tool_format),
        grammars=grammars,
    )
    return AsyncLLM.from_engine(join(config, PuppetExecutor(runner), num_blocks=num_blocks, frontend=frontend))


@contextmanager
def puppet_server(**options) -> Iterator[Rig]:
    """A server over the puppet for the length of a `with`."""
    llm = make_puppet(**options)
    with serving_model(llm, MODEL) as rig:
        yield rig
