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

from mini_vllm.runner.draft_length import Account, DraftLength, prices, worth
from mini_vllm.runner.rows import Row
from mini_vllm.runner.step_costs import StepCosts
from mini_vllm.runner.text_drafters import History, TextDrafter
from mini_vllm.types import Chunk, SequenceOutput, StepPlan


@dataclass(slots=True)
class Wanted:
    """Guesses to be made: up to `most` tokens after the history of one sequence."""

    row: Row
    history: History
    most: int


class Drafter(Protocol):
    """Guesses for many sequences at once.

    `expected`: for each kind of evidence the share of guesses that stand, before any was measured. `may_nap`: it need
    not follow steps in which nobody is guessed for. `stake`: steps whose time may be lost at once to see what it is
    worth.
    """

    expected: tuple[float, ...]
    may_nap: bool
    stake: float

    def look(self, history: History, most: int) -> int | None:
        """What speaks for guesses now, an index of `expected`; None: nothing. Costs next to no time."""

    def propose(self, wanted: Sequence[Wanted]) -> list[tuple[int, ...]]:
        """For each: guesses, as many as asked for, fewer or none."""

    def follow(self, chunk: Chunk, row: Row) -> None:
        """A chunk was computed by the target model; `row` has its blocks."""

    def end(self, history: History, row: Row) -> None:
        """A sequence is over."""


class FromText:
    """A `TextDrafter` as a `Drafter`."""

    may_nap = True
    stake = 2.0

    def __init__(self, drafter: TextDrafter) -> None:
        self.expected = drafter.expected
        self._drafter = drafter
        self._found: dict[int, tuple[int, ...]] = {}  # id of a history -> guesses of the last look

    def look(self, history: History, most: int) -> int | None:
        """See `Drafter.look`."""
        guess = self._drafter.propose(history, most)
        if guess is None:
            return None
        self._found[id(history)] = guess.token_ids
        return guess.kind

    def propose(self, wanted: Sequence[Wanted]) -> list[tuple[int, ...]]:
        """See `Drafter.propose`: what the looks before it found."""
        guesses = [self._found[id(each.history)][: each.most] for each in wanted]
        self._found.clear()
        return guesses

    def follow(self, chunk: Chunk, row: Row) -> None:
        """Text drafters have no cache to keep."""

    def end(self, history: History, row: Row) -> None:
        """See `Drafter.end`."""
        self._found.pop(id(history), None)
        self._drafter.end(history)


@dataclass(slots=True)
class _Sequence:
    history: History
    lengths: dict[int, DraftLength]  # by kind of evidence
    kind: int = 0  # of the last guesses
    is_guessed: bool = False  # for, in the last step


_Live = tuple[int, Row, _Sequence]  # index of its output


class Drafting:
    """Keeps the history and the draft lengths of every live sequence that may be guessed for.

    `most`: guesses per sequence and step; none reach beyond `max_model_len` tokens. `adaptive` False always asks for
    that many, for tests and measurements.
    """

    _DULL, _NAP = 16, 4  # after so many steps without guesses it wakes up in every fourth only
    _PLAIN_EVERY = 128  # steps: guesses are left out of one, so that a step without them has a price

    def __init__(
        self,
        drafter: Drafter,
        *,
        most: int,
        max_model_len: int,
        adaptive: bool = True,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.costs = StepCosts()
        self.account = Account(drafter.stake)
        self._drafter = drafter
        self._most = most
        self.max_model_len = max_model_len
        self._adaptive = adaptive
        self._clock = clock
        self._sequences: dict[int, _Sequence] = {}
        self._began = 0.0
        self._shares = list(drafter.expected)  # of guesses that stood, over all sequences; what a new one begins with
        self._num_dull = self._num_guessing = 0  # last steps in a row without guesses, or with them

    def begin_step(self, plan: StepPlan, row_of: Callable[[int], Row | None]) -> None:
        """Before rows change: forget what was released, begin what was admitted."""
        self._began = self._clock()
        for seq_id in plan.released:
            self._end(seq_id, row_of(seq_id))
        for admission in plan.admitted:
            self._num_dull = 0
            if admission.params.speculation:
                history = History(admission.prompt_token_ids, admission.cache_salt)
                self._sequences[admission.seq_id] = _Sequence(history, {})

    def clear(self) -> None:
        """Forget every sequence."""
        self._sequences.clear()

    def end_step(
        self, chunks: Sequence[Chunk], rows: Sequence[Row], outputs: Sequence[SequenceOutput]
    ) -> tuple[SequenceOutput, ...]:
        """The step's outputs with guesses for the next one. `rows`: one for each chunk."""
        if self._naps(chunks):
            for output in outputs:
                if (sequence := self._sequences.get(output.seq_id)) is not None:
                    sequence.history.extend(output.token_ids)
            return tuple(outputs)
        now = self._clock()
        made = {output.seq_id: index for index, output in enumerate(outputs)}
        live, gained = list[_Live](), 0
        for chunk, row in zip(chunks, rows):
            self._drafter.follow(chunk, row)
            index, sequence = made.get(chunk.seq_id), self._sequences.get(chunk.seq_id)
            if index is None or sequence is None or not outputs[index].token_ids:
                continue
            output = outputs[index]
            sequence.history.extend(output.token_ids)
            if chunk.num_drafts:
                gained += self._observe_guesses(sequence, chunk, output)
            if not output.complete and output.error is None:
                live.append((index, row, sequence))
        self._observe_step(chunks, now - self._began, gained)
        if not self._may_guess(live):
            return tuple(outputs)
        guessed = self._guess(outputs, live)
        if self._adaptive:
            self.account.spend(self._clock() - now)
        return guessed

    def _naps(self, chunks: Sequence[Chunk]) -> bool:
        """Nothing was worth guessing lately: most steps are let pass, so that looking costs next to nothing."""
        if not self._sequences:
            return self._drafter.may_nap
        if not self._adaptive:
            return False
        self._num_dull += 1
        if self._num_dull <= self._DULL or self._num_dull % self._NAP == 0 or not self._drafter.may_nap:
            return False
        return all(len(chunk.token_ids) == 1 for chunk in chunks)

    def _may_guess(self, live: Sequence[_Live]) -> bool:
        if not live or not self._adaptive:
            return bool(live)
        if self.account.allows and self.costs.knows(len(live)):
            self._num_guessing = 0 if self._num_guessing >= self._PLAIN_EVERY else self._num_guessing + 1
            if self._num_guessing:
                return True
        for _, _, sequence in live:
            sequence.is_guessed = False
        return False

    def _guess(self, outputs: Sequence[SequenceOutput], live: Sequence[_Live]) -> tuple[SequenceOutput, ...]:
        wanted, where = list[Wanted](), list[int]()
        is_steady, num_rows = True, len(live)
        for index, row, sequence in live:
            length = self._length(sequence, num_sequences=len(live), num_rows=num_rows)
            length = min(length, self.max_model_len - sequence.history.length - 1)
            if length < 1:
                sequence.is_guessed = False
                continue
            wanted.append(Wanted(row, sequence.history, length))
            where.append(index)
            num_rows += length
            is_steady, sequence.is_guessed = is_steady and sequence.is_guessed, True
        if not wanted:
            self._num_guessing = 0
            return tuple(outputs)
        self._num_dull = 0
        began = self._clock()
        guesses = self._drafter.propose(wanted)
        if is_steady:  # otherwise it read first what it had missed
            self.costs.observe_guesses(sum(each.most for each in wanted), self._clock() - began)
        result = list(outputs)
        for index, guess in zip(where, guesses):
            if guess:
                result[index] = replace(result[index], next_drafts=guess)
        return tuple(result)

    def _length(self, sequence: _Sequence, *, num_sequences: int, num_rows: int) -> int:
        """How many guesses to make for a sequence; 0 too where there is nothing to guess from."""
        kind = self._drafter.look(sequence.history, self._most)
        if kind is None:
            return 0
        sequence.kind = kind
        if not self._adaptive:
            return self._most
        length = sequence.lengths.get(kind)
        if length is None:
            length = sequence.lengths[kind] = DraftLength(self._most, self._shares[kind])
        costs = prices(self.costs, self._most, num_sequences=num_sequences, num_rows=num_rows)
        return length.choose(costs, num_sequences=num_sequences)

    def _observe_step(self, chunks: Sequence[Chunk], seconds: float, gained: int) -> None:
        """Steps in which every sequence decodes say what rows cost, and what guesses brought: `gained` tokens."""
        num_rows = 0
        for chunk in chunks:
            if len(chunk.token_ids) != 1 + chunk.num_drafts or not chunk.samples:
                return
            num_rows += len(chunk.token_ids)
        if not num_rows:
            return
        self.costs.observe(num_rows, seconds)
        plain = self.costs.seconds(len(chunks))
        cost = min(seconds, 2 * self.costs.seconds(num_rows)) - plain if num_rows > len(chunks) else 0.0
        self.account.book(plain, cost=cost, gain=gained * worth(self.costs, len(chunks)))

    def _observe_guesses(self, sequence: _Sequence, chunk: Chunk, output: SequenceOutput) -> int:
        """How many stood."""
        num_accepted = min(len(output.token_ids) - 1, chunk.num_drafts)
        if sequence.kind in sequence.lengths:
            sequence.lengths[sequence.kind].observe(chunk.num_drafts, num_accepted)
        tested = min(chunk.num_drafts, num_accepted + 1)
        self._shares[sequence.kind] += 0.02 * (num_accepted - self._shares[sequence.kind] * tested)
        return num_accepted

    def _end(self, seq_id: int, row: Row | None) -> None:
        sequence = self._sequences.pop(seq_id, None)
        if sequence is not None and row is not None:
            self._drafter.end(sequence.history, row)
