"""`mini-vllm bench speculative`: what guessing ahead brings, against the same engine without it.

Two engines with the same weights answer the same prompts in turn, A B, B A; a figure is the median of the ratios of
these pairs. Prompts are in benchmarks/speculative.json. A prompt whose output repeats itself (under half of its 4-grams
distinct) says nothing about copying and is left out, by name. Must not know HTTP or other engines.
"""

import json
import logging
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mini_vllm.bench import machine
from mini_vllm.bench.figures import Figure
from mini_vllm.engine.llm import LLM
from mini_vllm.errors import ConfigError
from mini_vllm.types import SamplingParams

logger = logging.getLogger(__name__)

MODEL = "smollm2-135m"
PROMPTS = Path(__file__).resolve().parents[3] / "benchmarks" / "speculative.json"
NUM_TOKENS = {1: 128, 8: 64}  # of an answer, by prompts at a time
LEAST_DISTINCT = 0.5
COPY_GOALS = {"bfloat16": 1.8, "q4_1": 1.2}  # of n-gram over off, one prompt at a time
GOAL = 0.97  # of everything else
ENGINE: dict[str, Any] = {"max_model_len": 1024, "max_num_seqs": 8, "num_blocks": 768}
DTYPES = {"bfloat16": "bfloat16", "q4_1": "auto"}
DRAFTERS: dict[str, dict[str, Any]] = {
    "ngram": {},
    "suffix": {},
    "self": {"draft_layers": 20, "gamma": 3},
    "draft": {"draft_model": MODEL, "gamma": 4},
}
NOTES = {
    "suffix": "answers come again, and it has seen them",
    "self": "a synthetic pair: the model and its own first 20 of 30 layers",
    "draft": "a synthetic pair: the model and itself at 4 bits",
}


@dataclass(frozen=True, slots=True)
class Work:
    """Prompts, how many of them are answered together, and how."""

    name: str
    prompts: tuple[list[int], ...]
    params: SamplingParams
    batch: int
    goal: float | None = None

    def part(self, number: int) -> list[list[int]]:
        """The prompts of one run: the next `batch` of them, round and round."""
        first = number * self.batch
        return [self.prompts[(first + i) % len(self.prompts)] for i in range(self.batch)]


def measure(*, quick: bool, only: Sequence[str] = (), prompts: Path = PROMPTS) -> dict[str, Any]:
    """The record: machine and figures. `quick`: 5 pairs instead of 20. `only`: these drafters and weights."""
    unknown = set(only) - set(DRAFTERS) - set(DTYPES)
    if unknown:
        raise ConfigError(
            f"only has {', '.join(sorted(unknown))}; choose of {', '.join((*DRAFTERS, *DTYPES))}", param="only"
        )
    drafters = [name for name in DRAFTERS if name in only] or list(DRAFTERS)
    figures = list[Figure]()
    for weights in [name for name in DTYPES if name in only] or list(DTYPES):
        figures += _figures_of(weights, drafters, _read(prompts), pairs=5 if quick else 20)
    return {"machine": machine.describe(), "figures": [figure.as_json() for figure in figures]}


def _figures_of(
    weights: str, drafters: Sequence[str], prompts: Mapping[str, list[dict[str, str]]], *, pairs: int
) -> Iterator[Figure]:
    with LLM(MODEL, dtype=DTYPES[weights], **ENGINE) as off:
        works = _works(off, prompts)
        for name in drafters:
            with LLM(MODEL, dtype=DTYPES[weights], speculative=name, **ENGINE, **DRAFTERS[name]) as on:
                for work in works:
                    is_copy = name == "ngram" and work.batch == 1 and work.params.temperature == 0
                    wanted = replace(work, goal=COPY_GOALS[weights] if is_copy else GOAL)
                    yield _compare((off, on), wanted, f"{name} {weights}", pairs=pairs, note=NOTES.get(name, ""))


def _works(llm: LLM, prompts: Mapping[str, list[dict[str, str]]]) -> list[Work]:
    copies = tuple(_usable(llm, prompts["copy"]))
    free = tuple(_chat(llm, entry["prompt"]) for entry in prompts["free"])
    found = []
    for batch, length in NUM_TOKENS.items():
        how_many = "one at a time" if batch == 1 else f"{batch} at once"
        greedy = SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True)
        drawn = SamplingParams(temperature=0.8, top_p=0.95, seed=7, max_tokens=length, ignore_eos=True)
        found.append(Work(f"copying, {how_many}", copies, greedy, batch))
        found.append(Work(f"free text, {how_many}", free, drawn, batch))
    return found


def _compare(engines: tuple[LLM, LLM], work: Work, name: str, *, pairs: int, note: str = "") -> Figure:
    """The median ratio of the second engine's rate to the first's, after prompts are cached and one run of each."""
    off, on = engines
    drafter, weights = name.split()
    for llm in engines:
        llm.generate(list(work.prompts), replace(work.params, max_tokens=1))
        _run(llm, work, 0)
    before, meter, ratios = on.engine.core.stats(), machine.LoadMeter(), list[float]()
    meter.begin()
    for number in range(pairs):
        first, second = (off, on) if number % 2 else (on, off)
        found = {id(first): _run(first, work, number), id(second): _run(second, work, number)}
        if found[id(on)][1] != found[id(off)][1]:
            raise AssertionError(f"{name} changes the output of {work.name}")
        ratios.append(found[id(off)][0] / found[id(on)][0])
    after = on.engine.core.stats()
    drafts, forwards = after.drafts - before.drafts, after.forwards - before.forwards
    accepted = after.drafts_accepted - before.drafts_accepted
    share = f"{accepted / drafts:.0%} of {drafts} guesses stood" if drafts else "no guesses"
    rate = f"{(after.output_tokens - before.output_tokens) / forwards:.2f} tokens a forward"
    spread = f"{min(ratios):.2f}-{max(ratios):.2f} in {pairs} pairs"
    load = f"foreign load {meter.foreign() or 0:.0%}"
    logger.info("%s, %s: %.3f (%s; %s; %s; %s)", name, work.name, statistics.median(ratios), spread, share, rate, load)
    return Figure(
        what=f"{drafter} over off, {work.name}",
        value=statistics.median(ratios),
        unit="x",
        form=weights,
        load=f"{len(work.prompts)} prompts",
        goal=work.goal,
        at_least=True,
        note="; ".join(filter(None, (spread, share, rate, load, note))),
    )


def _run(llm: LLM, work: Work, number: int) -> tuple[float, list[list[int]]]:
    """Seconds, and the tokens of every prompt."""
    begin = time.perf_counter()
    outputs = llm.generate(work.part(number), work.params)
    return time.perf_counter() - begin, [output.outputs[0].token_ids for output in outputs]


def _usable(llm: LLM, entries: Sequence[Mapping[str, str]]) -> Iterator[list[int]]:
    """Prompts whose answers do not repeat themselves."""
    params = SamplingParams(temperature=0.0, max_tokens=max(NUM_TOKENS.values()), ignore_eos=True)
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
