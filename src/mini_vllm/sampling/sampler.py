"""The sampler's door: rows of logits in, token ids and logprobs out.

One row of logits belongs to one (sequence, position): in plain decoding the position after the last token, with
drafts one row for each draft too. The native implementation is used where our library is present, else NumPy; both
give the same tokens. This module must not know models, requests or the scheduler.
"""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from mini_vllm.sampling import logprobs, transforms
from mini_vllm.sampling.floats import Float32Array
from mini_vllm.sampling.state import SamplingState, SamplingStates
from mini_vllm.sampling.transforms import Bits
from mini_vllm.types import TokenLogprobs

if TYPE_CHECKING:
    from mini_vllm.sampling.native import Team

Int32Array = npt.NDArray[np.int32]

logger = logging.getLogger(__name__)


class SamplerBackend(Protocol):
    """One implementation of the arithmetic. Rows are independent: a row's result never depends on other rows.

    `rows` [S] are the rows of logits [L, V] to look at; logits are left alone.
    """

    name: str

    def choose(
        self,
        logits: Float32Array,
        rows: Int32Array,
        states: SamplingStates,
        slots: Int32Array,
        positions: Int32Array,
        *,
        grammars: Sequence[Bits | None] = (),
    ) -> list[int]:
        """The next token of each row, at positions[i] of the sequence in slots[i].

        The same rows and slots objects again must hold the same numbers: what follows from them may be kept.

        grammars, if not empty: for each row the bits of the tokens that may be chosen, or None for all.
        """

    def choose_one(
        self, logits: Float32Array, row: int, state: SamplingState, position: int, *, grammar: Bits | None = None
    ) -> int:
        """The same for one row and a state that is in no slot."""

    def score(
        self, logits: Float32Array, rows: Int32Array, token_ids: Sequence[int], counts: Sequence[int], *, limit: int
    ) -> list[TokenLogprobs]:
        """Logprob and rank of token_ids[i] in its row, with the counts[i] likeliest alternatives."""


class NumpyBackend:
    """The reference: readable, and always there."""

    name = "numpy"

    def choose(
        self,
        logits: Float32Array,
        rows: Int32Array,
        states: SamplingStates,
        slots: Int32Array,
        positions: Int32Array,
        *,
        grammars: Sequence[Bits | None] = (),
    ) -> list[int]:
        """See `SamplerBackend`."""
        each = [states[slot] for slot in slots.tolist()]
        return transforms.choose(logits[rows], each, positions.tolist(), grammars)

    def choose_one(
        self, logits: Float32Array, row: int, state: SamplingState, position: int, *, grammar: Bits | None = None
    ) -> int:
        """See `SamplerBackend`."""
        return transforms.choose(logits[row : row + 1], [state], [position], [grammar])[0]

    def score(
        self, logits: Float32Array, rows: Int32Array, token_ids: Sequence[int], counts: Sequence[int], *, limit: int
    ) -> list[TokenLogprobs]:
        """See `SamplerBackend`."""
        return logprobs.score(logits[rows], token_ids, counts, limit=limit)


class Sampler:
    """Chooses tokens. `limit`: ids at or above it are padding of the vocabulary, never chosen nor listed."""

    def __init__(self, backend: SamplerBackend, *, limit: int) -> None:
        self.backend = backend
        self.limit = limit
        self.states = SamplingStates(limit=limit)
        self._has_warned = False  # of logits that are not numbers

    def sample(
        self,
        logits: Float32Array,
        rows: Int32Array,
        *,
        slots: Int32Array,
        positions: Int32Array,
        drafts: Sequence[tuple[int, ...]] = (),
        grammars: Sequence[Bits | None] = (),
    ) -> tuple[list[int], list[TokenLogprobs | None]]:
        """Choose from each of `rows` [S] of logits [L, V] the token at positions[i] of the sequence in slots[i].

        drafts, if given, [S]: guessed tokens between the sequence's known ones and this row, which penalties count as
        output. grammars, if given, [S]: the bits of the tokens that may be chosen, or None for all. Logprobs are None
        for sequences that did not ask. Leaves states and logits alone.
        """
        tokens = self.backend.choose(logits, rows, self.states, slots, positions, grammars=grammars)
        if 0 in tokens and not self._has_warned:  # which is also what a row gives that has no logit at all
            self._warn_of_no_numbers(logits[rows[tokens.index(0)]])
        for i, guessed in enumerate(drafts):
            state = self.states[int(slots[i])]
            if guessed and state.penalised:
                later = state.with_drafts(guessed)
                grammar = grammars[i] if grammars else None
                tokens[i] = self.backend.choose_one(logits, int(rows[i]), later, int(positions[i]), grammar=grammar)
        reports: list[TokenLogprobs | None] = [None] * len(tokens)
        counts = [self.states[slot].num_logprobs for slot in slots.tolist()] if self.states.num_reporting else []
        asked = [i for i, count in enumerate(counts) if count is not None]
        if asked:
            scores = self.score(logits, rows[asked], [tokens[i] for i in asked], [counts[i] or 0 for i in asked])
            for i, report in zip(asked, scores):
                reports[i] = report
        return tokens, reports

    def _warn_of_no_numbers(self, row: Float32Array) -> None:
        if not np.isfinite(row[0]) and not np.isfinite(row).any():
            self._has_warned = True
            logger.warning(
                "the model's logits are not numbers, so its output means nothing: its weights are broken (get the "
                "files again), or too large for their number format (try --dtype float32)"
            )

    def score(
        self, logits: Float32Array, rows: Int32Array, token_ids: Sequence[int], counts: Sequence[int]
    ) -> list[TokenLogprobs]:
        """Logprobs of given tokens (of a prompt, say), with the counts[i] likeliest alternatives."""
        return self.backend.score(logits, rows, token_ids, counts, limit=self.limit)


def make_sampler(*, limit: int, backend: str = "auto", team: "Team | None" = None) -> Sampler:
    """A sampler: "native", "numpy", or "auto" for native where our library can be loaded.

    `team`: native threads that share its rows; None: the caller's thread does them all.
    """
    if backend != "numpy":
        from mini_vllm.sampling.native import load_backend

        native = load_backend(required=backend == "native", team=team)
        if native is not None:
            return Sampler(native, limit=limit)
    return Sampler(NumpyBackend(), limit=limit)
