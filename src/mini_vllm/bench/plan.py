"""Which engines meet on which work: stages that hold the same kind of weights, and the rows that come out of them.

A stage's engines are loaded together and take turns. Must not know processes or clocks.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from mini_vllm.bench.rows import PEERS, WEIGHTS, WORKS
from mini_vllm.bench.workloads import BATCH8, SINGLE, THROUGHPUT, Work
from mini_vllm.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Meeting:
    """One form of a peer, and which forms of ours it meets: (our form, the row's weights)."""

    peer: str
    form: str
    ours: tuple[tuple[str, str], ...]
    works: tuple[Work, ...] = THROUGHPUT


@dataclass(frozen=True, slots=True)
class Stage:
    """Meetings whose engines are in memory at the same time."""

    name: str
    meetings: tuple[Meeting, ...]

    @property
    def our_forms(self) -> tuple[str, ...]:
        """Forms of ours that are needed, each once."""
        return tuple(dict.fromkeys(form for meeting in self.meetings for form, _ in meeting.ours))


# transformers has no 4-bit form here: its float types are the way in which people run this model with it, so they
# stand against our default file as well.
STAGES = (
    Stage(
        "4 bits",
        (
            Meeting("llama.cpp", "q4_1", (("q4_1", "q4_1"),)),
            Meeting("llama.cpp", "q4_0", (("q4_1", "4bit"),)),
            Meeting("openvino", "int4", (("q4_1", "4bit"),)),
            Meeting("onnxruntime", "int4", (("q4_1", "4bit"),)),
        ),
    ),
    Stage(
        "8 bits",
        (
            Meeting("llama.cpp", "q8_0", (("q8_0", "q8_0"),)),
            Meeting("openvino", "int8", (("q8_0", "8bit"),)),
            Meeting("ctranslate2", "int8", (("q8_0", "8bit"),)),
        ),
    ),
    Stage(
        "bfloat16",
        (
            Meeting("llama.cpp", "bf16", (("bf16", "bf16"),)),
            Meeting("openvino", "bf16", (("bf16", "bf16"),)),
            Meeting("vllm", "bf16", (("bf16", "bf16"),)),
            Meeting("transformers", "bf16", (("q4_1", "q4_1"), ("bf16", "bf16"))),
        ),
    ),
    Stage("float16", (Meeting("llama.cpp", "f16", (("f16", "f16"),), (SINGLE,)),)),
    Stage(
        "float32",
        (
            Meeting("llama.cpp", "f32", (("f32", "f32"),)),
            Meeting("openvino", "f32", (("f32", "f32"),)),
            Meeting("vllm", "f32", (("f32", "f32"),)),
            Meeting("transformers", "f32", (("q4_1", "q4_1"), ("f32", "f32"))),
        ),
    ),
)


# Two engines that a package index has ready to run: a few minutes, to see that all of it works.
SMOKE_STAGES = (
    Stage(
        "smoke",
        (
            Meeting("llama.cpp", "q4_1", (("q4_1", "q4_1"),), (SINGLE, BATCH8)),
            Meeting("transformers", "f32", (("q4_1", "q4_1"),), (SINGLE, BATCH8)),
        ),
    ),
)


# Rows that are measured beside the stages: (work, weights, peer).
OTHER_ROWS = (
    ("start", "q4_1", "llama.cpp"),
    ("memory", "q4_1", "self"),
    ("sampled32", "q4_1", "self"),
    ("history_2000", "q4_1", "self"),
    ("overhead", "q4_1", "self"),
    ("overhead", "bf16", "self"),
    ("neighbours", "q4_1", "self"),
    ("tinyllama", "q4_0", "llama.cpp"),
)


@dataclass(frozen=True, slots=True)
class Selection:
    """What `--only` names. Of works, weights and peers each, nothing named means all."""

    works: frozenset[str] = frozenset()
    weights: frozenset[str] = frozenset()
    peers: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, words: Iterable[str]) -> "Selection":
        """From names, also several in one word with commas; an unknown one is a `ConfigError` that lists all."""
        names = [name for word in words for name in word.split(",") if name]
        for name in names:
            if name not in (*WORKS, *WEIGHTS, *PEERS):
                known = ", ".join((*WORKS, *WEIGHTS, *PEERS))
                raise ConfigError(f"only is {name!r}; choose from {known}", param="only")
        return cls(*(frozenset(names).intersection(group) for group in (WORKS, WEIGHTS, PEERS)))

    def takes(self, work: str, weights: str, peer: str) -> bool:
        """Whether a row is wanted."""
        pairs = ((work, self.works), (weights, self.weights), (peer, self.peers))
        return all(not wanted or name in wanted for name, wanted in pairs)

    def check(self, rows: Iterable[tuple[str, str, str]]) -> None:
        """`ConfigError` if none of these rows (work, weights, peer) is wanted; it says what each name goes with."""
        known = list(rows)
        if any(self.takes(*row) for row in known):
            return
        groups = zip((WORKS, WEIGHTS, PEERS), (self.works, self.weights, self.peers))
        names = [name for group, wanted in groups for name in group if name in wanted]
        partners = "; ".join(f"{name} goes with {_partners(name, known) or 'no other here'}" for name in names)
        raise ConfigError(f"only is {', '.join(names)}, which no row joins: {partners}", param="only")


def _partners(name: str, rows: Iterable[tuple[str, str, str]]) -> str:
    """All names that share a row with this one, in their usual order."""
    found = {other for row in rows if name in row for other in row} - {name}
    return ", ".join(other for other in (*WORKS, *WEIGHTS, *PEERS) if other in found)


def planned(stages: Sequence[Stage]) -> Iterator[tuple[str, str, str]]:
    """Every row of these stages: (work, weights, peer)."""
    for stage in stages:
        for meeting in stage.meetings:
            yield from ((work.name, weights, meeting.peer) for work in meeting.works for _, weights in meeting.ours)


def select(stages: Sequence[Stage], selection: Selection) -> Iterator[Stage]:
    """Stages with what is wanted of them; empty ones are left out."""
    for stage in stages:
        meetings = []
        for meeting in stage.meetings:
            ours = tuple(
                (form, weights)
                for form, weights in meeting.ours
                if any(selection.takes(work.name, weights, meeting.peer) for work in meeting.works)
            )
            works = tuple(
                work
                for work in meeting.works
                if any(selection.takes(work.name, weights, meeting.peer) for _, weights in ours)
            )
            if ours and works:
                meetings.append(replace(meeting, ours=ours, works=works))
        if meetings:
            yield replace(stage, meetings=tuple(meetings))
