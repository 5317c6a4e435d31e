"""A second model that guesses: smaller, or the first layers of the target itself.

It has K and V of its own over the same block ids, and some spare blocks for guesses beyond a sequence's last block. For
every block a count says how many of its tokens the draft model has computed: blocks found in the prefix cache keep
theirs, fresh ones begin at 0. Before it guesses it catches up, in one ragged pass over all sequences; each guess is one
more pass. It draws with the target's own keyed noise, so that it agrees whenever its distribution does.

Must not know the scheduler or how guesses are verified.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mini_vllm.kernels.inputs import StepInputs
from mini_vllm.kernels.table import Program
from mini_vllm.runner.drafting import Wanted
from mini_vllm.runner.rows import Row, RowTable
from mini_vllm.runner.text_drafters import History
from mini_vllm.sampling import Sampler
from mini_vllm.types import Chunk

Int32Array = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]


def spare_blocks(most: int, block_size: int) -> int:
    """Blocks of its own that each sequence needs for `most` guesses and the token before them."""
    return -(-(most + 1) // block_size) + 1


class ModelDrafter:
    """See `runner.drafting.Drafter`.

    `program` reads a store of num_blocks + capacity * spare_blocks(most, block_size) blocks, where capacity is the most
    rows that `rows` ever has. `limits`: most tokens and sequences of its steps. `vocab_sizes`: the target's and its
    own. Logits are cut or filled up with -inf to the target's; tokens that it does not know are read as token 0.
    """

    expected: tuple[float, ...] = (0.7,)
    may_nap = False  # it must know of every fresh block
    stake = 16.0  # it reads the prompt before its first guess

    def __init__(
        self,
        program: Program,
        sampler: Sampler,
        rows: RowTable,
        *,
        num_blocks: int,
        most: int,
        limits: tuple[int, int],
        vocab_sizes: tuple[int, int],
    ) -> None:
        self._program, self._sampler, self._rows = program, sampler, rows
        self._block_size = rows.block_size
        max_tokens, max_rows = limits
        self._capacity = max_rows  # lines that have spare blocks
        self._num_blocks, self._spare = num_blocks, spare_blocks(most, rows.block_size)
        self._max_tokens = max_tokens
        self._max_rows = min(max_rows, program.max_logit_rows)
        self._vocab_size, self._own_vocab_size = vocab_sizes
        self._computed: Int32Array = np.zeros(num_blocks, dtype=np.int32)  # tokens of each block
        self._guessed: dict[int, tuple[int, tuple[int, ...]]] = {}  # slot -> where guesses began, and they

    def follow(self, chunk: Chunk, row: Row) -> None:
        """Fresh blocks hold nothing yet."""
        if not chunk.new_block_ids:
            return
        first = row.num_blocks - len(chunk.new_block_ids)
        fresh = max(0, -(-chunk.start // self._block_size) - first)  # the blocks before it were found in the cache
        self._computed[list(chunk.new_block_ids[fresh:])] = 0
        self._guessed.pop(row.slot, None)

    def end(self, history: History, row: Row) -> None:
        """See `Drafter.end`."""
        self._guessed.pop(row.slot, None)

    def look(self, history: History, most: int) -> int | None:
        """See `Drafter.look`: it always has a guess."""
        return 0

    def propose(self, wanted: Sequence[Wanted]) -> list[tuple[int, ...]]:
        """See `Drafter.propose`."""
        found: list[tuple[int, ...]] = [()] * len(wanted)
        able = [i for i, each in enumerate(wanted) if each.row.slot < self._capacity]
        for start in range(0, len(able), self._max_rows):
            part = able[start : start + self._max_rows]
            for i, guess in zip(part, self._propose([wanted[i] for i in part])):
                found[i] = guess
        return found

    def _propose(self, wanted: Sequence[Wanted]) -> list[tuple[int, ...]]:
        guesses: list[list[int]] = [[] for _ in wanted]
        chunks = [self._owed(each) for each in wanted]
        self._catch_up(wanted, chunks)
        live = list(range(len(wanted)))
        while live:
            starts = [chunks[i][0] for i in live]
            tokens = [chunks[i][1] for i in live]
            logits = self._run([wanted[i].row for i in live], starts, tokens, with_logits=True)
            chosen, _ = self._sampler.sample(
                logits,
                np.arange(len(live), dtype=np.int32),
                slots=np.array([wanted[i].row.slot for i in live], dtype=np.int32),
                positions=np.array([wanted[i].history.length + len(guesses[i]) for i in live], dtype=np.int32),
                drafts=[tuple(guesses[i]) for i in live],
            )
            for i, token in zip(live, chosen):
                chunks[i] = (chunks[i][0] + len(chunks[i][1]), [token])
                guesses[i].append(token)
            live = [i for i in live if len(guesses[i]) < wanted[i].most]
        for each, guess in zip(wanted, guesses):
            self._book(each, tuple(guess))
        return [tuple(guess) for guess in guesses]

    def _owed(self, wanted: Wanted) -> tuple[int, list[int]]:
        """Position and tokens that the draft model has not computed of what is known; at least the last."""
        history, row, size = wanted.history, wanted.row, self._block_size
        self._count_guesses(wanted)
        blocks = self._rows.block_tables[row.slot, : row.num_blocks]
        counts = self._computed[blocks]
        short = np.flatnonzero(counts < size)
        computed = int(short[0]) * size + int(counts[short[0]]) if short.size else row.num_blocks * size
        start = min(computed, history.length - 1)
        return start, history.tokens[start:]

    def _count_guesses(self, wanted: Wanted) -> None:
        """What was guessed and stood is computed already, but for the last guess."""
        begin, guess = self._guessed.pop(wanted.row.slot, (0, ()))
        stood = wanted.history.tokens[begin:]
        same = next((i for i, (a, b) in enumerate(zip(stood, guess[:-1])) if a != b), min(len(stood), len(guess) - 1))
        if guess and same:
            self._mark(wanted.row, begin, begin + same)

    def _book(self, wanted: Wanted, guess: tuple[int, ...]) -> None:
        known = wanted.history.length
        self._mark(wanted.row, 0, known)
        self._guessed[wanted.row.slot] = (known, guess)

    def _mark(self, row: Row, start: int, end: int) -> None:
        """Positions start … end of a row's own blocks are computed."""
        size = self._block_size
        end = min(end, row.num_blocks * size)
        for index in range(start // size, -(-end // size)):
            block = self._rows.block_tables[row.slot, index]
            self._computed[block] = max(self._computed[block], min(size, end - index * size))

    def _catch_up(self, wanted: Sequence[Wanted], chunks: list[tuple[int, list[int]]]) -> None:
        """Long debts (a prompt) are paid in steps that fit, until all that is left fits one."""
        room = max(1, self._max_tokens // len(wanted))
        for i, (start, tokens) in enumerate(chunks):
            while len(tokens) > room:
                part = tokens[: min(self._max_tokens, len(tokens) - 1)]
                self._run([wanted[i].row], [start], [part], with_logits=False)
                start, tokens = start + len(part), tokens[len(part) :]
            chunks[i] = (start, tokens)

    def _run(
        self, rows: Sequence[Row], starts: Sequence[int], tokens: Sequence[list[int]], *, with_logits: bool
    ) -> Float32Array:
        """Logits [R, V of the target] after the last token of each row."""
        lengths = np.array([len(each) for each in tokens], dtype=np.int32)
        ends = np.array(starts, dtype=np.int32) + lengths
        query_starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        tables = self._tables(rows, int(ends.max()))
        lines = np.repeat(np.arange(len(rows)), lengths)
        positions = np.arange(len(lines), dtype=np.int32) - np.repeat(query_starts[:-1] - np.array(starts), lengths)
        positions = positions.astype(np.int32)
        token_ids = np.array([token for each in tokens for token in each], dtype=np.int32)
        inputs = StepInputs(
            token_ids=np.where(token_ids < self._own_vocab_size, token_ids, 0),
            positions=positions,
            slots=(tables[lines, positions // self._block_size] * self._block_size + positions % self._block_size),
            query_starts=query_starts,
            seq_lens=ends,
            block_tables=tables,
            logit_rows=query_starts[1:] - 1 if with_logits else np.zeros(0, dtype=np.int32),
        )
        self._program.run(inputs)
        if not with_logits:
            return np.zeros((0, self._vocab_size), dtype=np.float32)
        return self._fit(self._program.logits(0, len(rows)))

    def _tables(self, rows: Sequence[Row], longest: int) -> Int32Array:
        """Block tables [R, blocks]: a row's own blocks, then its spare ones."""
        width = -(-longest // self._block_size)
        tables = np.zeros((len(rows), width), dtype=np.int32)
        for line, row in enumerate(rows):
            own = min(row.num_blocks, width)
            tables[line, :own] = self._rows.block_tables[row.slot, :own]
            count = min(self._spare, width - own)
            first = self._num_blocks + row.slot * self._spare
            tables[line, own : own + count] = np.arange(first, first + count)
        return tables

    def _fit(self, logits: Float32Array) -> Float32Array:
        width = logits.shape[1]
        if width >= self._vocab_size:
            return np.ascontiguousarray(logits[:, : self._vocab_size])
        padded = np.full((len(logits), self._vocab_size), -np.inf, dtype=np.float32)
        padded[:, :width] = logits
        return padded
