"""Traffic in real time on a loaded engine: every request is handed over when its time has come.

Steps run on the caller's thread, one after the other, as in `LLM.generate`. This module must not know files or reports.
"""

import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from mini_vllm.engine.assembly import Engine
from mini_vllm.engine.choice import ChoiceText
from mini_vllm.errors import EngineBusyError, UserError
from mini_vllm.simulation.arrivals import Arrival, Segments, token_ids
from mini_vllm.simulation.records import RequestRecord, Run, StepTotals
from mini_vllm.types import SamplingParams, Standing, TokenDelta

IDLE_SECONDS = 0.02  # longest sleep between two looks at the clock
_FIRST_PLAIN_ID = 1000  # special tokens of most vocabularies lie below


class Replay:
    """`Replay(engine).run(arrivals)`. `on_step` is told how many requests have ended, of how many."""

    def __init__(
        self,
        engine: Engine,
        *,
        sleep: Callable[[float], object] = time.sleep,
        on_step: Callable[[int, int], object] = lambda done, total: None,
    ) -> None:
        self._engine = engine
        self._clock = engine.clock
        self._sleep = sleep
        self._on_step = on_step
        self._live: dict[str, tuple[RequestRecord, ChoiceText]] = {}
        self._records: list[RequestRecord] = []
        self._gaps: array[float] = array("d")
        self._begin = 0.0

    def run(self, arrivals: Iterable[Arrival]) -> Run:
        """Replay traffic, in order of time, to its last token. Times of the run count from its beginning."""
        core, clock = self._engine.core, self._clock
        waiting = deque(arrivals)
        total, before = len(waiting), core.stats()
        self._begin = clock()
        while waiting or core.has_work():
            now = clock() - self._begin
            while waiting and waiting[0].at <= now:
                self._submit(waiting.popleft())
            if core.has_work():
                self._take(core.advance())
                self._on_step(len(self._records) - len(self._live), total)
            elif waiting:
                self._sleep(max(0.0, min(IDLE_SECONDS, waiting[0].at - now)))
        after = core.stats()
        totals = StepTotals()
        for step in self._engine.trace.steps():
            if step.began >= self._begin:
                totals.add(step.stats)
        for record in self._records:
            _shift(record, self._begin)
        return Run(
            requests=self._records,
            gaps=self._gaps,
            steps=[totals],
            prefix_query_tokens=after.prefix_query_tokens - before.prefix_query_tokens,
            prefix_hit_tokens=after.prefix_hit_tokens - before.prefix_hit_tokens,
            seconds=clock() - self._begin,
        )

    def _submit(self, arrival: Arrival) -> None:
        """Hand a request over; one that is refused is recorded as failed."""
        engine, due = self._engine, self._begin + arrival.at
        record = RequestRecord(
            name=arrival.name,
            arrival=due,
            num_prompt=0,
            max_tokens=arrival.max_tokens,
            priority=arrival.priority,
            key=arrival.key,
        )
        self._records.append(record)
        deadline = None if arrival.deadline is None else due + arrival.deadline
        try:
            prepared = engine.frontend.prepare(
                prompt_of(arrival, engine),
                sampling_params(arrival, engine.sampling_defaults),
                request_id=arrival.name,
                priority=arrival.priority,
                standing=Standing(key=arrival.key, deadline=deadline),
            )
            request = replace(prepared.requests[0], arrival=due)
            record.num_prompt = len(request.prompt_token_ids)
            engine.core.add(request)
        except (UserError, EngineBusyError) as error:
            record.finished, record.finish_reason, record.error = self._clock(), "error", str(error)
            return
        self._live[request.request_id] = (record, engine.frontend.choices(prepared)[request.request_id])

    def _take(self, deltas: Sequence[TokenDelta]) -> None:
        for delta in deltas:
            record, choice = self._live[delta.request_id]
            record.take(delta, self._gaps)
            text = choice.push(delta)
            if text is not None:
                record.text += text.text
            if choice.must_abort and delta.finish_reason is None:
                self._engine.core.abort(delta.request_id, reason="stop")
            if delta.finish_reason is not None:
                del self._live[delta.request_id]


def prompt_of(arrival: Arrival, engine: Engine) -> Any:
    """What the front end takes: text, or token ids."""
    if arrival.messages is not None:
        return engine.frontend.render_chat(arrival.messages)
    if arrival.text is not None:
        return arrival.text
    return fold(arrival.segments, engine.frontend.limits.vocab_size)


def sampling_params(arrival: Arrival, defaults: Any) -> SamplingParams:
    """What the request says, over the model's own defaults, over greedy."""
    return SamplingParams(**{"temperature": 0.0, **defaults, **arrival.sampling, "max_tokens": arrival.max_tokens})


def fold(segments: Segments, vocab_size: int) -> tuple[int, ...]:
    """Made-up ids as ids of a vocabulary: equal ones stay equal, neighbours are scattered."""
    first = min(_FIRST_PLAIN_ID, vocab_size // 2)
    return tuple([first + _mixed(token_id) % (vocab_size - first) for token_id in token_ids(segments)])


def _mixed(token_id: int) -> int:
    """All bits of a number depend on all others (the finaliser of MurmurHash3)."""
    mixed = token_id ^ token_id >> 33
    mixed = mixed * 0xFF51AFD7ED558CCD & 0xFFFFFFFFFFFFFFFF
    mixed ^= mixed >> 33
    mixed = mixed * 0xC4CEB9FE1A85EC53 & 0xFFFFFFFFFFFFFFFF
    return mixed ^ mixed >> 33


def as_segments(arrivals: Iterable[Arrival], tokenize: Callable[[Arrival], Sequence[int]]) -> list[Arrival]:
    """Arrivals with their texts as token ids, for a virtual replay."""
    return [
        arrival
        if arrival.text is None and arrival.messages is None
        else replace(
            arrival, segments=tuple([(token_id, 1) for token_id in tokenize(arrival)]), text=None, messages=None
        )
        for arrival in arrivals
    ]


def _shift(record: RequestRecord, origin: float) -> None:
    """Count from the beginning of the replay."""
    for name in ("arrival", "started", "first_token", "last_token", "finished"):
        if (value := getattr(record, name)) is not None:
            setattr(record, name, value - origin)
