"""What the runner remembers of each live sequence: its block table, sampling state and prompt.

A row comes with `StepPlan.admitted`, survives eviction (only its table is forgotten) and goes with `released`. Must not
know tensors, models or why the scheduler decided so.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mini_vllm.grammar import Cursor, GrammarCompiler, Guide
from mini_vllm.runner.pooling import Pool
from mini_vllm.sampling import SamplingStates
from mini_vllm.types import Admission, Chunk, StepPlan

Int32Array = npt.NDArray[np.int32]


@dataclass(slots=True)
class Row:
    """One live sequence."""

    slot: int  # its line in the block tables and sampling states; stays the same while the sequence lives
    prompt_token_ids: tuple[int, ...]
    num_prompt_logprobs: int
    penalised: bool
    reports: bool = False  # whether log-probabilities of its tokens are wanted
    takes_largest: bool = False  # of its logits; see SamplingState
    cursor: Cursor | Guide | None = None  # where it is in its grammar, and in what else bounds its next token
    num_blocks: int = 0
    last_token_ids: tuple[int, ...] = ()  # tokens that may end it
    max_len: int | None = None  # tokens at which it ends, if it is known here
    pool: Pool | None = None


class RowTable:
    """Rows by sequence id, with all block tables in one int32 matrix [capacity, max_blocks].

    Lines are appended to. max_blocks: blocks of the longest possible sequence. Capacity doubles when more sequences
    live (evicted ones included) than ever before.
    """

    def __init__(
        self,
        states: SamplingStates,
        *,
        block_size: int,
        max_blocks: int,
        capacity: int = 64,
        grammars: GrammarCompiler | None = None,
    ) -> None:
        self.states = states
        self.block_size = block_size
        self.num_constrained = 0  # rows with a grammar
        self.version = 0  # changes with every row that comes, goes or loses its table
        self._grammars = grammars
        self.block_tables: Int32Array = np.zeros((capacity, max_blocks), dtype=np.int32)
        self._rows: dict[int, Row] = {}
        self._free = list(reversed(range(capacity)))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, seq_id: int) -> Row:
        return self._rows[seq_id]

    def get(self, seq_id: int) -> Row | None:
        """The row of a sequence, or None."""
        return self._rows.get(seq_id)

    def apply(self, plan: StepPlan) -> None:
        """Drop what was released, empty the tables of what was evicted, add what was admitted."""
        for seq_id in plan.released:
            self.release(seq_id)
        for seq_id in plan.evicted:
            if (row := self._rows.get(seq_id)) is not None:
                row.num_blocks = 0
                self.version += 1
        for admission in plan.admitted:
            self.admit(admission)

    def admit(self, admission: Admission) -> Row:
        """Add a sequence. Its id must be new."""
        assert admission.seq_id not in self._rows, f"sequence {admission.seq_id} is admitted twice"
        if not self._free:
            self._grow()
        self.version += 1
        slot = self._free.pop()
        state = self.states.admit(slot, admission)
        row = Row(
            slot=slot,
            prompt_token_ids=admission.prompt_token_ids,
            num_prompt_logprobs=admission.params.prompt_logprobs or 0,
            penalised=state.penalised,
            reports=state.num_logprobs is not None,
            takes_largest=state.takes_largest,
            last_token_ids=admission.eos_token_ids + admission.stop_token_ids,
            max_len=_max_len(admission),
            pool=None if admission.pooling is None else Pool(admission.pooling),
        )
        if admission.params.guided:
            assert self._grammars is not None, "a request with a grammar reached a runner without a compiler"
            row.cursor = self._grammars.start(admission.params, admission.prompt_token_ids)
            self.num_constrained += row.cursor is not None
        self._rows[admission.seq_id] = row
        return row

    def release(self, seq_id: int) -> None:
        """Forget a sequence; one that was never admitted (aborted while it waited) is ignored."""
        row = self._rows.pop(seq_id, None)
        if row is not None:
            self.version += 1
            self.states.drop(row.slot)
            self.num_constrained -= row.cursor is not None
            self._free.append(row.slot)

    def clear(self) -> None:
        """Forget all."""
        for seq_id in list(self._rows):
            self.release(seq_id)

    def append_blocks(self, row: Row, chunk: Chunk) -> None:
        """Append the chunk's new blocks to the row's table.

        Blocks for a chunk that starts at position 0 and hold all of it begin a fresh table: without a KV cache every
        step is such a chunk.
        """
        added = chunk.new_block_ids
        if chunk.start == 0 and len(added) * self.block_size >= len(chunk.token_ids):
            row.num_blocks = 0
        end = row.num_blocks + len(added)
        assert end <= self.block_tables.shape[1], (
            f"sequence {chunk.seq_id} holds {end} blocks, more than the longest may"
        )
        self.block_tables[row.slot, row.num_blocks : end] = added
        row.num_blocks = end

    def _grow(self) -> None:
        capacity = len(self.block_tables)
        self.block_tables = np.concatenate([self.block_tables, np.zeros_like(self.block_tables)])
        self._free = list(reversed(range(capacity, 2 * capacity)))


def _max_len(admission: Admission) -> int | None:
    most = admission.params.max_tokens
    return None if most is None else len(admission.prompt_token_ids) + most
