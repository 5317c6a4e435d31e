"""The whole comparison: the machine's limits, then every stage of the plan and the rows beside it; one record.

Nothing here stops the run: what cannot be measured is a failed row.
"""

import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mini_vllm import weights
from mini_vllm.bench import limits as machine_limits
from mini_vllm.bench import machine, process_rows, self_rows
from mini_vllm.bench.drive import Contest, Drive, Measurable, Pace
from mini_vllm.bench.forms import folder_form, tinyllama_form
from mini_vllm.bench.limits import Gauge, Limits
from mini_vllm.bench.peers import ours, peer_launch, with_variables
from mini_vllm.bench.places import models_folder, peers_base
from mini_vllm.bench.plan import OTHER_ROWS, SMOKE_STAGES, STAGES, Meeting, Selection, Stage, planned, select
from mini_vllm.bench.roofline import SMOLLM2, TINYLLAMA, Shape, Weights
from mini_vllm.bench.rows import Row, failed, hardest
from mini_vllm.bench.shares import Bandwidth, Gauged, with_share
from mini_vllm.bench.subject import Launch, Subject, SubjectError
from mini_vllm.bench.workloads import SAMPLED32, THROUGHPUT, Work
from mini_vllm.bench.workloads import TINYLLAMA as TINYLLAMA_WORK
from mini_vllm.errors import MiniVLLMError

logger = logging.getLogger(__name__)

QUICK_MINUTES = 22.0  # then nothing new begins
NICENESS = -5
QUICK = Pace(least=1, most=3, seconds=4.0)
FULL = Pace(least=3, most=9, seconds=60.0, insists=True)
SMOKE = Pace(least=1, most=1, seconds=0.0)
SELF_WORKS = ("sampled32", "history_2000", "overhead", "neighbours")

# Which form of ours a row's weights stand for, and how that form's numbers are stored.
OUR_FORMS = {"4bit": "q4_1", "8bit": "q8_0"}
STORED = {
    "q4_1": Weights("q4_1", "q8_0"),
    "q8_0": Weights("q8_0", "q8_0"),
    "bf16": Weights("bf16", "bf16"),
    "f16": Weights("f16", "f16", "f16"),
    "f32": Weights("f32", "f32", "f32"),
}
TINYLLAMA_STORED = Weights("q4_0", "q4_0")


@dataclass(slots=True, kw_only=True)
class Comparison:
    """One run. `clock` gives seconds; `start` makes a `Subject` of a `Launch`; `gauge` opens what measures bandwidth.

    smoke: one pair of two works with two engines that need no building, and nothing else.
    """

    selection: Selection = field(default_factory=Selection)
    quick: bool = False
    smoke: bool = False
    threads: int = 1
    clock: Callable[[], float] = time.monotonic
    start: Callable[[Launch], Subject] = Subject
    gauge: Callable[[int], AbstractContextManager[Bandwidth]] = lambda threads: Gauge(threads, cache=_cache())
    limits: Limits | None = None
    bandwidth: Bandwidth | None = None  # while the gauge is open
    versions: dict[str, str] = field(default_factory=dict)

    def run(self) -> dict[str, Any]:
        """The record: {"machine": …, "ratios": […]}. `ConfigError` where the selection leaves no row."""
        self.selection.check(planned(SMOKE_STAGES) if self.smoke else (*planned(STAGES), *OTHER_ROWS))
        deadline = self.clock() + QUICK_MINUTES * 60 if self.quick else float("inf")
        pace = replace(QUICK if self.quick else FULL, deadline=deadline)
        return self._record(self._smoke_rows() if self.smoke else self._between_limits(pace))

    def beside_neighbours(self, rounds: int) -> dict[str, Any]:
        """The same record of only the rows beside busy processes and those against a plain split, of so many pairs.

        `SubjectError` where our engine cannot be measured.
        """

        def rows() -> Iterator[Row]:
            with self._open_one(ours("q4_1", threads=self.threads)) as subject:
                yield from self._neighbour_rows(subject, rounds)

        return self._record(rows())

    def _record(self, measured: Iterable[Row]) -> dict[str, Any]:
        begin = self.clock()
        weights.pull("smollm2-135m")
        niceness = _raise_priority()
        rows: list[Row] = []
        try:
            rows.extend(measured)
        except KeyboardInterrupt:  # what is there is worth showing
            logger.warning("interrupted after %d rows", len(rows))
        described = {
            **machine.describe(),
            "threads": self.threads,
            "niceness": niceness,
            "mode": "smoke" if self.smoke else "quick" if self.quick else "full",
            "date": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
            "minutes": round((self.clock() - begin) / 60, 1),
            "engines": dict(sorted(self.versions.items())),
            "limits": self.limits.as_json() if self.limits else "not measured",
        }
        return {"machine": described, "ratios": [self._with_share(row).as_json() for row in hardest(rows)]}

    def _between_limits(self, pace: Pace) -> Iterator[Row]:
        self._measure_limits()
        with ExitStack() as stack:
            if self.limits is not None:
                self.bandwidth = stack.enter_context(self.gauge(self.threads))
            for row in self._rows(pace):
                if self.selection.takes(row.work, row.weights, row.peer):
                    yield row
        self.bandwidth = None
        self._measure_limits()

    def _rows(self, pace: Pace) -> Iterator[Row]:
        rounds = pace.least if self.quick else 5
        wants = self.selection.takes
        if wants("start", "q4_1", "llama.cpp"):
            yield process_rows.start_row(rounds=max(3, rounds), threads=self.threads)
        if wants("memory", "q4_1", "self"):
            yield process_rows.memory_row(threads=self.threads)
        yield from self._self_rows(rounds)
        if wants("tinyllama", "q4_0", "llama.cpp"):
            yield from self._tinyllama(pace)
        for stage in select(STAGES, self.selection):
            yield from self._stage(stage, pace)

    def _smoke_rows(self) -> Iterator[Row]:
        folder_form("f32", models_folder())
        for stage in select(SMOKE_STAGES, self.selection):
            yield from self._stage(stage, SMOKE)

    def _stage(self, stage: Stage, pace: Pace) -> Iterator[Row]:
        logger.info("%s", stage.name)
        with ExitStack() as stack:
            own, errors = self._open(stack, [(form, ours(form, threads=self.threads)) for form in stage.our_forms])
            peers = {meeting: self._open_peer(stack, meeting, pace) for meeting in stage.meetings}
            drive = Drive(pace, self.clock)
            for work in dict.fromkeys(work for meeting in stage.meetings for work in meeting.works):
                contests, lost = _contests(work, peers, own, errors)
                found = list(drive.run(work, contests))
                yield from found
                yield from (self._with_own(work, row, found, own) for row in lost)

    def _with_own(self, work: Work, row: Row, found: Sequence[Row], own: Mapping[str, Measurable]) -> Row:
        """A failed row with our figure: the stage's, else measured for it."""
        form = OUR_FORMS.get(row.weights, row.weights)
        same = (other for other in found if OUR_FORMS.get(other.weights, other.weights) == form)
        known = [sample for other in same for sample in other.samples]
        if not known and form in own:
            with suppress(SubjectError):
                own[form].warm(work, seed=7)
                known = [own[form].measure(work, seed=8)]
        assert row.error is not None
        return failed(row, row.error, ours=known)

    def _self_rows(self, rounds: int) -> Iterator[Row]:
        wanted = [name for name in SELF_WORKS if self._own_weights(name)]
        if not wanted:
            return
        try:
            with self._open_one(ours("q4_1", threads=self.threads)) as subject:
                for name in wanted:
                    yield from self._guarded(name, subject, rounds)
        except MiniVLLMError as error:
            yield from (row for name in wanted for row in self._failed(name, str(error)))

    def _own_weights(self, name: str) -> list[str]:
        """Of the rows of a work in which we meet ourselves, those that are wanted."""
        rows = (row for row in OTHER_ROWS if row[0] == name and row[2] == "self")
        return [weights for work, weights, peer in rows if self.selection.takes(work, weights, peer)]

    def _failed(self, name: str, error: str) -> Iterator[Row]:
        return (failed(Row(work=name, weights=weights, peer="self"), error) for weights in self._own_weights(name))

    def _guarded(self, name: str, subject: Subject, rounds: int) -> Iterator[Row]:
        logger.info("%s", name)
        try:
            if name == "sampled32":
                yield self_rows.sampled_row(self._gauged(subject, SMOLLM2, STORED["q4_1"]), rounds=max(2, rounds))
            elif name == "neighbours":
                yield from self._neighbour_rows(subject, 2 if self.quick else 10)
            elif name == "overhead":
                yield from self._overhead(subject, max(2, rounds))
            elif (known := self.limits) is None:
                yield from self._failed(name, "the machine's limits are not known")
            else:
                yield from self_rows.history_rows(subject, self._bandwidth_or(known.memory_bandwidth), rounds=rounds)
        except SubjectError as error:
            yield from self._failed(name, str(error))

    def _neighbour_rows(self, subject: Subject, rounds: int) -> Iterator[Row]:
        yield from self_rows.neighbour_rows(subject, rounds=rounds)
        with self._open_one(plain_split("q4_1", self.threads)) as plain:
            yield from self_rows.plain_split_rows(subject, plain, rounds=rounds)

    def _overhead(self, subject: Subject, rounds: int) -> Iterator[Row]:
        """subject: ours in Q4_1."""
        for form in self._own_weights("overhead"):
            try:
                with ExitStack() as stack:
                    whole = subject
                    if form != "q4_1":
                        whole = stack.enter_context(self._open_one(ours(form, threads=self.threads)))
                    empty = stack.enter_context(self._open_one(without_kernels(form, self.threads)))
                    yield self_rows.overhead_row(whole, empty, form, rounds=rounds)
            except SubjectError as error:
                yield failed(Row(work="overhead", weights=form, peer="self"), str(error))

    def _tinyllama(self, pace: Pace) -> Iterator[Row]:
        row = Row(work="tinyllama", weights="q4_0", peer="llama.cpp", detail="random weights")
        path = tinyllama_form(models_folder())
        with ExitStack() as stack:
            try:
                launch = ours("q4_0", threads=self.threads, model=path, max_model_len=2048)
                subject = stack.enter_context(self._open_one(replace(launch, last_id=TINYLLAMA.vocab_size - 1)))
            except SubjectError as error:
                yield failed(row, str(error))
                return
            own = self._gauged(subject, TINYLLAMA, TINYLLAMA_STORED)
            try:
                launch = peer_launch("llama.cpp", "q4_0", threads=self.threads, model=path)
                peer = stack.enter_context(self._open_one(replace(launch, last_id=TINYLLAMA.vocab_size - 1)))
            except SubjectError as error:
                yield self._with_own(TINYLLAMA_WORK, failed(row, str(error)), [], {"q4_0": own})
                return
            yield from Drive(replace(pace, least=max(2, pace.least)), self.clock).run(
                TINYLLAMA_WORK, [Contest(peer, [(own, row)])]
            )

    def _open(
        self, stack: ExitStack, launches: Sequence[tuple[str, Launch]]
    ) -> tuple[dict[str, Measurable], dict[str, str]]:
        opened: dict[str, Measurable] = {}
        errors = {}
        for form, launch in launches:
            try:
                opened[form] = self._gauged(stack.enter_context(self._open_one(launch)), SMOLLM2, STORED[form])
            except SubjectError as error:
                errors[form] = f"ours: {error}"
        return opened, errors

    def _open_peer(self, stack: ExitStack, meeting: Meeting, pace: Pace) -> Subject | str:
        if self.clock() >= pace.deadline:
            return "left out: the time for the whole run was up"
        try:
            launch = peer_launch(meeting.peer, meeting.form, threads=self.threads, prebuilt=self.smoke)
            return stack.enter_context(self._open_one(launch))
        except SubjectError as error:
            logger.warning("%s", error)
            return str(error)

    def _open_one(self, launch: Launch) -> Subject:
        logger.info("starting %s", launch.label)
        subject = self.start(launch)
        self.versions[launch.label.split()[0]] = subject.version
        return subject

    def _gauged(self, subject: Measurable, shape: Shape, stored: Weights) -> Measurable:
        """With the bandwidth beside its samples, where that can be measured."""
        return subject if self.bandwidth is None else Gauged(subject, shape, stored, self.bandwidth)

    def _bandwidth_or(self, known: float) -> Callable[[float], float]:
        """What memory gives right now, or what it gave, where that cannot be measured."""
        now = self.bandwidth
        return lambda num_bytes: (now(num_bytes) if now else None) or known

    def _measure_limits(self) -> None:
        if found := self._limits_of_now():
            self.limits = found if self.limits is None else self.limits.best_of(found)

    def _limits_of_now(self) -> Limits | None:
        try:
            return machine_limits.measure(self.threads, cache=_cache())
        except (MiniVLLMError, OSError, ValueError) as error:
            logger.warning("limits: %s", error)
            return None

    def _with_share(self, row: Row) -> Row:
        if self.limits is None:
            return row
        if row.work == TINYLLAMA_WORK.name:
            return with_share(row, TINYLLAMA_WORK, shape=TINYLLAMA, weights=TINYLLAMA_STORED, limits=self.limits)
        works = {work.name: work for work in (*THROUGHPUT, SAMPLED32)}
        if row.work not in works:
            return row
        stored = STORED[OUR_FORMS.get(row.weights, row.weights)]
        return with_share(row, works[row.work], shape=SMOLLM2, weights=stored, limits=self.limits)


def _contests(
    work: Work, peers: Mapping[Meeting, Subject | str], own: Mapping[str, Measurable], errors: Mapping[str, str]
) -> tuple[list[Contest], list[Row]]:
    """Who can meet on a work, and the failed rows of those who cannot: a str in a peer's place says why."""
    contests: list[Contest] = []
    lost: list[Row] = []
    for meeting, peer in peers.items():
        if work not in meeting.works:
            continue
        detail = f"{meeting.peer} in {meeting.form}"
        empty = [Row(work=work.name, weights=weights, peer=meeting.peer, detail=detail) for _, weights in meeting.ours]
        reason = next((errors[form] for form, _ in meeting.ours if form in errors), None)
        if isinstance(peer, str) or reason:
            lost += [failed(row, reason or str(peer)) for row in empty]
        else:
            contests.append(Contest(peer, [(own[form], row) for (form, _), row in zip(meeting.ours, empty)]))
    return contests, lost


def plain_split(form: str, threads: int) -> Launch:
    """Ours with threads that do fixed shares of every op and wait for each other."""
    return with_variables(ours(form, threads=threads), {"MINI_VLLM_SPLIT": "static"})


def without_kernels(form: str, threads: int) -> Launch:
    """Ours with kernels that return at once: what is left of a step is all else."""
    return with_variables(ours(form, threads=threads), {"MINI_VLLM_ISA": "none"})


def write_record(record: dict[str, Any], path: Path) -> None:
    """As JSON, one row a line."""
    rows = ",\n  ".join(json.dumps(entry, ensure_ascii=False) for entry in record["ratios"])
    machine_text = json.dumps(record["machine"], indent=2, ensure_ascii=False).replace("\n", "\n ")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{{\n "machine": {machine_text},\n "ratios": [\n  {rows}\n ]\n}}\n', encoding="utf-8")


def _cache() -> Path:
    """For programs built on this machine."""
    return peers_base() / "build"


def _raise_priority() -> int:
    """Both sides run before ordinary processes where we may; the niceness that they have."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, min(NICENESS, os.getpriority(os.PRIO_PROCESS, 0)))
    return os.getpriority(os.PRIO_PROCESS, 0)
