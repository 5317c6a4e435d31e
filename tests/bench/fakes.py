"""Engines that answer at once, and a clock that only they move."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from mini_vllm.bench.subject import Sample, SubjectError
from mini_vllm.bench.workloads import Work


@dataclass
class ScriptedClock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class ScriptedSubject:
    """Gives its rates in turn, and writes down when it was asked; each measurement takes `cost` seconds."""

    label: str
    rates: list[float]
    clock: ScriptedClock
    diary: list[str] = field(default_factory=list)
    cost: float = 1.0
    foreign: float | None = 0.0
    fails_at: int | None = None
    version: str = "1"
    seeds: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rates: Iterator[float] = iter(self.rates)
        self.count = 0

    def warm(self, work: Work, *, seed: int) -> None:
        self.diary.append(f"warm {self.label}")

    def measure(self, work: Work, *, seed: int) -> Sample:
        self.diary.append(self.label)
        self.seeds.append(seed)
        self.clock.now += self.cost
        self.count += 1
        if self.fails_at == self.count:
            raise SubjectError(f"{self.label}: it broke")
        return Sample(next(self._rates), self.foreign)

    def seconds(self, work: Work, *, seed: int, new_tokens: int | None = None) -> float:
        return self.cost

    def op_seconds(self) -> dict[str, float]:
        self.count += 1
        return {"attend": 1e-3 * self.count}

    def __enter__(self) -> "ScriptedSubject":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.diary.append(f"close {self.label}")
