"""Steps as a text table, for golden traces."""

from collections.abc import Iterable

from mini_vllm.types import Chunk, StepPlan, StepStats

LEGEND = """\
# A[0:16) computes tokens 0 … 15 of A; A[16]+3 computes token 16 and 3 guesses
# new: told to the executor · evicted: lost its blocks · released: has ended
"""
HEADER = f"{'step':>4} {'kind':<8}{'tokens':>6} {'wait':>4} {'used':>4} {'cached':>6}  {'chunks':<36} events"


def render(steps: Iterable[tuple[StepPlan, StepStats]], *, title: str) -> str:
    """The whole trace of a scenario. Sequences are called A, B, C … in order of arrival."""
    lines = [f"# {title}\n{LEGEND}{HEADER}"]
    for plan, stats in steps:
        counts = f"{stats.num_tokens:>6} {stats.num_waiting:>4} {stats.blocks_used:>4} {stats.blocks_cached:>6}"
        chunks = " ".join(_chunk(chunk) for chunk in plan.chunks)
        lines.append(f"{stats.step_id:>4} {stats.kind:<8}{counts}  {chunks:<36} {_events(plan)}".rstrip())
    return "\n".join(lines) + "\n"


def _chunk(chunk: Chunk) -> str:
    num_known = len(chunk.token_ids) - chunk.num_drafts
    where = f"[{chunk.start}]" if num_known == 1 else f"[{chunk.start}:{chunk.start + num_known})"
    return _name(chunk.seq_id) + where + (f"+{chunk.num_drafts}" if chunk.num_drafts else "")


def _events(plan: StepPlan) -> str:
    events = (
        ("new", [admission.seq_id for admission in plan.admitted]),
        ("evicted", plan.evicted),
        ("released", plan.released),
    )
    return " · ".join(f"{what} {' '.join(_name(i) for i in ids)}" for what, ids in events if ids)


def _name(seq_id: int) -> str:
    return chr(ord("A") + seq_id)
