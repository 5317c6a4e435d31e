"""The metrics as Prometheus reads them. The only module that imports its library."""

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from mini_vllm.telemetry.histogram import Distribution
from mini_vllm.telemetry.latency import HISTOGRAMS
from mini_vllm.telemetry.metrics import METRICS, Reading

PREFIX = "mini_vllm_"
CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4


def expose(reading: Reading) -> bytes:
    """One scrape, in text exposition format 0.0.4."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(reading))
    return generate_latest(registry)


class _Families(Collector):
    """A reading, metric by metric."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    def collect(self) -> Iterator[Metric]:
        """What the library asks for."""
        for metric in METRICS:
            family = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            found = family(PREFIX + metric.name, metric.help, labels=metric.labels)
            value = metric.read(self._reading)
            for labels, each in value.items() if isinstance(value, Mapping) else [((), value)]:
                found.add_metric(labels, each)
            yield found
        for name, (text, _) in HISTOGRAMS.items():
            yield _histogram(name, text, self._reading.latencies[name])

    def describe(self) -> list[Metric]:
        """Nothing: what there is follows from `collect`."""
        return []


def _histogram(name: str, text: str, found: Distribution) -> Metric:
    buckets, total = [], 0
    for bound, count in zip([*map(str, found.bounds), "+Inf"], found.counts):
        total += count
        buckets.append((bound, total))
    family = HistogramMetricFamily(PREFIX + name, text)
    family.add_metric([], buckets=buckets, sum_value=found.total)
    return family
