"""A cost model fitted to measured steps of one engine on one machine, and the file that it lives in.

Time as a function of tokens is a chain of straight pieces between knots, because a step of 4 tokens is bound by memory
and one of 400 by arithmetic; sampled rows, K and V read, and attended pairs each add so much. Weights are not negative.
This module must not know how steps are measured.
"""

import bisect
import json
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mini_vllm.errors import ConfigError
from mini_vllm.scheduling import StepLoad
from mini_vllm.scheduling.costs import fit_relative

KNOTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
VERSION = 1
CLIP, ROUNDS = 1.5, 4


@dataclass(frozen=True, slots=True)
class Measured:
    """A step that was timed."""

    load: StepLoad
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedCosts:
    """`seconds` is what a step like this took on the machine that it was fitted to."""

    knots: tuple[int, ...]
    levels: tuple[float, ...]  # seconds of a step of so many tokens, at each knot
    sample: float  # seconds per sampled row
    context: float  # per token of K and V read
    attended: float  # per pair of a query and a key
    num_blocks: int = 0  # of the engine's pool, and their size
    block_size: int = 16
    max_model_len: int = 0
    about: Mapping[str, Any] = field(default_factory=dict)  # model, machine, errors of the fit

    def seconds(self, load: StepLoad) -> float:
        """By interpolation between the knots; beyond the last, in proportion."""
        tokens, knots, levels = load.num_tokens, self.knots, self.levels
        if tokens >= knots[-1]:
            base = levels[-1] * tokens / knots[-1]
        elif tokens <= knots[0]:
            base = levels[0] if tokens else 0.0
        else:
            i = bisect.bisect_right(knots, tokens)
            share = (tokens - knots[i - 1]) / (knots[i] - knots[i - 1])
            base = levels[i - 1] + share * (levels[i] - levels[i - 1])
        return base + self.sample * load.num_samples + self.context * load.context + self.attended * load.attended

    def observe(self, load: StepLoad, seconds: float) -> None:
        """Learns nothing."""

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        names = ("knots", "levels", "sample", "context", "attended", "num_blocks", "block_size", "max_model_len")
        content = {"kind": "mini-vllm cost model", "version": VERSION, **{name: getattr(self, name) for name in names}}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({**content, "about": dict(self.about)}, indent=1) + "\n", encoding="utf-8")


def fit(steps: Sequence[Measured], **about: Any) -> FittedCosts:
    """The model that is closest to the steps, by least squares of relative errors; knots without steps are dropped."""
    knots = _knots_with_steps(steps)
    rows = [_row(step.load, knots) for step in steps]
    seconds = [step.seconds for step in steps]
    weights = _means(rows, seconds, (0.0,) * (len(knots) + 3))
    count = len(knots)
    model = FittedCosts(
        knots=knots,
        levels=tuple(weights[:count]),
        sample=weights[count],
        context=weights[count + 1],
        attended=weights[count + 2],
    )
    errors = sorted(abs(model.seconds(step.load) / step.seconds - 1.0) for step in steps)
    shape = {name: about.pop(name) for name in ("num_blocks", "block_size", "max_model_len") if name in about}
    spread = {"median": round(errors[len(errors) // 2], 4), "p90": round(errors[int(0.9 * (len(errors) - 1))], 4)}
    return FittedCosts(
        knots=knots,
        levels=model.levels,
        sample=model.sample,
        context=model.context,
        attended=model.attended,
        about={**about, "steps": len(steps), "relative_error": spread},
        **shape,
    )


def _means(rows: Sequence[tuple[float, ...]], seconds: Sequence[float], prior: tuple[float, ...]) -> list[float]:
    """Weights for the mean time of a step rather than its quickest.

    Errors relative to the measured time favour quick steps, and times have a long tail; so they are taken relative to
    what the fit before predicts, and a step counts as `CLIP` times that at most.
    """
    weights = fit_relative(rows, seconds, prior=prior, trust=1e-9)
    for _ in range(ROUNDS):
        predicted = [max(1e-9, sum(map(operator.mul, row, weights))) for row in rows]
        clipped = [min(time, CLIP * usual) for time, usual in zip(seconds, predicted, strict=True)]
        weights = fit_relative(rows, clipped, prior=prior, trust=1e-9, by=predicted)
    return weights


def read(path: Path) -> FittedCosts:
    """What `save` wrote (`ConfigError` if it is something else)."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content.pop("kind") != "mini-vllm cost model" or content.pop("version") != VERSION:
            raise ValueError("it is of another kind or version")
        knots, levels = tuple(content.pop("knots")), tuple(content.pop("levels"))
        return FittedCosts(knots=knots, levels=levels, **content)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"{path} is no cost model ({reason}); write one with `mini-vllm bench cost-model`", param="cost_model"
        ) from None


def describe(costs: FittedCosts) -> str:
    """What a step costs, for people."""
    about, errors = costs.about, costs.about.get("relative_error", {})
    lines = [f"cost model of {about.get('model', 'an engine')} on {about.get('cpu', 'a machine')}"]
    if errors:
        lines.append(f"{about.get('steps')} steps, error median {errors['median']:.1%}, p90 {errors['p90']:.1%}")
    lines += ["", f"{'tokens':>8}  a step of so many"]
    lines += [f"{knot:>8}  {1e3 * level:.3f} ms" for knot, level in zip(costs.knots, costs.levels, strict=True)]
    lines.append("")
    for name, seconds in (("sampled row", costs.sample), ("1,000 tokens of context", 1e3 * costs.context)):
        lines.append(f"and for each {name}: {1e6 * seconds:.1f} µs")
    lines.append(f"and for each million pairs of a query and a key: {1e9 * costs.attended:.1f} ms")
    return "\n".join(lines) + "\n"


def _knots_with_steps(steps: Sequence[Measured]) -> tuple[int, ...]:
    """Knots that some step lies at or beside: a level without any would be free to be anything."""
    tokens = [step.load.num_tokens for step in steps]
    kept = [
        knot
        for knot, low, high in zip(KNOTS, (0, *KNOTS), (*KNOTS[1:], 1 << 40), strict=False)
        if any(low < count < high for count in tokens)
    ]
    return tuple(kept) or (1,)


def _row(load: StepLoad, knots: tuple[int, ...]) -> tuple[float, ...]:
    """How much of each level, and the three counts."""
    hats = [0.0] * len(knots)
    tokens = load.num_tokens
    if tokens >= knots[-1]:
        hats[-1] = tokens / knots[-1]
    elif tokens <= knots[0]:
        hats[0] = 1.0
    else:
        i = bisect.bisect_right(knots, tokens)
        share = (tokens - knots[i - 1]) / (knots[i] - knots[i - 1])
        hats[i - 1], hats[i] = 1.0 - share, share
    return (*hats, float(load.num_samples), float(load.context), float(load.attended))
