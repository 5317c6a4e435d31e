"""A short sweep over what steps an engine can be asked for, timed, for a cost model to be fitted to.

Prompts of doubling length alone, decode batches of doubling size with short and long histories, and mixtures of both.
The time of a step is taken from its beginning to the beginning of the next, so that all that happens between two steps
is in it. This module must not know cost models' forms.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from mini_vllm.engine.assembly import Engine
from mini_vllm.scheduling import RequestRecord, StepLoad, StepRecord
from mini_vllm.simulation import generators
from mini_vllm.simulation.arrivals import Arrival
from mini_vllm.simulation.fitted import Measured
from mini_vllm.simulation.realtime import Replay

PROMPTS = (16, 32, 64, 128, 256, 512, 1024, 2048)
BATCHES = (1, 2, 4, 8, 16, 32)
DECODE_STEPS = 24
PAUSE = 0.12  # seconds between prompts alone: most find an engine that has just been idle, and is slower then
HISTORIES = ((1, 1500), (8, 700))  # batch, prompt tokens
MIXTURES = (
    "poisson:rate=5,requests=40,prompt=160,output=40,spread=0.8,seed=7",
    "shared_prefix:rate=6,requests=36,prompt=60,output=24,spread=0.6,prefixes=2,shared=300,seed=8",
    "bursty:rate=12,requests=30,prompt=120,output=24,spread=0.8,burst=2,seed=9",
)
_BASE = 1 << 44  # made-up ids of the sweep


def measure(engine: Engine, *, replay: Callable[[Engine], Replay] = Replay) -> list[Measured]:
    """Run the sweep (about 35 s for the default model) and give back its steps."""
    longest = engine.frontend.limits.max_model_len - DECODE_STEPS - 1
    rows = engine.config.scheduler.max_num_seqs
    found = list[Measured]()
    serial = 0
    for works in _works(longest, rows):
        arrivals = []
        for at, num_prompt, num_output in works:
            serial += 1
            arrivals.append(_arrival(serial, at, num_prompt, num_output))
        found += _timed(engine, arrivals, replay)
    for spec in MIXTURES:
        arrivals = [each for each in generators.generate(spec) if each.num_prompt + each.max_tokens <= longest]
        found += _timed(engine, [_moved(each) for each in arrivals], replay)
    return found


def _works(longest: int, rows: int) -> Iterator[list[tuple[float, int, int]]]:
    """Batches of (arrival, prompt tokens, output tokens); the first warms up."""
    yield [(0.0, min(64, longest), 4)]
    for length in PROMPTS:
        if length <= longest:
            count = 6 if length <= 256 else 2
            yield [(PAUSE * number, length, 1) for number in range(count)]
    for batch in BATCHES:
        if batch <= rows:
            yield [(0.0, min(32, longest), DECODE_STEPS)] * batch
    for batch, history in HISTORIES:
        if batch <= rows:
            yield [(0.0, min(history, longest), DECODE_STEPS)] * batch


def _arrival(serial: int, at: float, num_prompt: int, num_output: int) -> Arrival:
    base = _BASE + serial * generators.STRIDE
    sampling = {"ignore_eos": True}
    return Arrival(at=at, name=f"s{serial}", segments=((base, num_prompt),), max_tokens=num_output, sampling=sampling)


def _moved(arrival: Arrival) -> Arrival:
    """With token ids that no other traffic has."""
    return replace(arrival, segments=tuple([(_BASE + first, length) for first, length in arrival.segments]))


def _timed(engine: Engine, arrivals: Sequence[Arrival], replay: Callable[[Engine], Replay]) -> list[Measured]:
    last = max([step.stats.step_id for step in engine.trace.steps()], default=-1)
    replay(engine).run(arrivals)
    steps = [step for step in engine.trace.steps() if step.stats.step_id > last]
    return timed_steps(steps, engine.trace.requests())


def timed_steps(steps: Sequence[StepRecord], requests: Sequence[RequestRecord]) -> list[Measured]:
    """Loads and times of consecutive steps. The last before a pause has no successor: it gets a typical rest."""
    prompts = {request.seq_id: request.num_prompt for request in requests}
    intervals = [after.began - step.began for step, after in pairwise(steps)] + [0.0]
    rests = sorted(
        interval - step.stats.seconds
        for step, interval in zip(steps, intervals, strict=True)
        if step.chunks and interval > 0
    )
    usual = rests[len(rests) // 2] if rests else 0.0
    found = []
    for step, interval in zip(steps, intervals, strict=True):
        rest = min(max(0.0, interval - step.stats.seconds), 3.0 * usual)
        if step.chunks:
            found.append(Measured(load_of(step, prompts), step.stats.seconds + (rest or usual)))
    return found


def load_of(step: StepRecord, prompts: dict[int, int]) -> StepLoad:
    """What a recorded step computed; `prompts` has the prompt length of every sequence in it."""
    load = StepLoad()
    for seq_id, start, num_tokens, num_drafts in step.chunks:
        load = load.with_chunk(start, num_tokens, samples=start + num_tokens - num_drafts >= prompts[seq_id])
    return load
