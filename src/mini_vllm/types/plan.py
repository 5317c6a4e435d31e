"""One step's work, decided by the scheduler and obeyed by an executor. Ints only; no tensors."""

from dataclasses import dataclass
from enum import IntEnum

import msgspec

from mini_vllm.types.params import SamplingParams
from mini_vllm.types.requests import Pooling


class Outputs(IntEnum):
    """What a chunk must produce beside KV entries."""

    NONE = 0  # the prompt is still being read
    LAST = 1  # sample after the last token (with drafts: after each of them too)
    ALL = 2  # prompt logprobs for every token of the chunk, and a sample if it ends the known tokens
    HIDDEN = 3  # final hidden states, pooled over the prompt (embeddings)


@dataclass(frozen=True, slots=True)
class Admission:
    """All that a runner must know about a sequence, sent once, before its first chunk.

    Survives preemption; dropped by `StepPlan.released`.
    """

    seq_id: int
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    eos_token_ids: tuple[int, ...]  # masked until min_tokens, with stop_token_ids
    stop_token_ids: tuple[int, ...]
    noise_key: int
    pooling: Pooling | None = None  # of chunks that ask for Outputs.HIDDEN
    cache_salt: str = ""  # what is learnt from this sequence helps those with the same salt only


class Chunk(msgspec.Struct, frozen=True, gc=False):  # made for every sequence in every step, so it must be cheap
    """Tokens of one sequence to compute in this step. A decode step is a chunk of one.

    Token i of the chunk sits at absolute position start + i and its K and V go to slot
    (table[(start + i) // block_size], (start + i) % block_size), where table is the sequence's block table after
    `new_block_ids` have been appended. It attends to positions ≤ its own.
    """

    seq_id: int
    start: int  # absolute position of token_ids[0]; equals num_computed
    token_ids: tuple[int, ...]  # the last num_drafts of them are guesses
    num_drafts: int
    new_block_ids: tuple[int, ...]  # appended to the sequence's table since its last chunk
    outputs: Outputs
    samples: bool  # whether the chunk reaches the sequence's last known token, so that a next token is sampled


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Applied in this order: released, evicted, admitted, chunks."""

    step_id: int
    chunks: tuple[Chunk, ...] = ()
    admitted: tuple[Admission, ...] = ()
    evicted: tuple[int, ...] = ()  # preempted sequences: forget the block table, keep the rest
    released: tuple[int, ...] = ()  # finished or aborted sequences: forget everything

    @property
    def num_tokens(self) -> int:
        """Rows of the forward pass."""
        return sum(len(chunk.token_ids) for chunk in self.chunks)
