"""A comparison as a picture, by Matplotlib. The only module that knows it; SVG, PNG or PDF by the file's ending."""

from pathlib import Path

from mini_vllm.errors import ConfigError, MissingDependencyError
from mini_vllm.simulation.compare import Results, figure

PANELS = (
    ("requests that keep the SLO", "slo_attainment", 100.0, "%"),
    ("goodput", "goodput", 1.0, "requests/s"),
    ("time to first token", "ttft", 1e3, "ms"),
    ("time between tokens", "itl", 1e3, "ms"),
    ("preemptions", "preemptions", 1.0, ""),
)
LIGHT, DARK = "#7aa6c2", "#1f4e79"
PARTS = ((-0.19, "p50", LIGHT), (0.19, "p99", DARK))  # offset of a bar, which percentile, colour
_ENDINGS = (".svg", ".png", ".pdf")


def check(path: Path) -> None:
    """`ConfigError` for a file that cannot be a chart, `MissingDependencyError` where Matplotlib is not installed."""
    if path.suffix.lower() not in _ENDINGS:
        raise ConfigError(f"charts {path} must end in {', '.join(_ENDINGS)}", param="charts")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingDependencyError(
            "charts need Matplotlib: pip install 'mini-vllm[charts]' (tables and text bars need nothing)"
        ) from None


def draw(results: Results, path: Path, *, title: str) -> None:
    """A panel per figure, a bar per variant; median and 99th percentile side by side where there are both."""
    check(path)
    from matplotlib.figure import Figure

    names = [name for name, _ in results]
    places = list(range(len(names)))
    chart = Figure(figsize=(4.2 * len(PANELS), 1.8 + 0.5 * len(names)), layout="constrained")
    for panel, (heading, key, scale, unit) in zip(chart.subplots(1, len(PANELS), sharey=True), PANELS, strict=True):
        parts = PARTS if key in ("ttft", "itl") else ((0.0, "", DARK),)
        for offset, part, colour in parts:
            name_of = f"{key}.{part}" if part else key
            values = [scale * (figure(figures, name_of) or 0.0) for _, figures in results]
            shifted = [place + offset for place in places]
            bars = panel.barh(shifted, values, height=0.76 / len(parts), color=colour, label=part or None)
            panel.bar_label(bars, [_short(value) for value in values], padding=2, fontsize="small")
        panel.margins(x=0.18)
        panel.set_xlim(left=0, right=None if panel.get_xlim()[1] > 0.1 else 1)
        panel.locator_params(axis="x", nbins=5)
        panel.set_title(heading, fontsize="medium")
        panel.set_xlabel(unit)
        panel.set_yticks(places, names)
    chart.legend(*chart.axes[2].get_legend_handles_labels(), loc="outside right upper", title="percentile")
    chart.axes[0].invert_yaxis()
    chart.suptitle(title)
    try:
        chart.savefig(path)
    except OSError as error:
        raise ConfigError(f"charts {path} cannot be written: {error.strerror}", param="charts") from None


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"
