"""Who computes how many tokens in the next step.

There is no prefill phase and no decode phase. Each sequence has known tokens and computed tokens; a step gives it some
tokens so that the second catches up with the first. That one rule covers chunked prefill mixed with decode, prefix
hits, preemption by recompute, and speculation.

This module must not know tensors, text, threads or the policy behind the queue.
"""

import bisect
import time
from collections.abc import Callable

from mini_vllm.config import SchedulerConfig
from mini_vllm.errors import EngineBusyError, InvalidParameterError
from mini_vllm.kvcache import KVCache, Refusal
from mini_vllm.scheduling import integrity
from mini_vllm.scheduling.costs import CostModel, StepLoad
from mini_vllm.scheduling.counters import Counters
from mini_vllm.scheduling.limits import check_config, check_request
from mini_vllm.scheduling.pacing import Pacer
from mini_vllm.scheduling.queues import make_queue
from mini_vllm.scheduling.recording import Recorder
from mini_vllm.scheduling.sequence import Sequence
from mini_vllm.scheduling.step import PlanDraft
from mini_vllm.scheduling.trace import Trace, WaitReason
from mini_vllm.types import Chunk, EngineStats, FinishReason, Request, StepPlan, StepResult, StepStats, TokenDelta

Observer = Callable[[StepPlan, StepStats], None]
OBSERVE_EVERY = 4  # decode steps: the cost model sees one of so many, and all others


class Scheduler:
    """Holds every live sequence. `plan` and `commit` alternate; `add` and `abort` may come between them.

    A request is live from `add` until the delta with its finish_reason. The caller sees to it that one thread at a
    time is in here.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        cache: KVCache,
        *,
        max_model_len: int,
        clock: Callable[[], float] = time.monotonic,
        costs: CostModel | None = None,
        trace: Trace | None = None,
        on_step: Observer | None = None,
    ) -> None:
        """`costs` says how much prefill fits beside decodes; it is told what each step took. Without it, itl_target_ms
        has no effect. `on_step` is called at the end of every commit, with what was done and what it measured."""
        check_config(config)
        self.max_model_len = max_model_len
        self._config = config
        self._cache = cache
        self._clock = clock
        self._pacer: Pacer | None = None
        if costs is not None and config.itl_target_ms and cache.retains:
            self._pacer = Pacer(costs, target=config.itl_target_ms / 1e3, block_size=cache.block_size)
        self._costs = None if self._pacer is None else costs  # nobody else asks
        self._recorder = None if trace is None else Recorder(trace, cache)
        self._on_step = on_step
        self._queue = make_queue(config)
        self._running: list[Sequence] = []  # by rank: served from the front, preempted from the back
        self._by_request: dict[str, Sequence] = {}
        self._by_id: dict[int, Sequence] = {}
        self._aborting: dict[str, tuple[FinishReason, str | None]] = {}  # request id -> reason, error
        self._released: list[int] = []  # known to the executor and ended since the last plan
        self._deltas: list[TokenDelta] = []  # of sequences that ended in plan()
        self._counters = Counters()
        self._planned: StepPlan | None = None  # the step between plan() and commit()
        self._draft = PlanDraft(budget=0)  # of the same step
        self._began = 0.0
        self._last_step: StepStats | None = None
        self._next_seq_id = 0
        self._started = clock()

    # the door

    @property
    def max_kv_len(self) -> int:
        """Tokens that one sequence can have in the cache; without a cache, that one step can compute."""
        capacity = self._cache.capacity
        return capacity if self._cache.retains else min(capacity, self._config.max_num_batched_tokens)

    @property
    def max_seq_len(self) -> int:
        """Longest sequence, prompt and output, that can be served: what an open-ended request may fill."""
        return min(self.max_model_len, self.max_kv_len + 1)

    def add(self, request: Request) -> None:
        """Queue a request. Raises ContextLengthError if it can never fit, EngineBusyError if the queue is full.

        prompt + max_tokens must not exceed the context, nor what the cache can hold. A request whose
        `params.max_tokens` is None goes to the end of what fits, and only its prompt and one token must fit.
        """
        if request.request_id in self._by_request:
            raise InvalidParameterError(f"request_id {request.request_id!r} is in use; choose another")
        check_request(
            request,
            max_model_len=self.max_model_len,
            max_kv_len=self.max_kv_len,
            cache_capacity=self._cache.capacity,
        )
        if len(self._queue) >= self._config.max_waiting:
            self._counters.rejected += 1
            raise EngineBusyError(
                f"{len(self._queue)} requests are waiting and max_waiting is {self._config.max_waiting}; try later"
            )
        max_len = min(len(request.prompt_token_ids) + request.max_tokens, self.max_seq_len)
        class_seconds = self._config.ageing_seconds
        sequence = Sequence(request, seq_id=self._next_seq_id, max_len=max_len, class_seconds=class_seconds)
        sequence.table = self._cache.new_table(sequence.token_ids, max_len=sequence.max_kv_len, salt=request.cache_salt)
        self._next_seq_id += 1
        self._counters.accepted += 1
        self._by_request[request.request_id] = sequence
        self._by_id[sequence.seq_id] = sequence
        self._queue.push(sequence)
        if self._recorder is not None:
            self._recorder.arrived(sequence)

    def abort(self, request_id: str, *, reason: FinishReason = "abort", error: str | None = None) -> None:
        """End a request at the top of the next plan, with this reason, or with "error" if one is given.

        Reason "stop" is for what was decided outside: a stop string was found. The delta comes from the commit of that
        plan. A request that is not live (any more) is ignored.
        """
        if request_id in self._by_request:
            self._aborting.setdefault(request_id, (reason if error is None else "error", error))

    def has_work(self) -> bool:
        """Whether a step would do anything, if only tell the executor what to forget."""
        return bool(self._by_request or self._released or self._deltas)

    # the step

    def plan(self) -> StepPlan:
        """Decide the next step. Must be followed by `commit`."""
        assert self._planned is None, "plan() was called twice without commit()"
        self._began = self._clock()
        self._end_aborted()
        draft = PlanDraft(budget=self._config.max_num_batched_tokens)
        if not self._cache.retains:
            self._start_over(draft)
        decodes, prefills = list[Sequence](), list[Sequence]()
        for sequence in self._running:
            (decodes if sequence.num_owed == 1 else prefills).append(sequence)
        draft.num_owing_one = draft.num_decodes = len(decodes)
        for sequence in decodes:
            draft.num_owing_one -= 1
            self._serve(sequence, 1, draft)
        for sequence in prefills:
            self._serve_prefill(sequence, draft)
        if not draft.num_preempted:
            self._admit(draft)
        elif len(self._queue):
            draft.halt = "preemption"
        return self._freeze(draft)

    def commit(self, plan: StepPlan, result: StepResult) -> list[TokenDelta]:
        """Take in what the step has produced: the new tokens of each request, and who has ended."""
        planned, self._planned = self._planned, None
        assert planned is not None and planned.step_id == plan.step_id == result.step_id, "commit() of another plan"
        outputs = {output.seq_id: output for output in result.outputs}
        deltas, self._deltas = self._deltas, []
        num_decodes, now = 0, self._clock()
        for chunk in plan.chunks:
            sequence = self._by_id[chunk.seq_id]
            if chunk.start >= sequence.num_prompt and len(chunk.token_ids) == 1 + chunk.num_drafts:
                num_decodes += 1
            delta = sequence.advance(chunk, outputs.get(chunk.seq_id), now=now)
            self._cache.commit(sequence.table, sequence.num_computed)
            if delta is not None:
                deltas.append(delta)
                self._counters.count(chunk, sequence, num_new=len(delta.token_ids))
            if sequence.finish_reason is not None:
                self._forget(sequence)
        self._measure(plan, num_decodes)
        return deltas

    def _serve(self, sequence: Sequence, num_tokens: int, draft: PlanDraft) -> Chunk | None:
        """Give a running sequence some of what it owes, preempting younger ones for its blocks if need be."""
        if not sequence.is_running:  # an older one took its blocks in this very plan
            return None
        while (chunk := self._next_chunk(sequence, num_tokens, draft)) is None:
            victim = self._running[-1]
            self._preempt(victim, draft, asker=sequence)
            if victim is sequence:
                return None
        draft.serve(chunk)
        return chunk

    def _serve_prefill(self, sequence: Sequence, draft: PlanDraft) -> None:
        """The same for one that owes more than a token: within the budget, the chunk limit and the step's time."""
        if not sequence.is_running:
            return
        num_tokens, reason = self._chunk_len(sequence, draft)
        if not num_tokens:
            draft.waits.append((sequence.seq_id, reason))
        elif self._serve(sequence, num_tokens, draft) is not None:
            draft.note_prefill(sequence.seq_id)
        if sequence.is_running:
            draft.num_promised += self._cache.num_missing(sequence.table, len(sequence.token_ids))

    def _admit(self, draft: PlanDraft) -> None:
        """Start waiting sequences, in order, while rows, budget and blocks allow."""
        for sequence in self._queue.candidates(num_running=len(self._running), now=self._began):
            if len(self._running) >= self._config.max_num_seqs:
                return draft.refuse(sequence.seq_id, "rows")
            num_tokens, reason = self._chunk_len(sequence, draft)
            if not num_tokens:
                return draft.refuse(sequence.seq_id, reason)
            num_known = len(sequence.token_ids)
            grant = self._cache.start(
                sequence.table, num_known, reusable=sequence.num_reusable, promised=draft.num_promised
            )
            if grant is Refusal.PENDING:
                draft.wait_for_prefix(sequence.seq_id)
                continue
            if isinstance(grant, Refusal):
                return draft.refuse(sequence.seq_id, "blocks")
            self._queue.remove(sequence)
            self._run(sequence, grant.num_cached, draft)
            num_tokens = self._chunk_len(sequence, draft)[0] or min(sequence.num_owed, self._cache.block_size)
            chunk = self._next_chunk(sequence, num_tokens, draft, first_block_ids=grant.block_ids)
            assert chunk is not None, "start() granted blocks that are not there"
            draft.serve(chunk)
            draft.note_prefill(sequence.seq_id)
            draft.num_promised += self._cache.num_missing(sequence.table, num_known)
        if len(self._queue) > draft.num_pending:
            draft.halt = "batch"

    def _run(self, sequence: Sequence, num_cached: int, draft: PlanDraft) -> None:
        """Give a started sequence its row."""
        bisect.insort(self._running, sequence, key=_rank)
        sequence.is_running = True
        sequence.num_computed = num_cached
        draft.admit(sequence)
        draft.started.append((sequence.seq_id, num_cached))
        if sequence.started is None:
            sequence.started = self._began
        if sequence.num_cached is None:  # what a preempted one finds again is its own, and no merit
            sequence.num_cached = min(num_cached, sequence.num_prompt)
            if self._cache.shares_prefixes and sequence.num_reusable:
                self._counters.prefix_query_tokens += sequence.num_prompt
            self._counters.prefix_hit_tokens += sequence.num_cached
            draft.num_hit_tokens += sequence.num_cached

    def _chunk_len(self, sequence: Sequence, draft: PlanDraft) -> tuple[int, WaitReason]:
        """How many of the owed tokens to compute now; if none, why."""
        owed = sequence.num_owed
        if not self._cache.retains:  # what is not computed in the same step would be lost
            return (owed if owed <= draft.budget else 0), "budget"
        most, limit = min(owed, draft.budget), self._config.prefill_chunk_size
        if limit is not None and limit < most:
            most = limit
        if most and self._pacer is not None:
            return self._pacer.most(sequence, most, draft), "itl"
        return most, "budget"

    def _next_chunk(
        self, sequence: Sequence, num_tokens: int, draft: PlanDraft, *, first_block_ids: tuple[int, ...] = ()
    ) -> Chunk | None:
        """Its next tokens and, if there is room, guesses after them; None if blocks are lacking."""
        end = sequence.num_computed + num_tokens
        num_drafts = self._num_drafts(sequence, num_tokens, draft) if sequence.drafts else 0
        block_ids = self._cache.extend(sequence.table, end + num_drafts)
        if block_ids is None and num_drafts:  # a guess is never worth a preemption
            num_drafts = 0
            block_ids = self._cache.extend(sequence.table, end)
        return None if block_ids is None else sequence.chunk(num_tokens, num_drafts, first_block_ids + block_ids)

    def _num_drafts(self, sequence: Sequence, num_tokens: int, draft: PlanDraft) -> int:
        """Guesses worth computing: only after the last known token, and never at the cost of another's one token."""
        if num_tokens < sequence.num_owed:
            return 0
        spare = draft.budget - num_tokens - draft.num_owing_one
        useful = sequence.max_len - len(sequence.token_ids) - 1
        return max(0, min(len(sequence.drafts), spare, useful))

    # leaving

    def _preempt(self, victim: Sequence, draft: PlanDraft, *, asker: Sequence) -> None:
        """Take a running sequence's blocks; it is computed again, as far as they are not found again."""
        self._stop_running(victim)
        self._queue.put_back(victim)
        victim.num_preemptions += 1
        self._counters.preemptions += 1
        draft.take_back(victim.seq_id, asker=asker.seq_id)

    def _start_over(self, draft: PlanDraft) -> None:
        """Without a cache nothing outlives its step: every step is an admission."""
        for sequence in tuple(self._running):
            self._stop_running(sequence)
            self._queue.put_back(sequence)
            draft.evicted.append(sequence.seq_id)

    def _stop_running(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self._cache.release(sequence.table)
        sequence.is_running = False
        sequence.num_computed = 0

    def _end_aborted(self) -> None:
        for request_id, (reason, error) in tuple(self._aborting.items()):
            sequence = self._by_request[request_id]
            if not sequence.is_running:
                self._queue.remove(sequence)
            self._deltas.append(sequence.end(reason, error=error, now=self._began))
            self._forget(sequence)

    def _forget(self, sequence: Sequence) -> None:
        """A sequence has ended and is in no queue."""
        assert sequence.finish_reason is not None
        if sequence.is_running:
            self._stop_running(sequence)
        if sequence.is_known:
            self._released.append(sequence.seq_id)
        del self._by_request[sequence.request.request_id]
        self._aborting.pop(sequence.request.request_id, None)  # it may have ended by itself since
        del self._by_id[sequence.seq_id]
        self._counters.finished[sequence.finish_reason] += 1
        if self._recorder is not None:
            self._recorder.ended(sequence)

    # numbers

    def stats(self) -> EngineStats:
        """State and counters now."""
        return self._counters.with_state(
            running=len(self._running),
            waiting=len(self._queue),
            blocks_used=self._cache.num_used,
            blocks_cached=self._cache.num_cached,
            blocks_total=self._cache.num_blocks,
            last_step=self._last_step,
            uptime_seconds=self._clock() - self._started,
        )

    def check_integrity(self) -> None:
        """Raise AssertionError unless queues, tables and counters agree."""
        assert set(self._aborting) <= set(self._by_request), "a request that has ended is to be aborted"
        assert len(self._by_id) == len(self._by_request), "a sequence is twice"
        assert len(self._running) <= self._config.max_num_seqs, "more rows than max_num_seqs"
        assert all(len(sequence.token_ids) <= self.max_seq_len for sequence in self._running), "a sequence is too long"
        waiting = list(self._queue)
        assert len(waiting) == len(self._queue), "the queue's length disagrees with what waits in it"
        integrity.check(self._by_id, self._running, waiting, self._cache, self.stats())

    def _freeze(self, draft: PlanDraft) -> StepPlan:
        plan = draft.freeze(self._counters.steps, released=tuple(self._released))
        self._released.clear()
        self._counters.steps += 1
        draft.blocks_shared = self._cache.num_shared
        self._draft = draft
        draft.num_waiting, draft.num_running = len(self._queue), len(self._running)
        draft.blocks_used, draft.blocks_cached = self._cache.num_used, self._cache.num_cached
        self._planned = plan
        if self._queue.counts_service:
            for chunk in plan.chunks:
                self._queue.charge(self._by_id[chunk.seq_id], len(chunk.token_ids) + chunk.samples)
        return plan

    def _measure(self, plan: StepPlan, num_decodes: int) -> None:
        kind = "mixed"
        if num_decodes == len(plan.chunks):
            kind = "decode" if plan.chunks else "idle"
        elif num_decodes == 0:
            kind = "prefill"
        draft = self._draft
        self._last_step = StepStats(
            step_id=plan.step_id,
            kind=kind,
            num_tokens=self._config.max_num_batched_tokens - draft.budget,
            num_sequences=len(plan.chunks),
            num_waiting=draft.num_waiting,
            num_running=draft.num_running,
            num_preempted=draft.num_preempted,
            blocks_used=draft.blocks_used,
            blocks_cached=draft.blocks_cached,
            blocks_total=self._cache.num_blocks,
            prefix_hit_tokens=draft.num_hit_tokens,
            seconds=self._clock() - self._began,
        )
        if self._costs is not None and (kind != "decode" or plan.step_id % OBSERVE_EVERY == 0):
            self._costs.observe(StepLoad.of(plan.chunks), self._last_step.seconds)
        if self._recorder is not None:
            self._recorder.step(plan, self._last_step, draft, began=self._began)
        if self._on_step is not None:
            self._on_step(plan, self._last_step)


def _rank(sequence: Sequence) -> tuple[float, int]:
    return sequence.rank
