"""One step: plan → inputs → program → logits in slices → sampler → outputs.

After a plain step of few sequences, a program that can work in the background begins the step that is likely to follow,
while the engine books the tokens, sends them and plans. The next plan decides: what was begun is taken if it is just
what the plan asks for, and dropped if not. So results cannot differ.

Must not know files, devices or the scheduler's reasons.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from mini_vllm.grammar import Cursor, GrammarCompiler, Guide
from mini_vllm.kernels.table import EagerProgram, Program
from mini_vllm.runner.drafting import Drafting
from mini_vllm.runner.inputs import InputBuilder, StepLayout
from mini_vllm.runner.rows import Row, RowTable
from mini_vllm.sampling import Sampler, num_accepted
from mini_vllm.types import Chunk, SequenceOutput, StepPlan, TokenLogprobs

Float32Array = npt.NDArray[np.float32]
Bits = npt.NDArray[np.uint32]


@dataclass(slots=True)
class _Readings:
    """What the slices of logits gave, in plan order."""

    tokens: list[int] = field(default_factory=list)
    reports: list[TokenLogprobs | None] = field(default_factory=list)
    scores: list[TokenLogprobs] = field(default_factory=list)


class ModelRunner:
    """Runs plans on a compiled program and keeps the rows of live sequences."""

    def __init__(
        self,
        program: Program,
        sampler: Sampler,
        *,
        block_size: int,
        max_model_len: int,
        max_tokens: int,
        max_rows: int,
        grammars: GrammarCompiler | None = None,
    ) -> None:
        self._program = program
        self._sampler = sampler
        self.rows = RowTable(
            sampler.states,
            block_size=block_size,
            max_blocks=-(-max_model_len // block_size),
            capacity=max_rows,
            grammars=grammars,
        )
        self.drafting: Drafting | None = None  # who guesses ahead, if anybody
        self._builder = InputBuilder(self.rows, max_tokens=max_tokens, max_rows=max_rows)
        self._eager = program if isinstance(program, EagerProgram) else None
        self._is_begun = False  # the builder's guess of the next step is being computed

    def run(self, plan: StepPlan) -> tuple[SequenceOutput, ...]:
        """Do what the plan says; one output for each chunk that asks for something, in plan order."""
        if self.drafting is not None:
            self.drafting.begin_step(plan, self.rows.get)
        self.rows.apply(plan)
        layout = self._confirm(plan.chunks) if self._is_begun else None
        if not plan.chunks:
            return ()
        layout = layout or self._builder.build(plan.chunks)
        outputs = self._compute(plan.chunks, layout)
        if self.drafting is not None:
            outputs = self.drafting.end_step(plan.chunks, layout.sequence_rows, outputs)
        return outputs

    def _compute(self, chunks: tuple[Chunk, ...], layout: StepLayout) -> tuple[SequenceOutput, ...]:
        fits = len(chunks) <= self._program.max_logit_rows
        if layout.succession is not None and fits and self._eager is not None and self.drafting is None:
            return self._follow(self._eager, chunks, layout)
        hidden = self._program.run(layout.inputs)
        if layout.is_plain and fits:
            return self._plain_outputs(chunks, layout)
        readings = self._read(layout, self._grammar_bits(chunks, layout))
        return tuple(self._outputs(chunks, layout, readings, hidden))

    def progress(self) -> int:
        """Changes while a step is being computed; may be called from any thread."""
        return self._program.progress()

    def op_seconds(self) -> dict[str, float]:
        """Wall time by kind of op since the last call, where the program can tell; the first call begins to measure.

        Between two steps only.
        """
        if self._is_begun:
            self._confirm(())
        measure = getattr(self._program, "op_seconds", dict)
        seconds: dict[str, float] = measure()
        return seconds

    def clear(self) -> None:
        """Forget every sequence."""
        if self._is_begun:
            self._confirm(())
        self.rows.clear()
        if self.drafting is not None:
            self.drafting.clear()

    def _plain_outputs(self, chunks: tuple[Chunk, ...], layout: StepLayout) -> tuple[SequenceOutput, ...]:
        """Of a step in which every chunk gets one token and nothing else: most steps of most engines."""
        samples = layout.samples
        tokens, _ = self._sampler.sample(
            self._program.logits(0, len(chunks)), samples.rows, slots=samples.slots, positions=samples.positions
        )
        if self._eager is not None and self.drafting is None:
            self._begin_next(self._eager, tokens)
        return tuple([SequenceOutput(chunk.seq_id, (token,)) for chunk, token in zip(chunks, tokens)])

    def _follow(
        self, program: EagerProgram, chunks: tuple[Chunk, ...], layout: StepLayout
    ) -> tuple[SequenceOutput, ...]:
        """A plain greedy step whose program chooses the tokens, and begins the next one by itself."""
        assert layout.succession is not None
        tokens, self._is_begun = program.follow(layout.inputs, layout.succession)
        if self._is_begun:
            self._builder.note_guess(tokens)
        elif min(tokens) < 0:  # for the sampler's own answer, and its warning
            return self._plain_outputs(chunks, layout)
        return tuple([SequenceOutput(chunk.seq_id, (token,)) for chunk, token in zip(chunks, tokens)])

    def _begin_next(self, program: EagerProgram, tokens: list[int]) -> None:
        layout = self._builder.guess(tokens)
        if layout is None:
            return
        self._is_begun = program.begin(layout.inputs)
        if not self._is_begun:  # nor will it ever: it has one thread, say
            self._builder.take_back()
            self._eager = None

    def _confirm(self, chunks: tuple[Chunk, ...]) -> StepLayout | None:
        """What was begun, if it is the step of these chunks; else it is dropped."""
        self._is_begun = False
        assert self._eager is not None, "only an eager program begins a step"
        layout = self._builder.confirm(chunks)
        if layout is None:
            self._eager.drop()
            self._builder.take_back()
        return layout

    def _grammar_bits(self, chunks: tuple[Chunk, ...], layout: StepLayout) -> list[Bits | None]:
        """For each row that samples, the tokens that its grammar allows; empty if no sequence here has one."""
        found: list[Bits | None] = []
        if not self.rows.num_constrained:
            return found
        for chunk, row, num_samples in zip(chunks, layout.sequence_rows, layout.num_samples):
            if row.cursor is None or not num_samples:
                found += [None] * num_samples
                continue
            bits = np.empty((num_samples, row.cursor.num_words), dtype=np.uint32)
            row.cursor.fill(bits, drafts=chunk.token_ids[len(chunk.token_ids) - chunk.num_drafts :])
            found += list(bits)
        return found

    def _read(self, layout: StepLayout, grammars: list[Bits | None]) -> _Readings:
        """Sample and score, a slice of output rows at a time: never one [tokens, vocabulary] array."""
        readings = _Readings()
        samples, scores = layout.samples, layout.scores
        num_rows, most = len(layout.inputs.logit_rows), self._program.max_logit_rows
        for start in range(0, num_rows, most):
            stop = min(start + most, num_rows)
            first, last = np.searchsorted(samples.rows, (start, stop)).tolist()
            score_first, score_last = np.searchsorted(scores.rows, (start, stop)).tolist()
            if first == last and score_first == score_last:
                continue
            logits = self._program.logits(start, stop)
            if first < last:
                tokens, reports = self._sampler.sample(
                    logits,
                    samples.rows[first:last] - np.int32(start),
                    slots=samples.slots[first:last],
                    positions=samples.positions[first:last],
                    drafts=samples.drafts[first:last],
                    grammars=grammars[first:last],
                )
                readings.tokens += tokens
                readings.reports += reports
            if score_first < score_last:
                part = slice(score_first, score_last)
                rows = scores.rows[part] - np.int32(start)
                readings.scores += self._sampler.score(logits, rows, scores.token_ids[part], scores.counts[part])
        return readings

    def _outputs(
        self, chunks: tuple[Chunk, ...], layout: StepLayout, readings: _Readings, hidden: Float32Array
    ) -> Iterator[SequenceOutput]:
        sampled = scored = 0
        for index, (chunk, row) in enumerate(zip(chunks, layout.sequence_rows)):
            num_samples, num_scores = layout.num_samples[index], layout.num_scores[index]
            if not num_samples and not num_scores and index not in layout.hidden:
                continue
            tokens, reports = self._accept(chunk, row, readings, slice(sampled, sampled + num_samples))
            vector: tuple[float, ...] = ()
            if index in layout.hidden and row.pool is not None:
                row.pool.add(chunk.start, hidden[slice(*layout.hidden[index])])
                if chunk.start + len(chunk.token_ids) == len(row.prompt_token_ids):
                    vector = row.pool.result()
            output = SequenceOutput(
                seq_id=chunk.seq_id,
                token_ids=tokens,
                logprobs=reports,
                prompt_logprobs=tuple(readings.scores[scored : scored + num_scores]),
                hidden=vector,
            )
            yield output if row.cursor is None else _follow(row.cursor, output)
            sampled += num_samples
            scored += num_scores

    def _accept(
        self, chunk: Chunk, row: Row, readings: _Readings, part: slice
    ) -> tuple[tuple[int, ...], tuple[TokenLogprobs, ...]]:
        """The tokens that stand, which penalties count from now on, with their logprobs if asked for."""
        tokens = readings.tokens[part]
        if chunk.num_drafts and tokens:
            tokens = tokens[: num_accepted(chunk.token_ids[len(chunk.token_ids) - chunk.num_drafts :], tokens)]
        if row.penalised:
            self._sampler.states.observe(row.slot, tokens)
        reports = readings.reports[part][: len(tokens)]
        return tuple(tokens), tuple([report for report in reports if report is not None])


def _follow(cursor: Cursor | Guide, output: SequenceOutput) -> SequenceOutput:
    """Move the cursor past the tokens that stand. What drafts brought beyond the end of the text is dropped."""
    count = cursor.accept(output.token_ids)
    return replace(
        output,
        token_ids=output.token_ids[:count],
        logprobs=output.logprobs[:count],
        complete=bool(count) and cursor.is_complete,
        error=cursor.error,
    )
