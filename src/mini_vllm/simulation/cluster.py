"""Engines of a scheduler, a cache and a cost model under one virtual clock, behind a router.

A discrete-event simulation: the events are arrivals, ends of steps, and planned failures. Every decision inside an
engine is made by the very Scheduler and KVCache that serve; only the executor is a stand-in. This module must not know
files or reports.
"""

import gc
import heapq
import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mini_vllm.config import EngineConfig
from mini_vllm.errors import EngineBusyError, MiniVLLMError
from mini_vllm.kvcache import KVCache
from mini_vllm.replicas import NoReplicaError, ReplicaState, Router, make_router
from mini_vllm.scheduling import CostModel, Scheduler, Trace
from mini_vllm.simulation.arrivals import Arrival, token_ids
from mini_vllm.simulation.failures import Failure
from mini_vllm.simulation.records import RequestRecord, Run, StepTotals
from mini_vllm.simulation.virtual import SimulatedExecutor, VirtualClock
from mini_vllm.types import Request, SamplingParams, StepPlan, StepResult

_STEP_END, _WAKE, _FAILURE, _RECOVERY = 0, 1, 2, 3
RETRY_SECONDS = 1.0  # a request that finds no replica alive is sent again after so long


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How a simulated cluster is built."""

    config: EngineConfig
    costs: CostModel
    num_blocks: int  # of each replica
    max_model_len: int
    num_replicas: int = 1
    router: str = "round_robin"
    failures: Sequence[Failure] = ()
    traced: bool = False  # keep a trace of every step of the first replica


@dataclass(slots=True)
class _InFlight:
    """A request that some replica has."""

    request: Request
    record: RequestRecord
    load: float


class _Replica:
    """One engine."""

    def __init__(self, index: int, setup: Setup, clock: VirtualClock, trace: Trace | None) -> None:
        self.index = index
        self.state = ReplicaState(index)
        self.totals = StepTotals()
        self.executor = SimulatedExecutor(setup.costs)
        self.in_flight: dict[str, _InFlight] = {}
        self.step: tuple[StepPlan, StepResult] | None = None  # under way
        self.is_woken = False  # it was idle, has work now, and a step begins once all of this moment is in
        self.epoch = 0  # counts its deaths: a step that ends in another life is forgotten
        self.troubles: list[Failure] = []  # failures that it has now
        self.prefix_tokens = [0, 0]  # asked for and found, in earlier lives
        self._setup = setup
        self._clock = clock
        self._trace = trace
        self.scheduler = self._make()

    def _make(self) -> Scheduler:
        setup = self._setup
        cache = KVCache.from_config(setup.config.cache, num_blocks=setup.num_blocks)
        return Scheduler(
            setup.config.scheduler,
            cache,
            max_model_len=setup.max_model_len,
            clock=self._clock,
            costs=setup.costs,
            trace=self._trace,
            on_step=lambda plan, stats: self.totals.add(stats),
        )

    def count_prefixes(self) -> None:
        """Add up what this life of the cache was asked for and had."""
        stats = self.scheduler.stats()
        self.prefix_tokens[0] += stats.prefix_query_tokens
        self.prefix_tokens[1] += stats.prefix_hit_tokens

    def die(self) -> list[_InFlight]:
        """Lose everything; what was in flight."""
        self.count_prefixes()
        lost, self.in_flight = list(self.in_flight.values()), {}
        self.scheduler, self.step = self._make(), None
        self.executor.reset()
        self.epoch += 1
        self.state.is_alive, self.state.load = False, 0.0
        return lost


@dataclass(slots=True)
class Cluster:
    """`Cluster(setup).run(arrivals)`, once."""

    setup: Setup
    clock: VirtualClock = field(default_factory=VirtualClock)
    trace: Trace | None = None
    _replicas: list[_Replica] = field(default_factory=list)
    _events: list[tuple[float, int, int, int, int]] = field(default_factory=list)  # time, order, kind, replica, detail
    _records: list[RequestRecord] = field(default_factory=list)
    _gaps: "array[float]" = field(default_factory=lambda: array("d"))
    _again: list[tuple[float, int, _InFlight]] = field(default_factory=list)  # requests to send once more, and when
    _order: int = 0
    _router: Router = field(init=False)

    def __post_init__(self) -> None:
        setup = self.setup
        self._router = make_router(setup.router, block_size=setup.config.cache.block_size)
        if setup.traced:
            self.trace = Trace()
        for index in range(setup.num_replicas):
            trace = self.trace if index == 0 else None
            self._replicas.append(_Replica(index, setup, self.clock, trace))
        for number, failure in enumerate(setup.failures):
            self._push(failure.begin, _FAILURE, failure.replica, number)
            self._push(failure.begin + failure.seconds, _RECOVERY, failure.replica, number)

    def run(self, arrivals: Iterable[Arrival]) -> Run:
        """Replay traffic, which must be in order of time, to its last token."""
        clock, events = self.clock, self._events
        source = iter(arrivals)
        arrival = next(source, None)
        while arrival is not None or self._is_busy():
            at = arrival.at if arrival is not None else float("inf")
            if self._again and self._again[0][0] < min(at, events[0][0] if events else float("inf")):
                again = heapq.heappop(self._again)
                clock.now = max(clock.now, again[0])
                self._route(again[2])
            elif arrival is not None and (not events or at <= events[0][0]):
                clock.now = at
                self._arrive(arrival)
                arrival = next(source, None)
            else:
                clock.now, _, kind, index, detail = heapq.heappop(events)
                self._happen(kind, self._replicas[index], detail)
        return self._finish()

    def _is_busy(self) -> bool:
        return bool(self._again) or any(replica.in_flight or replica.step for replica in self._replicas)

    def _happen(self, kind: int, replica: _Replica, detail: int) -> None:
        if kind == _STEP_END:
            if replica.epoch == detail:
                self._end_step(replica)
        elif kind == _WAKE:
            replica.is_woken = False
            if replica.epoch == detail and replica.step is None:
                self._begin_step(replica)
        else:
            change = replica.troubles.append if kind == _FAILURE else replica.troubles.remove
            change(self.setup.failures[detail])
            self._suffer(replica)

    def _suffer(self, replica: _Replica) -> None:
        """The failures that a replica has now: dead if one of them kills, else as slow as the worst."""
        replica.executor.slowdown = max([each.slowdown for each in replica.troubles if each.slowdown], default=1.0)
        was_alive = replica.state.is_alive
        replica.state.is_alive = all(each.slowdown for each in replica.troubles)
        if was_alive and not replica.state.is_alive:
            self._router.lost(replica.index)
            for lost in replica.die():
                lost.record.num_retries += 1
                lost.record.num_resent = lost.record.num_output
                self._route(lost)

    def _arrive(self, arrival: Arrival) -> None:
        setup = self.setup
        prompt = token_ids(arrival.segments)
        record = RequestRecord(
            name=arrival.name,
            arrival=arrival.at,
            num_prompt=len(prompt),
            max_tokens=arrival.max_tokens,
            priority=arrival.priority,
            key=arrival.key,
        )
        self._records.append(record)
        request = Request(
            request_id=f"{arrival.name}#{len(self._records)}",
            parent_id=arrival.name,
            prompt_token_ids=prompt,
            params=_PARAMS,
            max_tokens=min(arrival.max_tokens, max(1, setup.max_model_len - len(prompt))),
            noise_key=arrival.answer_base,
            priority=arrival.priority,
            arrival=arrival.at,
            key=arrival.key,
            deadline=None if arrival.deadline is None else arrival.at + arrival.deadline,
        )
        self._route(_InFlight(request, record, float(len(prompt) + request.max_tokens)))

    def _route(self, flight: _InFlight) -> None:
        try:
            index = self._router.choose(flight.request.prompt_token_ids, [replica.state for replica in self._replicas])
        except NoReplicaError:
            self._order += 1
            heapq.heappush(self._again, (self._next_try(), self._order, flight))
            return
        replica = self._replicas[index]
        flight.record.replica = index
        try:
            replica.scheduler.add(flight.request)
        except (EngineBusyError, MiniVLLMError) as error:
            flight.record.finished, flight.record.finish_reason = self.clock.now, "error"
            flight.record.error = str(error)
            return
        replica.in_flight[flight.request.request_id] = flight
        replica.state.load += flight.load
        if replica.step is None and not replica.is_woken:  # after all that arrive at this very moment
            replica.is_woken = True
            self._push(self.clock.now, _WAKE, replica.index, replica.epoch)

    def _next_try(self) -> float:
        """When a client that sends again every `RETRY_SECONDS` will next find a replica that has recovered."""
        now = self.clock.now
        ends = [failure.begin + failure.seconds for failure in self.setup.failures if not failure.slowdown]
        first = min([end for end in ends if end > now], default=now)
        return now + RETRY_SECONDS * max(1, math.ceil((first - now) / RETRY_SECONDS))

    def _begin_step(self, replica: _Replica) -> None:
        plan = replica.scheduler.plan()
        result = replica.executor.run(plan)
        replica.step = (plan, result)
        self._push(self.clock.now + result.seconds, _STEP_END, replica.index, replica.epoch)

    def _end_step(self, replica: _Replica) -> None:
        assert replica.step is not None
        plan, result = replica.step
        replica.step = None
        in_flight, gaps = replica.in_flight, self._gaps
        for delta in replica.scheduler.commit(plan, result):
            flight = in_flight[delta.request_id]
            flight.record.take(delta, gaps)
            if delta.finish_reason is not None:
                del in_flight[delta.request_id]
                replica.state.load -= flight.load
        if replica.scheduler.has_work():
            self._begin_step(replica)

    def _push(self, time: float, kind: int, index: int, detail: int) -> None:
        self._order += 1
        heapq.heappush(self._events, (time, self._order, kind, index, detail))

    def _finish(self) -> Run:
        for replica in self._replicas:
            replica.count_prefixes()
            replica.scheduler.check_integrity()
        return Run(
            requests=self._records,
            gaps=self._gaps,
            steps=[replica.totals for replica in self._replicas],
            prefix_query_tokens=sum(replica.prefix_tokens[0] for replica in self._replicas),
            prefix_hit_tokens=sum(replica.prefix_tokens[1] for replica in self._replicas),
        )


_PARAMS = SamplingParams(max_tokens=None, ignore_eos=True)


def simulate(setup: Setup, arrivals: Iterable[Arrival]) -> tuple[Run, Trace | None]:
    """Replay traffic on a new cluster; its figures, and the trace if one was asked for."""
    cluster = Cluster(setup)
    was_enabled = gc.isenabled()
    gc.disable()  # nothing here is cyclic, and looking through millions of live objects again and again takes minutes
    try:
        return cluster.run(arrivals), cluster.trace
    finally:
        if was_enabled:
            gc.enable()


def about(setup: Setup) -> dict[str, Any]:
    """What a run was, for the record."""
    scheduler, cache = setup.config.scheduler, setup.config.cache
    return {
        "policy": scheduler.scheduling_policy,
        "replicas": setup.num_replicas,
        "router": setup.router,
        "num_blocks": setup.num_blocks,
        "block_size": cache.block_size,
        "max_num_seqs": scheduler.max_num_seqs,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "prefill_chunk_size": scheduler.prefill_chunk_size,
        "itl_target_ms": scheduler.itl_target_ms,
    }
