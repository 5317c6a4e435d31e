"""How far ahead we mean to be: for each work and number format the least ratio, and the one to reach for.

A row is met at its floor, or at a share of the computed limit where the limit lies nearer. Must not know measurements.
"""

from mini_vllm.bench.rows import Row

START_SECONDS = 1.0  # from process to first token: soon enough, whatever others take
LIMIT_SHARES = {"single": 0.85, "tinyllama": 0.85}  # the others: 75%
_BITS = {"q4_1": "4", "q4_0": "4", "4bit": "4", "q8_0": "8", "8bit": "8", "bf16": "bf16", "f32": "f32"}

# (floor, target) against any peer of the format
_ANY = {
    ("single", "4"): (1.7, 2.2),
    ("single", "8"): (1.6, 2.0),
    ("single", "bf16"): (1.5, 1.8),
    ("single", "f32"): (1.15, 1.3),
    **{(work, bits): (1.7, 2.5) for work in ("batch8", "batch32") for bits in "48"},
    **{(work, "bf16"): (1.4, 1.8) for work in ("batch8", "batch32")},
    **{(work, "f32"): (1.0, 1.2) for work in ("batch8", "batch32")},
    **{("prefill_512", bits): (1.2, 1.8) for bits in "48"},
    ("prefill_512", "bf16"): (1.0, 1.25),
    ("prefill_512", "f32"): (0.95, 1.05),
    **{("prefill_2048", bits): (1.1, 1.8) for bits in "48"},
    ("prefill_2048", "bf16"): (0.95, 1.25),
    ("prefill_2048", "f32"): (0.95, 1.05),
}
_SELF = {"sampled32": (0.93, 0.98), "history_2000": (1 / 1.5, 1 / 1.2), "memory": (1.0, 1.0), "overhead": (1.0, 1.0)}
_NEIGHBOURS = {  # by the beginning of the detail; fair shares beside 1 and 3 others are 67% and 40%
    "32 streams beside 1 ": (0.45, 0.67),
    "1 stream beside 1 ": (0.35, 0.67),
    "32 streams beside 3 ": (0.25, 0.40),
    "1 stream beside 3 ": (0.15, 0.40),
    "32 streams, quiet": (0.97, 1.0),
    "1 stream, quiet": (0.97, 1.0),
}
_TRANSFORMERS = {  # the default file against transformers' better type
    "single": (10.0, 15.0),
    "batch8": (5.0, 8.0),
    "batch32": (5.0, 8.0),
    "prefill_512": (2.0, 3.0),
    "prefill_2048": (2.0, 3.0),
}
_LLAMA = {"tinyllama": (1.3, 1.6), "start": (0.5, 1.0)}


def goal(row: Row) -> tuple[float, float] | None:
    """(floor, target) of a row's ratio; None where it is only reported."""
    if row.work == "neighbours":
        return next((pair for start, pair in _NEIGHBOURS.items() if row.detail.startswith(start)), None)
    if row.peer == "self":
        return _SELF.get(row.work)
    if row.work in _LLAMA:
        return _LLAMA[row.work]
    if row.weights == "q4_1" and row.peer == "transformers":
        return _TRANSFORMERS.get(row.work)
    if row.weights == "q4_1" and row.work == "single":
        return (3.0, 4.0)
    return _ANY.get((row.work, _BITS.get(row.weights, "")))


def verdict(row: Row) -> str:
    """ "target", "floor" or "missed" with the ratio in question, "limit" (as near it as asked); "" without a goal."""
    wanted = goal(row)
    if wanted is None:
        return ""
    floor, target = wanted
    if row.ratio is not None and row.ratio >= target:
        return f"target {target:.2f}"
    if row.ratio is not None and row.ratio >= floor:
        return f"floor {floor:.2f}"
    if row.work == "start" and row.ours is not None and row.ours <= START_SECONDS:
        return f"floor {START_SECONDS:.1f} s"
    if row.limit_share is not None and row.limit_share >= LIMIT_SHARES.get(row.work, 0.75):
        return "limit"
    return f"missed {floor:.2f}"
