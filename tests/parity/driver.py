"""Runs a program directly, with a block table and no scheduler: chunked prefill mixed with decode, blocks scattered."""

from dataclasses import dataclass, field

import numpy as np
from parity.families import Continuation

from mini_vllm.kernels.inputs import StepInputs
from mini_vllm.kernels.table import Device, Program
from mini_vllm.models import LoadedModel


@dataclass
class _Row:
    token_ids: list[int]
    num_prompt: int
    blocks: np.ndarray
    num_computed: int = 0
    logits: list[np.ndarray] = field(default_factory=list)


class Driver:
    """Greedy decoding of several prompts in one ragged batch."""

    def __init__(self, program: Program, *, block_size: int, num_blocks: int, seed: int = 0) -> None:
        self._program = program
        self._block_size = block_size
        self._free = np.random.default_rng(seed).permutation(num_blocks).astype(np.int32)

    @classmethod
    def compile(
        cls, device: Device, loaded: LoadedModel, *, num_blocks: int = 64, block_size: int = 16, dtype: str = "f32"
    ) -> "Driver":
        store = device.kv_store(loaded.info.kv_shape(num_blocks=num_blocks, block_size=block_size, dtype=dtype))
        program = device.compile(loaded.model, store, max_tokens=1024, max_rows=16, max_logit_rows=16)
        return cls(program, block_size=block_size, num_blocks=num_blocks)

    def generate(self, prompts: list[tuple[int, ...]], num_new: int, *, chunk: int | None) -> list[Continuation]:
        """`num_new` greedy tokens per prompt, computing at most `chunk` tokens of a sequence per step (None: all)."""
        rows = [self._admit(prompt, num_new, index) for index, prompt in enumerate(prompts)]
        while live := [row for row in rows if len(row.logits) < num_new]:
            self._step(live, chunk)
        return [
            Continuation(tuple(row.token_ids[row.num_prompt :]), np.stack(row.logits).astype(np.float32))
            for row in rows
        ]

    def _admit(self, prompt: tuple[int, ...], num_new: int, index: int) -> _Row:
        per_row = -(-(len(prompt) + num_new) // self._block_size)
        return _Row(list(prompt), len(prompt), self._free[index * 16 :][:per_row])

    def _step(self, rows: list[_Row], chunk: int | None) -> None:
        spans = [(row.num_computed, min(row.num_computed + (chunk or 10**9), len(row.token_ids))) for row in rows]
        positions = np.concatenate([np.arange(*span) for span in spans])
        width = max(len(row.blocks) for row in rows)
        starts = np.cumsum([0] + [stop - start for start, stop in spans])
        samples = [stop == len(row.token_ids) for row, (_, stop) in zip(rows, spans)]
        inputs = StepInputs(
            token_ids=_ints([token for row, span in zip(rows, spans) for token in row.token_ids[slice(*span)]]),
            positions=_ints(positions),
            slots=_ints([self._slot(row, p) for row, span in zip(rows, spans) for p in range(*span)]),
            query_starts=_ints(starts),
            seq_lens=_ints([stop for _, stop in spans]),
            block_tables=_ints([np.pad(row.blocks, (0, width - len(row.blocks)), constant_values=-1) for row in rows]),
            logit_rows=_ints([starts[i + 1] - 1 for i, sampled in enumerate(samples) if sampled]),
        )
        self._program.run(inputs)
        logits = iter(self._program.logits(0, len(inputs.logit_rows)).copy() if any(samples) else ())
        for row, (_, stop), sampled in zip(rows, spans, samples):
            row.num_computed = stop
            if sampled:
                row.logits.append(next(logits))
                row.token_ids.append(int(row.logits[-1].argmax()))

    def _slot(self, row: _Row, position: int) -> int:
        return int(row.blocks[position // self._block_size]) * self._block_size + position % self._block_size


def _ints(values: object) -> np.ndarray:
    return np.ascontiguousarray(np.asarray(values, dtype=np.int32))
