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
    chart = Figure(figsize=(4.2 * len(PANELS), 1.4 + 0.42 * len(names)), layout="constrained")
    for panel, (heading, key, scale, unit) in zip(chart.subplots(1, len(PANELS), sharey=True), PANELS, strict=True):
        places = range(len(names))
        if key in ("ttft", "itl"):
            for offset, part, colour in ((-0.2, "p50", "#7aa6c2"), (0.2, "p99", "#1f4e79")):
                values = [scale * (figure(figures, f"{key}.{part}") or 0.0) for _, figures in results]
                panel.barh([place + offset for place in places], values, height=0.38, color=colour, label=part)
            panel.legend(loc="lower right", fontsize="small")
        else:
            values = [scale * (figure(figures, key) or 0.0) for _, figures in results]
            bars = panel.barh(list(places), values, color="#1f4e79")
            panel.bar_label(bars, fmt="%.3g", padding=2, fontsize="small")
            panel.margins(x=0.15)
        panel.set_xlim(left=0)
        panel.set_title(heading, fontsize="medium")
        panel.set_xlabel(unit)
        panel.set_yticks(list(places), names)
    chart.axes[0].invert_yaxis()
    chart.suptitle(title)
    try:
        chart.savefig(path)
    except OSError as error:
        raise ConfigError(f"charts {path} cannot be written: {error.strerror}", param="charts") from None
