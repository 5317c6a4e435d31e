"""One step's ragged batch as arrays: what a compiled model is given to run."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class StepInputs:
    """T tokens of R sequences, laid end to end: sequence r owns rows query_starts[r] … query_starts[r+1].

    Row t of sequence r attends to positions 0 … positions[t] of r, found through block_tables[r]. All arrays are
    int32 and C-contiguous. K and V of row t are written to flat slot slots[t] = block id x block size + offset
    before any attention of that layer reads them.
    """

    token_ids: Int32Array  # [T]
    positions: Int32Array  # [T] absolute
    slots: Int32Array  # [T]
    query_starts: Int32Array  # [R + 1]
    seq_lens: Int32Array  # [R] tokens known to attention after this step: last position + 1
    block_tables: Int32Array  # [R, max blocks of a sequence]; entries past a sequence's end are ignored
    logit_rows: Int32Array  # [L] which of the T rows need final hidden states and logits, ascending
    greedy_limit: int = 0  # > 0: only the largest of each row's logits below this index is wanted, the first of equals

    @property
    def num_tokens(self) -> int:
        """T."""
        return int(self.token_ids.shape[0])


@dataclass(frozen=True, slots=True)
class Succession:
    """What tells whether R sequences all go on after a greedy decode step, each within the block it has."""

    block_size: int
    max_lens: Int32Array  # [R] tokens at which a sequence ends
    end_ids: Int32Array  # [E] of sequence r: end_ids[end_starts[r]] … end_ids[end_starts[r + 1] - 1] end it
    end_starts: Int32Array  # [R + 1]
