"""An executor without weights: its next token is a pure function of the tokens before it.

It keeps a "KV cache" in which a slot holds what attention would need to know: the token, its position, and a digest of
the whole prefix as found through the block table at that time. So a plan that addresses a wrong, stale or overwritten
block fails at once, or yields tokens other than `continuation` of the request run alone.

This module must not know the scheduler or the inside of the KV cache.
"""

from dataclasses import dataclass, field

from mini_vllm.types import Admission, Chunk, Outputs, Request, SequenceOutput, StepPlan, StepResult, TokenLogprobs

_MASK = (1 << 61) - 1


def digest(prefix: int, token_id: int) -> int:
    """The digest of a sequence that ends in token_id, from the digest of what comes before it (0: nothing)."""
    mixed = (prefix * 6364136223846793005 + token_id * 1442695040888963407 + 1) & _MASK
    return mixed ^ (mixed >> 29)


@dataclass(slots=True)
class _Row:
    """What a runner keeps of a sequence."""

    admission: Admission
    token_ids: list[int]  # prompt and output
    num_computed: int = 0
    table: list[int] = field(default_factory=list)


class FakeExecutor:
    """Runs plans and checks that each obeys the contract of `StepPlan` (AssertionError if not)."""

    def __init__(
        self, *, num_blocks: int, block_size: int, vocab_size: int = 97, num_drafts: int = 0, check_kv: bool = True
    ) -> None:
        """`num_drafts`: guesses offered after every sample, some of them wrong. `check_kv`: read all of every
        sequence's prefix at every chunk, rather than the last slot only."""
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.vocab_size = vocab_size
        self.num_drafts = num_drafts
        self.check_kv = check_kv
        self.rows: dict[int, _Row] = {}
        self._slots: dict[int, tuple[int, int]] = {}  # slot -> (token id, digest of the prefix that ends there)

    def run(self, plan: StepPlan) -> StepResult:
        """Obey a plan: released, evicted, admitted, chunks."""
        for seq_id in plan.released:
            del self.rows[seq_id]
        for seq_id in plan.evicted:
            row = self.rows[seq_id]
            row.table, row.num_computed = [], 0
        for admission in plan.admitted:
            assert admission.seq_id not in self.rows, f"sequence {admission.seq_id} is admitted twice"
            self.rows[admission.seq_id] = _Row(admission, list(admission.prompt_token_ids))
        self._check_plan(plan)
        written = [self._write(chunk) for chunk in plan.chunks]  # all K and V, then all that reads them
        outputs = [self._output(chunk, digests) for chunk, digests in zip(plan.chunks, written, strict=True)]
        return StepResult(step_id=plan.step_id, outputs=tuple(output for output in outputs if output is not None))

    def reset(self) -> None:
        """Forget every sequence and the cache's contents, as after construction."""
        self.rows.clear()
        self._slots.clear()

    def continuation(self, request: Request, *, max_seq_len: int = 1 << 30) -> list[int]:
        """The output tokens of a request when it runs alone."""
        admission = Admission(-1, (), request.params, request.eos_token_ids, request.stop_token_ids, 0)
        prefix, token_ids = 0, list[int]()
        for token_id in request.prompt_token_ids:
            prefix = digest(prefix, token_id)
        limit = min(request.max_tokens, max_seq_len - len(request.prompt_token_ids))
        while len(token_ids) < limit:
            token_ids.append(self._next(prefix, admission, len(token_ids)))
            may_stop = len(token_ids) > request.params.min_tokens
            if may_stop and token_ids[-1] in (*request.eos_token_ids, *request.stop_token_ids):
                break
            prefix = digest(prefix, token_ids[-1])
        return token_ids

    def _check_plan(self, plan: StepPlan) -> None:
        assert len({chunk.seq_id for chunk in plan.chunks}) == len(plan.chunks), "two chunks of one sequence"
        for chunk in plan.chunks:
            row = self.rows[chunk.seq_id]
            row.table += chunk.new_block_ids
            assert all(0 <= block_id < self.num_blocks for block_id in chunk.new_block_ids), "no such block"
            num_guesses, num_tokens = chunk.num_drafts, len(chunk.token_ids)
            end = chunk.start + num_tokens - num_guesses
            assert 0 <= num_guesses < num_tokens, "a chunk needs a token that is not a guess"
            assert not num_guesses or chunk.samples, "guesses follow the last known token"
            known = tuple(row.token_ids[chunk.start : end])
            assert chunk.token_ids[: num_tokens - num_guesses] == known, f"wrong tokens for sequence {chunk.seq_id}"
            assert len(row.table) * self.block_size >= end + num_guesses, "no block for the last token of the chunk"
            assert row.num_computed in (0, chunk.start), "the chunk does not start where the sequence has got to"
            assert not chunk.samples or end == len(row.token_ids), "sampled before the last known token"
        self._check_writes(plan)

    def _check_writes(self, plan: StepPlan) -> None:
        """No block that a chunk writes to is in any other table."""
        holders: dict[int, int] = {}
        for row in self.rows.values():
            assert len(set(row.table)) == len(row.table), "a block twice in a table"
            for block_id in row.table:
                holders[block_id] = holders.get(block_id, 0) + 1
        for chunk in plan.chunks:
            first = chunk.start // self.block_size
            last = (chunk.start + len(chunk.token_ids) - 1) // self.block_size
            for block_id in self.rows[chunk.seq_id].table[first : last + 1]:
                assert holders[block_id] == 1, f"sequence {chunk.seq_id} writes to block {block_id}, which is shared"

    def _write(self, chunk: Chunk) -> list[int]:
        """Fill the chunk's slots; the digest at each of its tokens."""
        row, digests = self.rows[chunk.seq_id], list[int]()
        prefix = self._slots[self._slot(row, chunk.start - 1)][1] if chunk.start else 0
        if self.check_kv:
            held = [self._slots[self._slot(row, i)][0] for i in range(chunk.start)]
            assert held == row.token_ids[: chunk.start], f"the cache of sequence {chunk.seq_id} holds other tokens"
        for i, token_id in enumerate(chunk.token_ids, chunk.start):
            prefix = digest(prefix, token_id)
            self._slots[self._slot(row, i)] = (token_id, prefix)
            digests.append(prefix)
        row.num_computed = chunk.start + len(chunk.token_ids) - chunk.num_drafts
        return digests

    def _slot(self, row: _Row, position: int) -> int:
        return row.table[position // self.block_size] * self.block_size + position % self.block_size

    def _output(self, chunk: Chunk, digests: list[int]) -> SequenceOutput | None:
        if chunk.outputs is Outputs.NONE:
            return None
        row, token_ids, logprobs = self.rows[chunk.seq_id], list[int](), list[TokenLogprobs]()
        num_output = len(row.token_ids) - len(row.admission.prompt_token_ids)
        first = len(chunk.token_ids) - chunk.num_drafts - 1
        for i in range(first, len(chunk.token_ids) if chunk.samples else first):
            token_ids.append(self._next(digests[i], row.admission, num_output + len(token_ids)))
            logprobs.append(_logprobs(digests[i], token_ids[-1]))
            if i + 1 < len(chunk.token_ids) and chunk.token_ids[i + 1] != token_ids[-1]:
                break
        row.token_ids += token_ids
        row.num_computed += max(0, len(token_ids) - 1)
        return SequenceOutput(
            seq_id=chunk.seq_id,
            token_ids=tuple(token_ids),
            logprobs=() if row.admission.params.logprobs is None else tuple(logprobs),
            prompt_logprobs=self._prompt_logprobs(chunk, digests) if chunk.outputs is Outputs.ALL else (),
            hidden=self._hidden(chunk, digests),
            next_drafts=self._guess(digests[first + len(token_ids) - 1], row) if token_ids else (),
        )

    def _prompt_logprobs(self, chunk: Chunk, digests: list[int]) -> tuple[TokenLogprobs, ...]:
        prompt = self.rows[chunk.seq_id].admission.prompt_token_ids
        following = prompt[chunk.start + 1 : chunk.start + 1 + len(digests)]
        return tuple(_logprobs(prefix, token_id) for prefix, token_id in zip(digests, following, strict=False))

    def _hidden(self, chunk: Chunk, digests: list[int]) -> tuple[float, ...]:
        """The digest of the whole prompt, as a vector of one number, once all of it was seen."""
        ends = chunk.start + len(chunk.token_ids) == len(self.rows[chunk.seq_id].admission.prompt_token_ids)
        return (float(digests[-1] % 1000),) if chunk.outputs is Outputs.HIDDEN and ends else ()

    def _guess(self, prefix: int, row: _Row) -> tuple[int, ...]:
        """The true continuation, spoiled at a place that depends on it."""
        guesses = list[int]()
        num_output = len(row.token_ids) - len(row.admission.prompt_token_ids)
        for i in range(self.num_drafts):
            prefix = digest(prefix, guesses[-1] if guesses else row.token_ids[-1])
            guesses.append(self._next(prefix, row.admission, num_output + i))
        if guesses and (spoiled := prefix % (2 * self.num_drafts)) < self.num_drafts:
            guesses[spoiled] = (guesses[spoiled] + 1) % self.vocab_size
        return tuple(guesses)

    def _next(self, prefix: int, admission: Admission, num_output: int) -> int:
        """The token after a prefix; none that would end the sequence before min_tokens."""
        token_id = prefix % self.vocab_size
        masked = num_output < admission.params.min_tokens
        while masked and (token_id in admission.eos_token_ids or token_id in admission.stop_token_ids):
            token_id = (token_id + 1) % self.vocab_size
        return token_id


def _logprobs(prefix: int, token_id: int) -> TokenLogprobs:
    return TokenLogprobs(token_id, -float(digest(prefix, token_id) % 1000) / 100.0, 1)
