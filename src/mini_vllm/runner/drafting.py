"""Speculation in the runner: which sequences are guessed for, how far, and what is learnt from how it went.

    a step's outputs → histories grow, acceptance is booked → lengths are chosen → the drafter guesses → next_drafts

The scheduler carries the guesses into the next plan; `sampling.verify` says which of them stand. Guesses change when
tokens come, never which. Must not know logits, weights or the scheduler's reasons.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from msgspec.structs import replace

from mini_vllm.runner.draft_length import DraftLength, StepCosts
from mini_vllm.runner.rows import Row
from mini_vllm.runner.text_drafters import History, TextDrafter
from mini_vllm.types import Admission, Chunk, SequenceOutput, StepPlan


@dataclass(slots=True)
class Wanted:
    """Guesses to be made: up to `most` tokens after the history of one sequence."""

    row: Row
    history: History
    most: int


class Drafter(Protocol):
    """Guesses for many sequences at once."""

    def propose(self, wanted: Sequence[Wanted]) -> list[tuple[int, ...]]:
        """For each: guesses, as many as asked for, fewer or none."""

    def follow(self, chunk: Chunk, row: Row) -> None:
        """A chunk was computed by the target model; `row` has its blocks."""

    def end(self, history: History, row: Row) -> None:
        """A sequence is over."""


class FromText:
    """A `TextDrafter` as a `Drafter`."""

    def __init__(self, drafter: TextDrafter) -> None:
        self._drafter = drafter

    def propose(self, wanted: Sequence[Wanted]) -> list[tuple[int, ...]]:
        """See `Drafter.propose`."""
        return [self._drafter.propose(each.history, each.most) for each in wanted]

    def follow(self, chunk: Chunk, row: Row) -> None:
        """Text drafters have no cache to keep."""

    def end(self, history: History, row: Row) -> None:
        """See `Drafter.end`."""
        self._drafter.end(history)


@dataclass(slots=True)
class _Sequence:
    history: History
    length: DraftLength


class Drafting:
    """Keeps the history and the draft length of every live sequence that may be guessed for.

    `most`: guesses per sequence and step. `adaptive` False always asks for that many, for tests and measurements.
    """

    def __init__(
        self,
        drafter: Drafter,
        *,
        most: int,
        adaptive: bool = True,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.costs = StepCosts()
        self._drafter = drafter
        self._most = most
        self._adaptive = adaptive
        self._clock = clock
        self._sequences: dict[int, _Sequence] = {}
        self._began = 0.0
        self._share = 0.7  # of guesses that stood, over all sequences; what a new one begins with

    def begin_step(self, plan: StepPlan, row_of: Callable[[int], Row | None]) -> None:
        """Before rows change: forget what was released, begin what was admitted."""
        self._began = self._clock()
        for seq_id in plan.released:
            self._end(seq_id, row_of(seq_id))
        for admission in plan.admitted:
            self._begin(admission)

    def clear(self) -> None:
        """Forget every sequence."""
        self._sequences.clear()

    def end_step(
        self, chunks: Sequence[Chunk], rows: Sequence[Row], outputs: Sequence[SequenceOutput]
    ) -> tuple[SequenceOutput, ...]:
        """The step's outputs with guesses for the next one. `rows`: one for each chunk."""
        self._observe_step(chunks)
        made = {output.seq_id: index for index, output in enumerate(outputs)}
        wanted, where = list[Wanted](), list[int]()
        live = list[tuple[int, Row, _Sequence]]()
        for chunk, row in zip(chunks, rows):
            self._drafter.follow(chunk, row)
            index, sequence = made.get(chunk.seq_id), self._sequences.get(chunk.seq_id)
            if index is None or sequence is None or not outputs[index].token_ids:
                continue
            output = outputs[index]
            sequence.history.extend(output.token_ids)
            if chunk.num_drafts:
                self._observe_guesses(sequence, chunk.num_drafts, min(len(output.token_ids) - 1, chunk.num_drafts))
            if not output.complete and output.error is None:
                live.append((index, row, sequence))
        num_rows = num_sequences = len(live)
        for index, row, sequence in live:
            length = self._most
            if self._adaptive:
                length = sequence.length.choose(self.costs, num_sequences=num_sequences, num_rows=num_rows)
            if length:
                wanted.append(Wanted(row, sequence.history, length))
                where.append(index)
                num_rows += length
        return self._with_guesses(outputs, wanted, where) if wanted else tuple(outputs)

    def _with_guesses(
        self, outputs: Sequence[SequenceOutput], wanted: list[Wanted], where: list[int]
    ) -> tuple[SequenceOutput, ...]:
        began = self._clock()
        guesses = self._drafter.propose(wanted)
        self.costs.observe_guesses(sum(each.most for each in wanted), self._clock() - began)
        result = list(outputs)
        for index, guess in zip(where, guesses):
            if guess:
                result[index] = replace(result[index], next_drafts=guess)
        return tuple(result)

    def _observe_step(self, chunks: Sequence[Chunk]) -> None:
        """Steps in which every sequence decodes say what rows cost."""
        num_rows = 0
        for chunk in chunks:
            if len(chunk.token_ids) != 1 + chunk.num_drafts or not chunk.samples:
                return
            num_rows += len(chunk.token_ids)
        if num_rows:
            self.costs.observe(num_rows, self._clock() - self._began)

    def _observe_guesses(self, sequence: _Sequence, num_drafts: int, num_accepted: int) -> None:
        sequence.length.observe(num_drafts, num_accepted)
        tested = min(num_drafts, num_accepted + 1)
        self._share += 0.01 * (num_accepted - self._share * tested)

    def _begin(self, admission: Admission) -> None:
        if admission.params.speculation:
            history = History(admission.prompt_token_ids, admission.cache_salt)
            self._sequences[admission.seq_id] = _Sequence(history, DraftLength(self._most, self._share))

    def _end(self, seq_id: int, row: Row | None) -> None:
        sequence = self._sequences.pop(seq_id, None)
        if sequence is not None and row is not None:
            self._drafter.end(sequence.history, row)
