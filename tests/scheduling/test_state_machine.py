"""Random lives of random requests over scheduler, cache and executor: nothing is lost, doubled or changed.

After every step: blocks are conserved, reference counts equal the tables that hold them, nothing is freed twice, the
index leads to blocks that hold what it says, every write goes to a block of one table only (the fake executor checks
that). At the end: every accepted request has ended exactly once, with the tokens that it gets when alone.
"""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from scheduling.driving import Rig, prompt_of

from mini_vllm.config import POLICIES
from mini_vllm.errors import ContextLengthError
from mini_vllm.scheduling import LinearCosts

MODES = st.sampled_from(
    [{}, {}, {}, {"enable_prefix_caching": False}, {"cache_backend": "contiguous"}, {"kv_cache": False}]
)


class Lives(RuleBasedStateMachine):
    """One scheduler of a random shape and the requests that come and go."""

    rig: Rig

    @initialize(
        mode=MODES,
        num_blocks=st.integers(3, 20),
        block_size=st.integers(1, 5),
        rows=st.integers(1, 6),
        extra_budget=st.integers(0, 20),
        chunk=st.none() | st.integers(1, 9),
        num_drafts=st.sampled_from([0, 0, 1, 3]),
        max_model_len=st.integers(8, 60),
        policy=st.sampled_from(POLICIES),
        step_seconds=st.sampled_from([None, 0.0, 0.03, 1.0]),
    )
    def build(
        self,
        mode: dict[str, Any],
        num_blocks: int,
        block_size: int,
        rows: int,
        extra_budget: int,
        chunk: int | None,
        num_drafts: int,
        max_model_len: int,
        policy: str,
        step_seconds: float | None,
    ) -> None:
        self.rig = Rig(
            scheduling_policy=policy,
            costs=None if step_seconds is None else LinearCosts(step=step_seconds, token=2e-3),
            num_blocks=num_blocks,
            block_size=block_size,
            max_model_len=max_model_len,
            max_num_seqs=rows,
            max_num_batched_tokens=rows + extra_budget,
            prefill_chunk_size=chunk,
            num_drafts=num_drafts,
            vocab_size=13,
            **mode,
        )
        self.num_added = 0
        self.num_refused = 0

    @rule(
        family=st.integers(0, 2),
        shared=st.integers(0, 30),
        own=st.integers(0, 8),
        max_tokens=st.sampled_from([0, 1, 2, 5, 12, 25]),
        eos=st.sets(st.integers(0, 12), max_size=2),
        min_tokens=st.integers(0, 3),
        scored=st.booleans(),
        salt=st.sampled_from(["", "", "other"]),
        open_ended=st.booleans(),
        priority=st.integers(-2, 2),
        key=st.sampled_from(["", "a", "b"]),
        due_in=st.none() | st.integers(-5, 50),
    )
    def add(
        self,
        family: int,
        shared: int,
        own: int,
        max_tokens: int,
        eos: set[int],
        min_tokens: int,
        scored: bool,
        salt: str,
        open_ended: bool,
        priority: int,
        key: str,
        due_in: int | None,
    ) -> None:
        prompt = prompt_of(shared, family)[:shared] + prompt_of(own, 5 + self.num_added)
        try:
            self.rig.add(
                f"r{self.num_added}",
                prompt or [1],
                max_tokens,
                eos_token_ids=tuple(sorted(eos)),
                min_tokens=min(min_tokens, max_tokens),
                logprobs=0,
                prompt_logprobs=0 if scored else None,
                cache_salt=salt,
                open_ended=open_ended,
                priority=priority,
                key=key,
                arrival=self.rig.time,
                deadline=None if due_in is None else self.rig.time + due_in,
            )
            self.num_added += 1
        except ContextLengthError:
            self.num_refused += 1

    @rule(num_steps=st.integers(1, 4))
    def step(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.rig.step()

    @precondition(lambda self: self.num_added)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.rig.scheduler.abort(f"r{data.draw(st.integers(0, self.num_added - 1))}")

    @precondition(lambda self: self.num_added)
    @rule(data=st.data())
    def abort_while_computing(self, data: st.DataObject) -> None:
        plan = self.rig.scheduler.plan()
        result = self.rig.executor.run(plan)
        self.rig.scheduler.abort(f"r{data.draw(st.integers(0, self.num_added - 1))}")
        for delta in self.rig.scheduler.commit(plan, result):
            self.rig.answers[delta.request_id].take(delta)

    @precondition(lambda self: self.num_added > 1)
    @rule()
    def finish_all(self) -> None:
        self.rig.run(max_steps=3000)

    @invariant()
    def intact(self) -> None:
        if hasattr(self, "rig"):
            self.rig.scheduler.check_integrity()

    def teardown(self) -> None:
        if not hasattr(self, "rig"):
            return
        rig = self.rig
        rig.run(max_steps=3000)
        rig.scheduler.check_integrity()
        rig.check_outputs()
        stats = rig.scheduler.stats()
        assert stats.accepted == self.num_added == len(rig.answers)
        assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)
        assert stats.output_tokens == sum(len(answer.token_ids) for answer in rig.answers.values())
        for name, answer in rig.answers.items():
            assert len(answer.logprobs) == len(answer.token_ids)
            request = rig.requests[name]
            if request.params.prompt_logprobs is not None and answer.finish_reason != "abort":
                assert [entry.token_id for entry in answer.prompt_logprobs] == list(request.prompt_token_ids[1:])


TestLives = Lives.TestCase
TestLives.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
