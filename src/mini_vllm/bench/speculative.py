"""`mini-vllm bench speculative`: what guessing ahead brings, against the same engine without it.

One engine answers the same prompts in turn with guesses and, as its requests opt out, without: A B, B A. A figure is
the median of the ratios of these pairs. (Two engines differ by up to 5 % from where their memory lies, with guesses or
without.) Prompts are in benchmarks/speculative.json. A prompt whose output repeats itself (under half of its 4-grams
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


def measure(*, quick: bool, threads: int, only: Sequence[str] = (), prompts: Path = PROMPTS) -> dict[str, Any]:
    """The record: machine and figures. `quick`: 5 pairs instead of 20. `only`: these drafters and weights."""
    unknown = set(only) - set(DRAFTERS) - set(DTYPES)
    if unknown:
        raise ConfigError(
            f"only has {', '.join(sorted(unknown))}; choose of {', '.join((*DRAFTERS, *DTYPES))}", param="only"
        )
    drafters = [name for name in DRAFTERS if name in only] or list(DRAFTERS)
    figures = list[Figure]()
    for weights in [name for name in DTYPES if name in only] or list(DTYPES):
        figures += _figures_of(weights, drafters, _read(prompts), pairs=5 if quick else 20, threads=threads)
    return {"machine": {**machine.describe(), "threads": threads}, "figures": [figure.as_json() for figure in figures]}


def _figures_of(
    weights: str, drafters: Sequence[str], prompts: Mapping[str, list[dict[str, str]]], *, pairs: int, threads: int
) -> Iterator[Figure]:
    for name in drafters:
        options = {**ENGINE, **DRAFTERS[name], "threads": threads}
        with LLM(MODEL, dtype=DTYPES[weights], speculative=name, **options) as llm:
            for work in _works(llm, prompts):
                is_copy = name == "ngram" and work.batch == 1 and work.params.temperature == 0
                wanted = replace(work, goal=COPY_GOALS[weights] if is_copy else GOAL)
                yield _compare(llm, wanted, f"{name} {weights}", pairs=pairs, note=NOTES.get(name, ""))


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


def _compare(llm: LLM, work: Work, name: str, *, pairs: int, note: str = "") -> Figure:
    """The median ratio of the rate with guesses to that without, after prompts are cached and one run of each."""
    drafter, weights = name.split()
    off, on = replace(work, params=replace(work.params, speculation=False)), work
    llm.generate(list(work.prompts), replace(off.params, max_tokens=1))
    for each in (off, on):
        _run(llm, each, 0)
    before, meter, ratios, forwards = llm.engine.core.stats(), machine.LoadMeter(), list[float](), 0
    meter.begin()
    for number in range(pairs):
        first, second = (off, on) if number % 2 else (on, off)
        found = {id(first): _run(llm, first, number), id(second): _run(llm, second, number)}
        if found[id(on)].token_ids != found[id(off)].token_ids:
            raise AssertionError(f"{name} changes the output of {work.name}")
        ratios.append(found[id(off)].seconds / found[id(on)].seconds)
        forwards += found[id(on)].num_forwards
    after = llm.engine.core.stats()
    drafts = after.drafts - before.drafts
    accepted = after.drafts_accepted - before.drafts_accepted
    share = f"{accepted / drafts:.0%} of {drafts} guesses stood" if drafts else "no guesses"
    rate = f"{(after.output_tokens - before.output_tokens) / 2 / forwards:.2f} tokens a forward"
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


@dataclass(frozen=True, slots=True)
class _Run:
    seconds: float
    token_ids: list[list[int]]  # of every prompt
    num_forwards: int  # of every sequence


def _run(llm: LLM, work: Work, number: int) -> _Run:
    begin = time.perf_counter()
    outputs = llm.generate(work.part(number), work.params)
    return _Run(
        time.perf_counter() - begin,
        [output.outputs[0].token_ids for output in outputs],
        sum(output.metrics.num_forwards for output in outputs if output.metrics is not None),
    )


def _usable(llm: LLM, entries: Sequence[Mapping[str, str]]) -> Iterator[list[int]]:
    """Prompts whose answers do not repeat themselves."""
    params = SamplingParams(temperature=0.0, max_tokens=max(NUM_TOKENS.values()), ignore_eos=True, speculation=False)
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
