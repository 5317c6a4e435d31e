"""Traffic out of thin air, the same for the same seed: Poisson, bursty, diurnal, shared prefixes, conversations.

A generator is written `KIND:NAME=VALUE,…`, for example `poisson:rate=8,requests=1000,prompt=500,output=100,seed=1`.
This module must not know engines or files.
"""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace

from mini_vllm.errors import InvalidParameterError
from mini_vllm.simulation.arrivals import Arrival

STRIDE = 1 << 20  # made-up token ids of different requests never meet
MOST_TOKENS = 500_000  # of a prompt or an answer: what a stride has room for
MOST = 1e9  # of anything else
_PREFIX_BASE = 1 << 50  # ids of shared prefixes


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What generators can be told. Rates are requests per second, lengths are tokens."""

    rate: float = 4.0  # mean arrivals per second
    requests: int = 100
    prompt: int = 500  # mean prompt tokens of one's own
    output: int = 100  # mean output tokens
    spread: float = 0.0  # of lengths: standard deviation over mean, of a lognormal distribution
    seed: int = 0
    keys: int = 1  # different keys, for fair share
    burst: float = 4.0  # bursty: coefficient of variation of the gaps (gamma); 1 is Poisson
    period: float = 600.0  # diurnal: seconds of a day
    depth: float = 0.8  # diurnal: how far the rate swings around its mean, 0 to 1
    prefixes: int = 4  # shared_prefix: how many different ones
    shared: int = 400  # shared_prefix and multi_turn: tokens of the prefix or system prompt
    turns: int = 5  # multi_turn: of each conversation
    think: float = 5.0  # multi_turn: mean seconds between an answer and the next question


def is_spec(source: str) -> bool:
    """Whether a traffic's name is that of a generator."""
    return source.partition(":")[0] in KINDS


def generate(spec: str) -> list[Arrival]:
    """The arrivals of a generator, in order of time."""
    kind, _, settings = spec.partition(":")
    chosen = parse(spec, settings)
    return sorted(KINDS[kind](chosen, random.Random(chosen.seed)), key=lambda arrival: arrival.at)


def parse(spec: str, settings: str) -> Settings:
    """The settings in a generator's name; `InvalidParameterError` names the one at fault."""
    kinds: dict[str, Callable[[str], float]] = {
        entry.name: int if isinstance(entry.default, int) else float for entry in fields(Settings)
    }
    found: dict[str, float] = {}
    for part in filter(None, settings.split(",")):
        name, _, value = part.partition("=")
        name = name.strip()
        if name not in kinds:
            raise InvalidParameterError(
                f"traffic {spec!r:.80} sets {name!r}; known are {', '.join(kinds)}", param="traffic"
            )
        try:
            found[name] = kinds[name](value)
        except ValueError:
            raise InvalidParameterError(
                f"traffic {spec!r:.80}: {name} is {value!r:.40}; it must be a "
                f"{'whole number' if kinds[name] is int else 'number'}",
                param="traffic",
            ) from None
    chosen = Settings(**found)  # type: ignore[arg-type]
    _check(spec, chosen)
    return chosen


def _check(spec: str, chosen: Settings) -> None:
    """`InvalidParameterError` names the setting, its value and its range."""
    for entry in fields(Settings):
        name, value = entry.name, getattr(chosen, entry.name)
        low, high = _RANGES.get(name, (1 if isinstance(entry.default, int) else 1e-9, MOST))
        if name != "seed" and not low <= value <= high:
            raise InvalidParameterError(
                f"traffic {spec!r:.80}: {name} is {value:g}; it must lie in [{low:g}, {high:g}]", param="traffic"
            )


_RANGES: dict[str, tuple[float, float]] = {
    "depth": (0.0, 1.0),
    "spread": (0.0, 100.0),
    "burst": (0.01, 100.0),
    "think": (0.0, MOST),
    **dict.fromkeys(("prompt", "output", "shared"), (1, MOST_TOKENS)),
}


def poisson(settings: Settings, dice: random.Random) -> Iterator[Arrival]:
    """Independent arrivals at a steady mean rate."""
    at = 0.0
    for index in range(settings.requests):
        yield _single(index, at, settings, dice)
        at += dice.expovariate(settings.rate)


def bursty(settings: Settings, dice: random.Random) -> Iterator[Arrival]:
    """Gaps of a gamma distribution: with a coefficient of variation above 1, arrivals come in bunches."""
    shape = 1.0 / settings.burst**2
    at = 0.0
    for index in range(settings.requests):
        yield _single(index, at, settings, dice)
        at += dice.gammavariate(shape, 1.0 / (settings.rate * shape))


def diurnal(settings: Settings, dice: random.Random) -> Iterator[Arrival]:
    """Poisson arrivals whose rate swings like a day's, by thinning; it begins at the mean, rising."""
    at, peak = 0.0, settings.rate * (1.0 + settings.depth)
    for index in range(settings.requests):
        while True:
            at += dice.expovariate(peak)
            rate = settings.rate * (1.0 + settings.depth * math.sin(2.0 * math.pi * at / settings.period))
            if dice.random() * peak < rate:
                break
        yield _single(index, at, settings, dice)


def shared_prefix(settings: Settings, dice: random.Random) -> Iterator[Arrival]:
    """Poisson arrivals; each prompt begins with one of a few long prefixes, as system prompts do."""
    for arrival in poisson(settings, dice):
        prefix = (_PREFIX_BASE + dice.randrange(settings.prefixes) * STRIDE, settings.shared)
        yield replace(arrival, segments=(prefix, *arrival.segments))


def multi_turn(settings: Settings, dice: random.Random) -> Iterator[Arrival]:
    """Conversations: each question comes with all that was said before. `requests` counts questions.

    A user thinks from the moment at which an answer could have ended at 20 ms a token: arrivals do not wait for the
    engine, so that every engine gets the same traffic.
    """
    start = 0.0
    for first in range(0, settings.requests, settings.turns):
        history: tuple[tuple[int, int], ...] = ((_PREFIX_BASE, settings.shared),)
        at = start
        for index in range(first, min(first + settings.turns, settings.requests)):
            question = _single(index, at, settings, dice)
            history += question.segments
            yield replace(question, segments=history, key=f"user {first // settings.turns}")
            history += ((question.answer_base, question.max_tokens),)
            at += 0.02 * question.max_tokens + (dice.expovariate(1.0 / settings.think) if settings.think else 0.0)
        start += dice.expovariate(settings.rate / settings.turns)


KINDS: dict[str, Callable[[Settings, random.Random], Iterator[Arrival]]] = {
    "poisson": poisson,
    "bursty": bursty,
    "diurnal": diurnal,
    "shared_prefix": shared_prefix,
    "multi_turn": multi_turn,
}


def _single(index: int, at: float, settings: Settings, dice: random.Random) -> Arrival:
    base = (index + 1) * STRIDE
    return Arrival(
        at=at,
        name=f"r{index}",
        segments=((base, _length(settings.prompt, settings.spread, dice)),),
        answer_base=base + STRIDE // 2,
        max_tokens=_length(settings.output, settings.spread, dice),
        sampling={"ignore_eos": True},
        key="" if settings.keys == 1 else f"key {dice.randrange(settings.keys)}",
    )


def _length(mean: int, spread: float, dice: random.Random) -> int:
    if not spread:
        return mean
    sigma = math.sqrt(math.log(1.0 + spread**2))
    return min(MOST_TOKENS, max(1, round(dice.lognormvariate(math.log(mean) - sigma**2 / 2, sigma))))
