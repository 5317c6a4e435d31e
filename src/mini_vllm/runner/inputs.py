"""From a plan's chunks to the arrays of one ragged forward pass, and what each of its output rows is for.

Vectorised: nothing loops over tokens. Where the same sequences take one more token each, the last step's arrays move on
by one position and nothing is laid out anew. Must not know models or logits.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import numpy.typing as npt

from mini_vllm.kernels.inputs import StepInputs, Succession
from mini_vllm.runner.rows import Row, RowTable
from mini_vllm.types import Chunk, Outputs

Int32Array = npt.NDArray[np.int32]

NO_ROWS: Int32Array = np.zeros(0, dtype=np.int32)
FEW = 4  # sequences up to which numbers are written one by one: a call of NumPy costs more than so many of them
SPARE_BLOCKS = 16  # a step's tables are a multiple of this wide, so that most decode steps fit the last one's


@dataclass(frozen=True, slots=True)
class SampleRows:
    """The output rows that choose a token, in plan order: S of them."""

    rows: Int32Array  # [S] which of the L output rows, ascending
    slots: Int32Array  # [S] whose sampling state
    positions: Int32Array  # [S] of the token being chosen
    drafts: tuple[tuple[int, ...], ...] = ()  # [S] guesses before the row; empty when the step has no drafts


@dataclass(frozen=True, slots=True)
class ScoreRows:
    """The output rows that score a known prompt token, in plan order: P of them."""

    rows: Int32Array  # [P] which of the L output rows, ascending
    token_ids: Sequence[int]  # [P] the token after the row's own
    counts: Sequence[int]  # [P] how many alternatives to list


@dataclass(frozen=True, slots=True)
class StepLayout:
    """One step, ready to run: the arrays, and how to read its L output rows back into the plan's chunks."""

    inputs: StepInputs
    sequence_rows: list[Row]  # one for each chunk
    samples: SampleRows
    scores: ScoreRows
    num_samples: Sequence[int]  # for each chunk
    num_scores: Sequence[int]
    hidden: dict[int, tuple[int, int]]  # chunk index -> its half-open range of output rows (Outputs.HIDDEN)
    succession: Succession | None = None  # of a step that its program may follow up by itself
    is_plain: bool = False  # every chunk is one token and asks for one, which nobody counts, follows or reports


class InputBuilder:
    """Builds layouts. The arrays of a layout are reused by the next one; a layout that is given out again, with what is
    in its arrays moved on, is the same object, so that others may keep what they derive from its arrays' addresses.
    """

    def __init__(self, table: RowTable, *, max_tokens: int, max_rows: int) -> None:
        self._table = table
        self._ramp = np.arange(max(max_tokens, max_rows) + 1, dtype=np.int32)
        self._token_ids = np.zeros(max_tokens, dtype=np.int32)
        self._moving = np.zeros(
            (3, max(max_tokens, max_rows)), dtype=np.int32
        )  # what grows by 1 from one decode step to the next
        self._positions, self._slots, self._seq_lens = self._moving
        self._decoding: _Decoding | None = None
        self._query_starts = np.zeros(max_rows + 1, dtype=np.int32)
        self._tables = np.zeros(max_rows * table.block_tables.shape[1], dtype=np.int32)

    def build(self, chunks: Sequence[Chunk]) -> StepLayout:
        """Lay out a step; appends the chunks' new blocks to their rows' tables."""
        table = self._table
        decoding = self._decoding
        if decoding is not None and decoding.version == table.version and decoding.goes_on(chunks):
            decoding.move_on(chunks, table)
            return decoding.layout
        self._decoding = None
        rows = [table[chunk.seq_id] for chunk in chunks]
        for row, chunk in zip(rows, chunks):
            if chunk.new_block_ids:
                table.append_blocks(row, chunk)
        lines = np.array([row.slot for row in rows], dtype=np.int32)
        starts = np.array([chunk.start for chunk in chunks], dtype=np.int32)
        lengths = np.array([len(chunk.token_ids) for chunk in chunks], dtype=np.int32)
        if _is_decode(chunks):
            inputs = self._fill(chunks, lines, starts, lengths, logit_rows=self._ramp[: len(chunks)])
            if all([row.takes_largest and row.cursor is None for row in rows]):
                inputs = replace(inputs, greedy_limit=table.states.limit)
            layout = self._decode_layout(inputs, rows, lines)
            self._decoding = _Decoding(layout, self._moving[:, : len(rows)], chunks, table)
            return layout
        outputs = _OutputRows()
        first = 0
        for chunk, row in zip(chunks, rows):
            outputs.add(chunk, row, first)
            first += len(chunk.token_ids)
        inputs = self._fill(chunks, lines, starts, lengths, logit_rows=np.array(outputs.wanted, dtype=np.int32))
        return outputs.layout(inputs, rows)

    def guess(self, token_ids: Sequence[int]) -> StepLayout | None:
        """Move the last layout on to the step that is likely to follow: the same sequences, with these tokens.

        None where that is not worth it: many sequences, one that ends here, or one that needs a block, which the
        scheduler has yet to give. Else `confirm` comes next, and `take_back` where that says no.
        """
        decoding = self._decoding
        if decoding is None or not decoding.can_guess(token_ids):
            return None
        decoding.guess(token_ids)
        return decoding.layout

    def note_guess(self, token_ids: Sequence[int]) -> None:
        """The last layout has been moved on already, as `guess` does."""
        assert self._decoding is not None, "no layout to move on"
        self._decoding.note_guess(token_ids)

    def confirm(self, chunks: Sequence[Chunk]) -> StepLayout | None:
        """The guessed layout if it is that of these chunks, else None."""
        decoding = self._decoding
        assert decoding is not None, "nothing was guessed"
        if decoding.version == self._table.version and decoding.confirm(chunks):
            return decoding.layout
        return None

    def take_back(self) -> None:
        """Move the layout back to where it was before the guess."""
        assert self._decoding is not None, "nothing was guessed"
        self._decoding.take_back()

    def _decode_layout(self, inputs: StepInputs, rows: list[Row], lines: Int32Array) -> StepLayout:
        num_seqs = len(rows)
        samples = SampleRows(rows=inputs.logit_rows, slots=lines, positions=inputs.seq_lens)
        nothing = ScoreRows(NO_ROWS, (), ())
        is_plain = not any(row.penalised or row.cursor is not None or row.reports for row in rows)
        succession = None
        if is_plain and inputs.greedy_limit and num_seqs <= FEW:
            succession = _succession(rows, self._table.block_size)
        return StepLayout(inputs, rows, samples, nothing, [1] * num_seqs, [0] * num_seqs, {}, succession, is_plain)

    def _fill(
        self,
        chunks: Sequence[Chunk],
        lines: Int32Array,
        starts: Int32Array,
        lengths: Int32Array,
        *,
        logit_rows: Int32Array,
    ) -> StepInputs:
        num_seqs, block_size = len(chunks), self._table.block_size
        query_starts = self._query_starts[: num_seqs + 1]
        np.cumsum(lengths, out=query_starts[1:])
        num_tokens = int(query_starts[num_seqs])
        assert num_tokens <= self._token_ids.size, f"{num_tokens} tokens in a step made for {self._token_ids.size}"
        seq_lens = np.add(starts, lengths, out=self._seq_lens[:num_seqs])
        token_ids, positions = self._token_ids[:num_tokens], self._positions[:num_tokens]
        if num_tokens == num_seqs:
            token_ids[:] = [chunk.token_ids[0] for chunk in chunks]
            positions[:] = starts
            token_lines = lines
        else:
            every = chain.from_iterable(chunk.token_ids for chunk in chunks)
            token_ids[:] = np.fromiter(every, dtype=np.int32, count=num_tokens)
            np.add(self._ramp[:num_tokens], np.repeat(starts - query_starts[:-1], lengths), out=positions)
            token_lines = np.repeat(lines, lengths)
        blocks = self._table.block_tables[token_lines, positions // block_size]
        slots = np.add(blocks * np.int32(block_size), positions % block_size, out=self._slots[:num_tokens])
        return StepInputs(
            token_ids=token_ids,
            positions=positions,
            slots=slots,
            query_starts=query_starts,
            seq_lens=seq_lens,
            block_tables=self._gather_tables(lines, seq_lens),
            logit_rows=logit_rows,
        )

    def _gather_tables(self, lines: Int32Array, seq_lens: Int32Array) -> Int32Array:
        """The tables of this step's sequences, as wide as its longest one needs and a little more."""
        width = -(-int(seq_lens.max(initial=0)) // self._table.block_size)
        width = min(-(-width // SPARE_BLOCKS) * SPARE_BLOCKS, self._table.block_tables.shape[1])
        out = self._tables[: len(lines) * width].reshape(len(lines), width)
        return np.take(self._table.block_tables[:, :width], lines, axis=0, out=out, mode="clip")


class _Decoding:
    """A decode step that may be followed by one of the same sequences."""

    def __init__(self, layout: StepLayout, moving: Int32Array, chunks: Sequence[Chunk], table: RowTable) -> None:
        self.layout = layout
        self.version = table.version  # of the rows; another one means other sequences or tables
        self._block_size = table.block_size
        self._moving = moving  # [3, R]: positions, slots, sequence lengths
        self._token_ids, self._tables = layout.inputs.token_ids, layout.inputs.block_tables
        self._slots = layout.inputs.slots
        self._cells = [memoryview(line) for line in (self._token_ids, *moving)] if len(chunks) <= FEW else None
        self._seq_ids = [chunk.seq_id for chunk in chunks]
        self._starts = [chunk.start for chunk in chunks]
        self._most = self._tables.shape[1] * self._block_size  # tokens that a row of the tables has room for
        self._guess: list[int] = []  # the next tokens that the arrays were moved on to before it was known

    def can_guess(self, token_ids: Sequence[int]) -> bool:
        """Whether the sequences are few, plain, not about to end, and have a block for their next token.

        After a greedy step whose program chooses the tokens, that program decides the same by the step's `Succession`
        (goes_on in csrc/follow.cpp), before anything here runs.
        """
        if self._cells is None or not self.layout.is_plain:
            return False
        for start, token_id, row in zip(self._starts, token_ids, self.layout.sequence_rows):
            is_last = token_id in row.last_token_ids or (row.max_len is not None and start + 2 >= row.max_len)
            if is_last or (start + 1) % self._block_size == 0:
                return False
        return True

    def guess(self, token_ids: Sequence[int]) -> None:
        """Move the arrays on."""
        self.note_guess(token_ids)
        self._step(self._guess, 1)

    def note_guess(self, token_ids: Sequence[int]) -> None:
        """The arrays have been moved on with these."""
        self._guess = list(token_ids)

    def confirm(self, chunks: Sequence[Chunk]) -> bool:
        """Whether these chunks are what was guessed."""
        is_right = (
            [chunk.token_ids for chunk in chunks] == [(token_id,) for token_id in self._guess]
            and not any([chunk.new_block_ids for chunk in chunks])
            and self.goes_on(chunks)
        )
        if is_right:
            self._starts = [chunk.start for chunk in chunks]
        return is_right

    def take_back(self) -> None:
        """Move the arrays back, all but the tokens, which every step brings anew."""
        self._step(self._guess, -1)

    def _step(self, token_ids: Sequence[int], by: int) -> None:
        """All sequences one token on, or back, within their blocks."""
        assert self._cells is not None, "only few sequences move number by number"
        tokens, *moving = self._cells
        for index, token_id in enumerate(token_ids):
            tokens[index] = token_id
            for cells in moving:
                cells[index] += by

    def goes_on(self, chunks: Sequence[Chunk]) -> bool:
        """Whether the chunks are the next token of each sequence, and the tables have room for it."""
        starts = [chunk.start - 1 for chunk in chunks]
        return (
            starts == self._starts
            and [chunk.seq_id for chunk in chunks] == self._seq_ids
            and _is_decode(chunks)
            and max(starts) + 2 <= self._most
        )

    def move_on(self, chunks: Sequence[Chunk], table: RowTable) -> None:
        """Bring the layout's arrays, and the rows' tables, to the next step."""
        self._starts = [chunk.start for chunk in chunks]
        if self._cells is None:
            self._token_ids[:] = [chunk.token_ids[0] for chunk in chunks]
            np.add(self._moving, 1, out=self._moving)
        else:
            token_ids, positions, slots, seq_lens = self._cells
            for index, chunk in enumerate(chunks):
                token_ids[index] = chunk.token_ids[0]
                positions[index] = chunk.start
                slots[index] += 1
                seq_lens[index] = chunk.start + 1
        for index, chunk in enumerate(chunks):
            if chunk.new_block_ids:
                row = self.layout.sequence_rows[index]
                table.append_blocks(row, chunk)
                end = min(row.num_blocks, self._tables.shape[1])
                self._tables[index, :end] = table.block_tables[row.slot, :end]
            if chunk.start % self._block_size == 0:
                self._slots[index] = self._tables[index, chunk.start // self._block_size] * self._block_size


def _succession(rows: Sequence[Row], block_size: int) -> Succession:
    ends = [row.last_token_ids for row in rows]
    no_limit = np.iinfo(np.int32).max
    return Succession(
        block_size=block_size,
        max_lens=np.array([no_limit if row.max_len is None else min(row.max_len, no_limit) for row in rows], np.int32),
        end_ids=np.array(list(chain.from_iterable(ends)), dtype=np.int32),
        end_starts=np.cumsum([0, *map(len, ends)], dtype=np.int32),
    )


class _OutputRows:
    """Collects, chunk by chunk, which rows of the step need outputs and what for."""

    def __init__(self) -> None:
        self.wanted: list[int] = []  # rows of the step; an index into it is an output row
        self._sample_rows: list[int] = []
        self._lines: list[int] = []
        self._sample_positions: list[int] = []
        self._drafts: list[tuple[int, ...]] = []
        self._score_rows: list[int] = []
        self._targets: list[int] = []
        self._counts: list[int] = []
        self._num_samples: list[int] = []
        self._num_scores: list[int] = []
        self._hidden: dict[int, tuple[int, int]] = {}

    def add(self, chunk: Chunk, row: Row, first: int) -> None:
        """The next chunk, whose tokens are the step's rows from `first` on."""
        length, begin = len(chunk.token_ids), len(self.wanted)
        num_samples = chunk.num_drafts + 1 if chunk.samples else 0
        targets: tuple[int, ...] = ()
        if chunk.outputs == Outputs.ALL:
            targets = row.prompt_token_ids[chunk.start + 1 : chunk.start + length + 1]
        if chunk.outputs == Outputs.HIDDEN:
            assert row.pool is not None, f"sequence {chunk.seq_id} has no pooling"
            num_rows = row.pool.num_rows(length)
            self._hidden[len(self._num_samples)] = (begin, begin + num_rows)
            self.wanted += range(first + length - num_rows, first + length)
        else:
            self.wanted += range(first, first + len(targets))
            self.wanted += range(first + length - num_samples, first + length)
        self._add_samples(chunk, row, num_samples)
        self._score_rows += range(begin, begin + len(targets))
        self._targets += targets
        self._counts += [row.num_prompt_logprobs] * len(targets)
        self._num_samples.append(num_samples)
        self._num_scores.append(len(targets))

    def _add_samples(self, chunk: Chunk, row: Row, num_samples: int) -> None:
        end, next_position = len(self.wanted), chunk.start + len(chunk.token_ids)
        guesses = chunk.token_ids[len(chunk.token_ids) - chunk.num_drafts :]
        self._sample_rows += range(end - num_samples, end)
        self._lines += [row.slot] * num_samples
        self._sample_positions += range(next_position - num_samples + 1, next_position + 1)
        self._drafts += [guesses[:j] for j in range(num_samples)]

    def layout(self, inputs: StepInputs, rows: list[Row]) -> StepLayout:
        """All of it."""
        samples = SampleRows(
            rows=np.array(self._sample_rows, dtype=np.int32),
            slots=np.array(self._lines, dtype=np.int32),
            positions=np.array(self._sample_positions, dtype=np.int32),
            drafts=tuple(self._drafts) if any(self._drafts) else (),
        )
        scores = ScoreRows(np.array(self._score_rows, dtype=np.int32), self._targets, self._counts)
        return StepLayout(inputs, rows, samples, scores, self._num_samples, self._num_scores, self._hidden)


def _is_decode(chunks: Sequence[Chunk]) -> bool:
    """Whether every chunk is one token that samples: the steady state."""
    return all([len(chunk.token_ids) == 1 and chunk.samples and chunk.outputs is Outputs.LAST for chunk in chunks])
