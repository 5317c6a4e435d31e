"""Replicas that die or slow down for a while, as somebody planned it. This module must not know engines."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from mini_vllm.errors import InvalidParameterError

_FORM = re.compile(r"(\d+)@(\d+(?:\.\d+)?)\+(\d+(?:\.\d+)?)(?:x(\d+(?:\.\d+)?))?")


@dataclass(frozen=True, slots=True)
class Failure:
    """Replica `replica` is gone from `begin` for `seconds`; with a slowdown, its steps take so many times as long."""

    replica: int
    begin: float
    seconds: float
    slowdown: float | None = None


def parse(specs: Iterable[str], *, num_replicas: int) -> list[Failure]:
    """`REPLICA@BEGIN+SECONDS` or `REPLICA@BEGIN+SECONDSxSLOWDOWN`, each."""
    found = []
    for spec in specs:
        match = _FORM.fullmatch(spec.strip().replace("s", ""))
        if match is None:
            raise InvalidParameterError(
                f"failure {spec!r:.60} is not REPLICA@BEGIN+SECONDS, or with a slowdown …xFACTOR, such as 3@10+5 or "
                "0@2.5+30x4",
                param="fail",
            )
        index, begin, seconds, slowdown = match.groups()
        if int(index) >= num_replicas:
            raise InvalidParameterError(
                f"failure {spec!r:.60} is of replica {index}; there are {num_replicas}, counted from 0", param="fail"
            )
        if slowdown is not None and not float(slowdown) > 0:
            raise InvalidParameterError(
                f"failure {spec!r:.60} makes steps take {slowdown} times as long; the factor must be more than 0, "
                "such as x4",
                param="fail",
            )
        found.append(Failure(int(index), float(begin), float(seconds), None if slowdown is None else float(slowdown)))
    return found
