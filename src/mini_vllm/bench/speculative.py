"""`mini-vllm bench speculative`: what guessing ahead brings, against the same engine without it.

Two engines with the same weights answer the same prompts in turn, A B A B; a figure is the median of the ratios of
neighbouring runs. Prompts are in benchmarks/speculative.json. A prompt whose output repeats itself (under half of its
4-grams distinct) says nothing about copying and is left out, by name. Must not know HTTP or other engines.
"""

import json
import logging
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mini_vllm.bench import machine
from mini_vllm.bench.figures import Figure
from mini_vllm.engine.llm import LLM
from mini_vllm.errors import ConfigError
from mini_vllm.types import SamplingParams

logger = logging.getLogger(__name__)

PROMPTS = Path(__file__).resolve().parents[3] / "benchmarks" / "speculative.json"
NUM_TOKENS = 128
LEAST_DISTINCT = 0.5
COPY_GOALS = {"bfloat16": 1.8, "q4_1": 1.2}  # of n-gram over off, one prompt at a time
FREE_GOAL = 0.97
ENGINE: dict[str, Any] = {"max_model_len": 1024, "max_num_seqs": 8, "num_blocks": 512}
DTYPES = {"bfloat16": "bfloat16", "q4_1": "auto"}


@dataclass(frozen=True, slots=True)
class Work:
    """Prompts that are answered together, and how."""

    name: str
    prompts: tuple[list[int], ...]
    params: SamplingParams
    batch: int  # prompts at a time
    goal: float | None = None


def measure(*, quick: bool, prompts: Path = PROMPTS) -> dict[str, Any]:
    """The record: machine and figures. `quick`: 5 pairs instead of 20."""
    pairs, figures = 5 if quick else 20, list[Figure]()
    meter = machine.LoadMeter()
    meter.begin()
    for weights in DTYPES:
        figures += _figures_of(weights, _read(prompts), pairs)
    described = {**machine.describe(), "pairs": pairs, "foreign": f"{meter.foreign() or 0:.0%}"}
    return {"machine": described, "figures": [figure.as_json() for figure in figures]}


def _figures_of(weights: str, prompts: Mapping[str, list[dict[str, str]]], pairs: int) -> Iterator[Figure]:
    with ExitStack() as stack:

        def engine(**more: Any) -> LLM:
            return stack.enter_context(LLM("smollm2-135m", dtype=DTYPES[weights], **ENGINE, **more))

        off, ngram = engine(), engine(speculative="ngram")
        copies = list(_usable(off, prompts["copy"]))
        greedy = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
        drawn = SamplingParams(temperature=0.8, top_p=0.95, seed=7, max_tokens=NUM_TOKENS, ignore_eos=True)
        free = [_chat(off, entry["prompt"]) for entry in prompts["free"]]
        copying = Work("copying, one at a time", tuple(copies), greedy, 1, COPY_GOALS[weights])
        talking = Work("free text, one at a time", tuple(free), drawn, 1, FREE_GOAL)
        works = [
            copying,
            talking,
            Work("copying, 8 at once", tuple((copies * 8)[:8]), greedy, 8, FREE_GOAL),
            Work("free text, 8 at once", tuple((free * 8)[:8]), drawn, 8, FREE_GOAL),
        ]
        for work in works:
            yield _compare((off, ngram), work, f"ngram {weights}", pairs=pairs)
        suffix = engine(speculative="suffix")
        yield _compare((off, suffix), replace(copying, goal=None), f"suffix {weights}", pairs=pairs)
        layers = engine(speculative="self", draft_layers=20, gamma=3)
        note = "a synthetic pair: the model and its own first 20 of 30 layers"
        yield _compare((off, layers), talking, f"self {weights}", pairs=pairs, note=note)


def _compare(engines: tuple[LLM, LLM], work: Work, name: str, *, pairs: int, note: str = "") -> Figure:
    """The median ratio of the second engine's rate to the first's, after one run of each to warm up."""
    off, on = engines
    drafter, weights = name.split()
    expected = _run(off, work)[1]
    before = on.engine.core.stats()
    if _run(on, work)[1] != expected:
        raise AssertionError(f"{name} changes the output of {work.name}")
    ratios = []
    for i in range(pairs):
        first, second = (off, on) if i % 2 else (on, off)
        seconds = {id(first): _run(first, work)[0], id(second): _run(second, work)[0]}
        ratios.append(seconds[id(off)] / seconds[id(on)])
    after = on.engine.core.stats()
    drafts, forwards = after.drafts - before.drafts, after.forwards - before.forwards
    accepted = after.drafts_accepted - before.drafts_accepted
    share = f"{accepted / drafts:.0%} of {drafts} guesses stood" if drafts else "no guesses"
    rate = f"{(after.output_tokens - before.output_tokens) / forwards:.2f} tokens a forward"
    logger.info("%s, %s: %.2f", name, work.name, statistics.median(ratios))
    return Figure(
        what=f"{drafter} over off, {work.name}",
        value=statistics.median(ratios),
        unit="x",
        form=weights,
        load=f"{len(work.prompts)} prompts",
        goal=work.goal,
        at_least=True,
        note="; ".join(filter(None, (f"{min(ratios):.2f}-{max(ratios):.2f}", share, rate, note))),
    )


def _run(llm: LLM, work: Work) -> tuple[float, list[list[int]]]:
    """Seconds, and the tokens of every prompt."""
    found: list[list[int]] = []
    begin = time.perf_counter()
    for start in range(0, len(work.prompts), work.batch):
        outputs = llm.generate(list(work.prompts[start : start + work.batch]), work.params)
        found += [output.outputs[0].token_ids for output in outputs]
    return time.perf_counter() - begin, found


def _usable(llm: LLM, entries: Sequence[Mapping[str, str]]) -> Iterator[list[int]]:
    """Prompts whose answers do not repeat themselves."""
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
    for entry in entries:
        prompt = llm.tokenizer.encode(entry["prompt"])
        [output] = llm.generate([prompt], params)
        share = distinct_share(output.outputs[0].token_ids)
        if share >= LEAST_DISTINCT:
            yield prompt
        else:
            logger.info("left out: %s (%.0f%% of its 4-grams are distinct)", entry["name"], 100 * share)


def distinct_share(token_ids: Sequence[int]) -> float:
    """Distinct 4-grams over all 4-grams; 1 for fewer than four tokens."""
    grams = [tuple(token_ids[i : i + 4]) for i in range(len(token_ids) - 3)]
    return len(set(grams)) / len(grams) if grams else 1.0


def _chat(llm: LLM, text: str) -> list[int]:
    prompt: list[int] = llm.engine.frontend.render_chat([{"role": "user", "content": text}])
    return prompt


def _read(path: Path) -> dict[str, list[dict[str, str]]]:
    try:
        found: dict[str, list[dict[str, str]]] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}; run this from a checkout of the project") from None
    return found
