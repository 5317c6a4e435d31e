"""Binding of csrc/sampler.h: the same choices as `transforms`, row by row in C++.

This module must not know models, requests or the scheduler.
"""

import ctypes
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from mini_vllm.errors import MissingDependencyError
from mini_vllm.kernels.native_library import load_library
from mini_vllm.sampling.floats import Float32Array
from mini_vllm.sampling.logprobs import LOGPROB_FLOOR
from mini_vllm.sampling.state import ROW_RECORD, SamplingState, SamplingStates
from mini_vllm.sampling.transforms import Bits
from mini_vllm.types import TokenLogprobs

Int32Array = npt.NDArray[np.int32]


class _Logits(ctypes.Structure):
    """`mv_logits`."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("stride", ctypes.c_int64),
        ("rows", ctypes.c_void_p),
        ("num_rows", ctypes.c_int32),
        ("vocab", ctypes.c_int32),
    )


class _Scores(ctypes.Structure):
    """`mv_scores`."""

    _fields_ = (
        ("token_ids", ctypes.c_void_p),
        ("counts", ctypes.c_void_p),
        ("max_count", ctypes.c_int32),
        ("limit", ctypes.c_int32),
        ("floor", ctypes.c_float),
        ("logprobs", ctypes.c_void_p),
        ("ranks", ctypes.c_void_p),
        ("top_ids", ctypes.c_void_p),
        ("top_logprobs", ctypes.c_void_p),
    )


class _Call:
    """What the library is told of rows and their records, kept while the arrays and records stay the same."""

    def __init__(self, logits: Float32Array, rows: Int32Array, states: SamplingStates, slots: Int32Array) -> None:
        self._logits, self._rows, self._slots = logits, rows, slots
        self._states, self._version = states, states.version
        self.records = states.records[slots]
        self.positions = self.records["position"]
        self.tokens = np.empty(len(self.records), dtype=np.int32)
        self.arguments = (ctypes.byref(_describe(logits, rows)), self.records.ctypes.data, self.tokens.ctypes.data)

    def fits(self, logits: Float32Array, rows: Int32Array, states: SamplingStates, slots: Int32Array) -> bool:
        """Whether these are the very arrays that it was made for, and no record has changed since."""
        return (
            logits is self._logits
            and rows is self._rows
            and slots is self._slots
            and states is self._states
            and states.version == self._version
        )


class Team(Protocol):
    """The compute threads of the native device."""

    handle: int  # address of an mv_team; valid while this object lives


class NativeBackend:
    """The sampler of our library. `team`: threads that share the rows; None: the caller's alone.

    Not reentrant with anything else that runs on the same team.
    """

    name = "native"

    def __init__(self, library: ctypes.CDLL, *, team: Team | None = None) -> None:
        self._threads = team  # kept alive
        self._team = ctypes.c_void_p(None if team is None else team.handle)
        self._call: _Call | None = None  # the last one
        self._sample, self._score = library.mv_sample, library.mv_score
        self._sample.argtypes = (ctypes.c_void_p, ctypes.POINTER(_Logits), ctypes.c_void_p, ctypes.c_void_p)
        self._score.argtypes = (ctypes.c_void_p, ctypes.POINTER(_Logits), ctypes.POINTER(_Scores))
        self._sample.restype = self._score.restype = None
        assert library.mv_sampler_row_bytes() == ROW_RECORD.itemsize, "ROW_RECORD and mv_sampler_row differ"

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
        call = self._call
        if call is None or not call.fits(logits, rows, states, slots):
            call = self._call = _Call(logits, rows, states, slots)
        call.positions[:] = positions
        if grammars:
            call.records["grammar"] = [_address(bits, logits.shape[1], states.limit) for bits in grammars]
            self._call = None
        self._sample(self._team, *call.arguments)
        tokens: list[int] = call.tokens.tolist()
        return tokens

    def choose_one(
        self, logits: Float32Array, row: int, state: SamplingState, position: int, *, grammar: Bits | None = None
    ) -> int:
        """See `SamplerBackend`."""
        records = np.zeros(1, dtype=ROW_RECORD)
        state.fill(records[0])
        records["position"] = position
        records["grammar"] = _address(grammar, logits.shape[1], state.limit)
        tokens = np.empty(1, dtype=np.int32)
        rows = np.array([row], dtype=np.int32)
        described = _describe(logits, rows)
        self._sample(self._team, ctypes.byref(described), records.ctypes.data, tokens.ctypes.data)
        return int(tokens[0])

    def score(
        self, logits: Float32Array, rows: Int32Array, token_ids: Sequence[int], counts: Sequence[int], *, limit: int
    ) -> list[TokenLogprobs]:
        """See `SamplerBackend`."""
        num_rows, widest = len(rows), max(counts, default=0)
        tokens, wanted = np.array(token_ids, dtype=np.int32), np.array(counts, dtype=np.int32)
        assert tokens.size == wanted.size == num_rows, "one token and count for each row"
        assert tokens.min(initial=0) >= 0 and tokens.max(initial=0) < logits.shape[1], "token id outside the logits"
        values, ranks = np.empty(num_rows, dtype=np.float32), np.empty(num_rows, dtype=np.int32)
        top_ids = np.empty((num_rows, widest), dtype=np.int32)
        top_values = np.empty((num_rows, widest), dtype=np.float32)
        scores = _Scores(
            tokens.ctypes.data, wanted.ctypes.data, widest, limit, LOGPROB_FLOOR, values.ctypes.data,
            ranks.ctypes.data, top_ids.ctypes.data, top_values.ctypes.data,
        )  # fmt: skip
        self._score(self._team, _describe(logits, rows), scores)
        return [
            TokenLogprobs(
                token_id=token,
                logprob=value,
                rank=rank,
                top=tuple([(i, top) for i, top in zip(ids[:count], tops) if i >= 0]),
            )
            for token, value, rank, ids, tops, count in zip(
                token_ids, values.tolist(), ranks.tolist(), top_ids.tolist(), top_values.tolist(), counts
            )
        ]


def load_backend(*, required: bool, team: Team | None = None) -> NativeBackend | None:
    """The native sampler; where our library is absent, None or (required) a `MissingDependencyError`."""
    try:
        return NativeBackend(load_library(), team=team)
    except MissingDependencyError:
        if required:
            raise
        return None


def _address(bits: Bits | None, vocab: int, limit: int) -> int:
    """Where a row's bits are, which the caller keeps alive; 0 if it has none."""
    if bits is None:
        return 0
    assert bits.dtype == np.uint32 and bits.flags.c_contiguous, "grammar bits must be contiguous uint32"
    assert bits.size * 32 >= min(vocab, limit), "grammar bits do not cover the vocabulary"
    return bits.ctypes.data


def _describe(logits: Float32Array, rows: Int32Array) -> _Logits:
    """The C view of some rows of logits [L, V]."""
    num_rows, vocab = logits.shape
    assert logits.dtype == np.float32 and logits.strides[1] == 4, "logits must be float32 rows"
    assert rows.dtype == np.int32 and rows.flags.c_contiguous, "rows must be contiguous int32"
    assert rows.min(initial=0) >= 0 and rows.max(initial=-1) < num_rows, "row outside the logits"
    return _Logits(logits.ctypes.data, logits.strides[0] // 4, rows.ctypes.data, len(rows), vocab)
