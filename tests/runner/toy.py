"""A toy program whose logits are a pure function of the tokens it finds through its paged store, and a driver for it.

The store holds token ids instead of K and V, so a wrong slot, table or length shows as wrong logits.
"""

import numpy as np

from mini_vllm.runner import ModelRunner
from mini_vllm.sampling import make_sampler
from mini_vllm.types import Admission, Chunk, Outputs, SamplingParams, StepPlan

VOCAB = 97


class ToyProgram:
    """hidden = [hash of the history, position]; logits = noise seeded by that hash."""

    def __init__(self, *, num_blocks, block_size, max_logit_rows=4):
        self.store = np.full(num_blocks * block_size, -1, dtype=np.int64)
        self.block_size = block_size
        self.max_logit_rows = max_logit_rows
        self.steps = []

    def run(self, inputs):
        arrays = [getattr(inputs, name) for name in inputs.__slots__ if name != "greedy_limit"]
        assert all(array.dtype == np.int32 and array.flags.c_contiguous for array in arrays)
        self.store[inputs.slots] = inputs.token_ids
        rows = []
        for r in range(len(inputs.seq_lens)):
            first, last = inputs.query_starts[r : r + 2]
            assert inputs.positions[last - 1] + 1 == inputs.seq_lens[r]
            for t in range(first, last):
                where = np.arange(inputs.positions[t] + 1)
                flat = inputs.block_tables[r][where // self.block_size] * self.block_size + where % self.block_size
                history = tuple(self.store[flat].tolist())
                assert -1 not in history
                rows.append([hash(history) % 2**23, inputs.positions[t]])
        self.hidden = np.array(rows, dtype=np.float32)[inputs.logit_rows]
        self.steps.append(len(rows))
        return self.hidden

    def logits(self, start, stop):
        assert 0 < stop - start <= self.max_logit_rows
        return np.stack([logits_of(int(row[0])) for row in self.hidden[start:stop]])


def logits_of(seed):
    return np.random.default_rng(seed).normal(0, 2, VOCAB).astype(np.float32)


class Driver:
    """A small scheduler: one block pool, explicit chunks, no policy."""

    def __init__(
        self,
        runner=None,
        *,
        block_size=4,
        num_blocks=256,
        max_model_len=128,
        max_logit_rows=4,
        max_rows=16,
        limit=VOCAB,
    ):
        self.program = ToyProgram(num_blocks=num_blocks, block_size=block_size, max_logit_rows=max_logit_rows)
        self.runner = runner or ModelRunner(
            self.program,
            make_sampler(limit=limit, backend="numpy"),
            block_size=block_size,
            max_model_len=max_model_len,
            max_tokens=512,
            max_rows=max_rows,
        )
        self.block_size = block_size
        self.free = list(np.random.default_rng(5).permutation(num_blocks))
        self.sequences = {}
        self.admitted = []
        self.evicted = []
        self.released = []
        self.step_id = 0

    def add(self, seq_id, prompt, *, key=1, eos=(), stop=(), pooling=None, **params):
        admission = Admission(seq_id, tuple(prompt), SamplingParams(**params), tuple(eos), tuple(stop), key, pooling)
        self.admitted.append(admission)
        self.sequences[seq_id] = {
            "tokens": list(prompt), "prompt": len(prompt), "computed": 0, "blocks": [], "params": admission.params,
            "logprobs": [], "prompt_logprobs": {},
        }  # fmt: skip

    def evict(self, seq_id):
        sequence = self.sequences[seq_id]
        self.free += sequence["blocks"]
        sequence["blocks"], sequence["computed"] = [], 0
        self.evicted.append(seq_id)

    def release(self, seq_id):
        self.free += self.sequences.pop(seq_id)["blocks"]
        self.released.append(seq_id)

    def chunk(self, seq_id, most=10**9, outputs=None, drafts=()):
        sequence = self.sequences[seq_id]
        start = sequence["computed"]
        tokens = (*sequence["tokens"][start : start + most], *drafts)
        end = start + len(tokens)
        samples = end - len(drafts) == len(sequence["tokens"])
        needed = -(-end // self.block_size) - len(sequence["blocks"])
        new = [int(self.free.pop()) for _ in range(max(needed, 0))]
        sequence["blocks"] += new
        if outputs is None:
            asks = sequence["params"].prompt_logprobs is not None and start < sequence["prompt"]
            outputs = Outputs.ALL if asks else Outputs.LAST if samples else Outputs.NONE
        return Chunk(seq_id, start, tokens, len(drafts), tuple(new), outputs, samples)

    def step(self, *chunks):
        plan = StepPlan(self.step_id, chunks, tuple(self.admitted), tuple(self.evicted), tuple(self.released))
        self.admitted, self.evicted, self.released = [], [], []
        self.step_id += 1
        outputs = {output.seq_id: output for output in self.runner.run(plan)}
        for chunk in chunks:
            sequence = self.sequences[chunk.seq_id]
            output = outputs.get(chunk.seq_id)
            new = output.token_ids if output else ()
            sequence["computed"] = chunk.start + len(chunk.token_ids) - chunk.num_drafts + max(len(new) - 1, 0)
            sequence["tokens"] += new
            if output:
                sequence["logprobs"] += output.logprobs
                for i, report in enumerate(output.prompt_logprobs):
                    sequence["prompt_logprobs"][chunk.start + 1 + i] = report
        return outputs

    def generate(self, seq_id, count, most=10**9):
        """Run one sequence until it has `count` output tokens."""
        sequence = self.sequences[seq_id]
        while len(sequence["tokens"]) < sequence["prompt"] + count:
            self.step(self.chunk(seq_id, most))
        return sequence["tokens"][sequence["prompt"] :]


def expected_greedy(prompt, count):
    """What a sequence must give, without a runner."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(logits_of(hash(tuple(tokens)) % 2**23).argmax()))
    return tokens[len(prompt) :]
