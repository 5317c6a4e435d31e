"""What the sampler keeps for one sequence: its parameters as arrays, and the tokens that penalties look at.

A state is a pure function of (admission, output tokens), so preemption and recomputation cannot change it.
`SamplingStates` keeps one per slot, with a flat record beside it that the native sampler reads.
This module must not know models or the scheduler.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from mini_vllm.sampling.floats import NEVER
from mini_vllm.types import Admission, SamplingParams

Int32Array = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]

GREEDY_TEMPERATURE = 1e-3
"""At or below it a row is greedy: all but near ties of 0.01 logits would draw the likeliest token anyway."""

# The C struct `SamplerRow` of csrc/sampler.h, field by field.
ROW_RECORD = np.dtype(
    [
        ("noise_key", np.uint64),
        ("allowed", np.uint64),  # addresses of int32 or float32 arrays that the state owns
        ("banned", np.uint64),
        ("early", np.uint64),
        ("bias_ids", np.uint64),
        ("bias_values", np.uint64),
        ("seen_ids", np.uint64),
        ("seen_counts", np.uint64),
        ("grammar", np.uint64),  # a bit mask over the vocabulary; 0: none; set for each step
        ("top_p", np.float64),
        ("num_allowed", np.int32),  # -1: all
        ("num_banned", np.int32),
        ("num_early", np.int32),
        ("num_bias", np.int32),
        ("num_seen", np.int32),  # 0: no penalties
        ("early_until", np.int32),  # positions below it mask the `early` tokens
        ("repetition", np.float32),
        ("presence", np.float32),
        ("frequency", np.float32),
        ("inv_temperature", np.float32),  # 0: greedy
        ("log_min_p", np.float32),  # -inf: off
        ("top_k", np.int32),  # 0: off
        ("limit", np.int32),  # ids at or above it are never chosen
        ("fallback_id", np.int32),
        ("position", np.int32),  # of the token being chosen; set for each step
        ("padding", np.int32),
    ]
)


class SamplingState:
    """One sequence's sampling parameters and penalty counts. `limit`: ids at or above it are never chosen."""

    def __init__(self, admission: Admission, *, limit: int) -> None:
        params = admission.params
        self.params: SamplingParams = params
        self.num_logprobs = params.logprobs
        self.limit = limit
        self.noise_key = admission.noise_key % 2**64
        self.greedy = params.greedy or params.temperature <= GREEDY_TEMPERATURE
        self.inv_temperature = np.float32(0.0 if self.greedy else 1.0 / params.temperature)
        self.top_k = max(params.top_k, 0)
        self.top_p = params.top_p
        self.log_min_p = np.float32(math.log(params.min_p)) if params.min_p > 0 else NEVER
        self.repetition = np.float32(max(params.repetition_penalty, 1e-30))  # never 0: -inf * 0 is NaN
        self.presence = np.float32(params.presence_penalty)
        self.frequency = np.float32(params.frequency_penalty)
        self.penalised = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) != (1.0, 0, 0)
        allowed = params.allowed_token_ids
        self.allowed = None if allowed is None else _ids(allowed, limit)
        self.banned = _ids(params.bad_token_ids, limit)
        self.early = _ids((*admission.eos_token_ids, *admission.stop_token_ids), limit)
        bias = {i: value for i, value in sorted(params.logit_bias.items()) if i < limit}
        self.bias_ids = np.array(list(bias), dtype=np.int32)
        self.bias_values = np.array(list(bias.values()), dtype=np.float32)
        self.prompt_len = len(admission.prompt_token_ids)
        self.early_until = self.prompt_len + params.min_tokens if self.early.size else 0
        self.takes_largest = self.greedy and not (
            self.penalised
            or params.allowed_token_ids is not None
            or self.banned.size
            or bias
            or self.num_logprobs is not None
            or (params.min_tokens and self.early.size)
        )  # of the logits as they are, and nothing else is read of them
        self.fallback_id = self._choose_fallback()
        self._start_counts(admission.prompt_token_ids)

    def is_early(self, position: int) -> bool:
        """Whether the token at this position would come before min_tokens, so that EOS and stop tokens are masked."""
        return position < self.early_until

    def observe(self, token_ids: Iterable[int]) -> None:
        """Count output tokens, for the penalties."""
        if not self.penalised:
            return
        for token_id in token_ids:
            if token_id >= self.limit:
                continue
            index = self._index.get(token_id)
            if index is None:
                index = self._add_seen(token_id)
            self.seen_counts[index] += 1

    def with_drafts(self, token_ids: Sequence[int]) -> "SamplingState":
        """The state as it would be after these tokens too: a verification row sees history + the drafts before it."""
        if not (self.penalised and token_ids):
            return self
        copy: SamplingState = object.__new__(SamplingState)
        copy.__dict__.update(self.__dict__)
        copy.seen_ids, copy.seen_counts = self.seen_ids.copy(), self.seen_counts.copy()
        copy._index = dict(self._index)
        copy.observe(token_ids)
        return copy

    def fill(self, record: np.void) -> None:
        """Write the record that the native sampler reads; valid while this state lives and until `observe` grows it."""
        for name in ("noise_key", "top_p", "early_until", "repetition", "presence", "frequency", "inv_temperature"):
            record[name] = getattr(self, name)
        for name in ("log_min_p", "top_k", "limit", "fallback_id"):
            record[name] = min(getattr(self, name), 2**31 - 1)
        record["num_allowed"] = -1 if self.allowed is None else self.allowed.size
        record["allowed"] = 0 if self.allowed is None else self.allowed.ctypes.data
        record["num_banned"], record["banned"] = self.banned.size, self.banned.ctypes.data
        record["num_early"], record["early"] = self.early.size, self.early.ctypes.data
        record["num_bias"], record["bias_ids"] = self.bias_ids.size, self.bias_ids.ctypes.data
        record["bias_values"] = self.bias_values.ctypes.data
        self.fill_seen(record)

    def fill_seen(self, record: np.void) -> None:
        """The part of the record that `observe` may change."""
        record["num_seen"] = self.num_seen
        record["seen_ids"], record["seen_counts"] = self.seen_ids.ctypes.data, self.seen_counts.ctypes.data

    def _choose_fallback(self) -> int:
        """What to answer when nothing can be chosen (a model that gives -inf or NaN for all that is allowed).

        Where only ending tokens are allowed, min_tokens gives way: nothing else could be said.
        """
        banned, early = set(self.banned.tolist()), set(self.early.tolist())
        candidates: Sequence[int] = range(self.limit) if self.allowed is None else self.allowed.tolist()
        fallback = next((i for i in candidates if i not in banned and i not in early), None)
        if fallback is None:
            self.early_until = 0
            fallback = next((i for i in candidates if i not in banned), None)
        if fallback is None:
            fallback = next(iter(candidates), 0)
        return fallback

    def _start_counts(self, prompt_token_ids: tuple[int, ...]) -> None:
        self._index: dict[int, int] = {}
        distinct: list[int] = []
        if self.penalised:
            distinct = [i for i in dict.fromkeys(prompt_token_ids) if i < self.limit]
            self._index = {token_id: index for index, token_id in enumerate(distinct)}
        self.num_seen = len(distinct)
        self.seen_ids: Int32Array = np.zeros(self.num_seen + 64 * self.penalised, dtype=np.int32)
        self.seen_ids[: self.num_seen] = distinct
        self.seen_counts: Int32Array = np.zeros_like(self.seen_ids)

    def _add_seen(self, token_id: int) -> int:
        index = self.num_seen
        if index == self.seen_ids.size:
            self.seen_ids = np.concatenate([self.seen_ids, np.zeros_like(self.seen_ids)])
            self.seen_counts = np.concatenate([self.seen_counts, np.zeros_like(self.seen_counts)])
        self.seen_ids[index] = token_id
        self._index[token_id] = index
        self.num_seen += 1
        return index


class SamplingStates:
    """The states of all live sequences by slot, with their records in one array [capacity] that grows by doubling."""

    def __init__(self, *, limit: int, capacity: int = 64) -> None:
        self.limit = limit
        self.records = np.zeros(capacity, dtype=ROW_RECORD)
        self._states: list[SamplingState | None] = [None] * capacity
        self.num_reporting = 0  # sequences that want logprobs
        self.version = 0  # changes with every change of a record

    def __getitem__(self, slot: int) -> SamplingState:
        state = self._states[slot]
        assert state is not None, f"slot {slot} is empty"
        return state

    def admit(self, slot: int, admission: Admission) -> SamplingState:
        """Start a sequence at a free slot."""
        self.version += 1
        while slot >= len(self._states):
            self.records = np.concatenate([self.records, np.zeros_like(self.records)])
            self._states += [None] * len(self._states)
        assert self._states[slot] is None, f"slot {slot} is taken"
        state = SamplingState(admission, limit=self.limit)
        state.fill(self.records[slot])
        self._states[slot] = state
        self.num_reporting += state.num_logprobs is not None
        return state

    def observe(self, slot: int, token_ids: Iterable[int]) -> None:
        """Count output tokens of a sequence."""
        self.version += 1
        state = self[slot]
        room = state.seen_ids.size
        state.observe(token_ids)
        if state.seen_ids.size == room:
            self.records["num_seen"][slot] = state.num_seen
        else:  # the arrays have moved
            state.fill_seen(self.records[slot])

    def drop(self, slot: int) -> None:
        """Forget a sequence; its slot is free again."""
        self.version += 1
        self.num_reporting -= self[slot].num_logprobs is not None
        self._states[slot] = None
        self.records[slot] = np.zeros((), dtype=ROW_RECORD)


def _ids(token_ids: Iterable[int], limit: int) -> Int32Array:
    """Sorted, without repetition, below the limit."""
    return np.array(sorted({i for i in token_ids if i < limit}), dtype=np.int32)
