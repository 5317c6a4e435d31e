"""One traffic under several settings: policies, chunk sizes, block sizes, cache modes, routers.

A comparison is written `NAME=VALUE,VALUE,…`; several make every combination. This module must not know how a variant is
run, only which there are and how their figures are laid side by side.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from mini_vllm.config import POLICIES, CacheConfig, SchedulerConfig
from mini_vllm.errors import ConfigError
from mini_vllm.replicas import ROUTERS
from mini_vllm.simulation.report import seconds

MAX_VARIANTS = 64
CACHES: dict[str, dict[str, Any]] = {
    "paged": {},
    "no-prefix": {"enable_prefix_caching": False},
    "contiguous": {"cache_backend": "contiguous"},
    "off": {"kv_cache": False},
}
_SHORT = {
    "policies": "scheduling_policy",
    "policy": "scheduling_policy",
    "chunk": "prefill_chunk_size",
    "chunks": "prefill_chunk_size",
    "itl-target": "itl_target_ms",
    "block": "block_size",
    "blocks": "num_blocks",
    "batch": "max_num_seqs",
}
_DEFAULTS = {"scheduling_policy": ",".join(POLICIES), "cache": ",".join(CACHES), "router": ",".join(ROUTERS)}
_CLUSTER: dict[str, type] = {"router": str, "replicas": int}


@dataclass(frozen=True, slots=True)
class Variant:
    """One column of a comparison."""

    name: str
    engine: Mapping[str, Any]  # settings of the engine
    cluster: Mapping[str, Any]  # router, replicas


def variants(specs: Sequence[str]) -> list[Variant]:
    """Every combination of the values that `NAME=VALUE,…` give; `ConfigError` names what is unknown."""
    axes = [_axis(spec) for spec in specs]
    found = [_join(choice) for choice in itertools.product(*axes)]
    if len(found) > MAX_VARIANTS:
        raise ConfigError(f"compare makes {len(found)} variants; at most {MAX_VARIANTS}", param="compare")
    return found


def _axis(spec: str) -> list[Variant]:
    name, _, values = spec.partition("=")
    name = name.strip().lstrip("-")
    name = _SHORT.get(name, name.replace("-", "_"))
    values = values or _DEFAULTS.get(name, "")
    listed = [value.strip() for value in values.split(",") if value.strip()]
    if not listed:
        raise ConfigError(
            f"compare is {spec!r:.60}; write NAME=VALUE,VALUE, such as policies=fcfs,srf", param="compare"
        )
    return [_variant(spec, name, value) for value in listed]


def _variant(spec: str, name: str, value: str) -> Variant:
    if name == "cache":
        if value not in CACHES:
            raise ConfigError(f"compare {spec!r:.60}: choose caches of {', '.join(CACHES)}", param="compare")
        return Variant(value, CACHES[value], {})
    if name == "replicas" and value.lstrip("+-").isdigit() and int(value) < 1:
        raise ConfigError(f"compare {spec!r:.60}: replicas is {value}; it must be at least 1", param="compare")
    if name in _CLUSTER:
        return Variant(f"{name} {value}", {}, {name: _parse(spec, value, _CLUSTER[name])})
    kinds = {field.name: field.type for group in (CacheConfig, SchedulerConfig) for field in dataclasses.fields(group)}
    if name not in kinds:
        known = ", ".join(["cache", *_CLUSTER, *kinds])
        raise ConfigError(f"compare {spec!r:.60} names {name!r}; known are {known}", param="compare")
    kind: Any = next(entry for entry in (get_args(kinds[name]) or (kinds[name],)) if entry is not type(None))
    short = value if name == "scheduling_policy" else f"{name} {value}"
    return Variant(short, {name: None if value == "none" else _parse(spec, value, kind)}, {})


def _parse(spec: str, value: str, kind: Any) -> Any:
    if kind is bool:
        if value.lower() in ("on", "true", "1", "off", "false", "0"):
            return value.lower() in ("on", "true", "1")
    else:
        try:
            return kind(value)
        except ValueError:
            pass
    wanted = {bool: "on or off", int: "a whole number", float: "a number"}.get(kind, "text")
    raise ConfigError(f"compare {spec!r:.60}: {value!r:.40} is not {wanted}", param="compare")


def _join(choice: Sequence[Variant]) -> Variant:
    engine = {name: value for variant in choice for name, value in variant.engine.items()}
    cluster = {name: value for variant in choice for name, value in variant.cluster.items()}
    return Variant(", ".join(variant.name for variant in choice), engine, cluster)


Results = Sequence[tuple[str, Mapping[str, Any]]]  # variant, figures

COLUMNS: tuple[tuple[str, str], ...] = (
    ("SLO met", "slo_attainment"),
    ("goodput/s", "goodput"),
    ("tok/s", "output_tokens_per_second"),
    ("makespan", "makespan"),
    ("TTFT p50", "ttft.p50"),
    ("TTFT p99", "ttft.p99"),
    ("ITL p50", "itl.p50"),
    ("ITL p99", "itl.p99"),
    ("batch", "average_batch"),
    ("preempt", "preemptions"),
    ("hits", "prefix_hit_tokens"),
)
BARS = (("goodput/s", "goodput"), ("TTFT p99", "ttft.p99"), ("ITL p99", "itl.p99"))


def figure(figures: Mapping[str, Any], path: str) -> float | None:
    """A figure by its path, such as `ttft.p99`."""
    value: Any = figures
    for part in path.split("."):
        value = value[part]
    return value  # type: ignore[no-any-return]


def show(path: str, value: float | None) -> str:
    """A figure for people."""
    if path == "slo_attainment" and value is not None:
        return f"{100 * value:.1f}%"
    if path.partition(".")[0] in ("ttft", "itl", "makespan"):
        return seconds(value)
    return "-" if value is None else f"{value:.2f}".rstrip("0").rstrip(".") if value < 1000 else f"{value:.0f}"


def table(results: Results) -> Iterator[str]:
    """A line per variant, a column per figure."""
    cells = [["variant", *(title for title, _ in COLUMNS)]]
    for name, figures in results:
        cells.append([name, *(show(path, figure(figures, path)) for _, path in COLUMNS)])
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    for row in cells:
        first, *rest = (
            f"{cell:<{width}}" if i == 0 else f"{cell:>{width}}"
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join([first, *rest])


def bars(results: Results, *, width: int = 40) -> Iterator[str]:
    """A chart of characters for each of the figures that decide."""
    name_width = max(len(name) for name, _ in results)
    for title, path in BARS:
        values = [figure(figures, path) or 0.0 for _, figures in results]
        most = max(values) or 1.0
        yield f"\n{title}"
        for (name, _), value in zip(results, values, strict=True):
            yield f"  {name:<{name_width}}  {'#' * round(width * value / most):<{width}} {show(path, value)}"
