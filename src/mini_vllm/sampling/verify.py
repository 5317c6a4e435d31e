"""Speculation: which of the tokens chosen after each draft count. Must not know who drafted, or how."""

from collections.abc import Sequence


def num_accepted(drafts: Sequence[int], chosen: Sequence[int]) -> int:
    """How many of chosen[0 … len(drafts)] stand: up to and with the first that differs from its draft.

    chosen[j] was sampled as if drafts[:j] were true, with the target's own keyed noise; so what stands is exactly what
    would have been sampled without drafts, and equality decides only whether to go on.
    """
    count = 0
    while count < len(drafts) and chosen[count] == drafts[count]:
        count += 1
    return count + 1
