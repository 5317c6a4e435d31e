"""Buckets, sums and quantiles."""

import pytest

from mini_vllm.telemetry.histogram import Histogram


def test_a_bound_belongs_to_its_bucket() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.0, 1.0, 1.5, 2.0, 2.1, 99.0):
        histogram.observe(value)
    found = histogram.read()
    assert (found.counts, found.count, found.total) == ((2, 2, 2), 6, 105.6)


def test_several_equal_values_at_once() -> None:
    histogram = Histogram((1.0,))
    histogram.observe(0.5, times=3)
    assert (histogram.read().counts, histogram.read().total) == ((3, 0), 1.5)


def test_quantiles_are_linear_within_a_bucket() -> None:
    histogram = Histogram((1.0, 2.0, 4.0))
    assert histogram.read().quantile(0.5) is None
    histogram.observe(1.7, times=10)
    assert histogram.read().quantile(0.5) == pytest.approx(1.5)
    assert histogram.read().quantile(1.0) == 2.0
    histogram.observe(100.0, times=30)
    assert histogram.read().quantile(0.99) == 4.0
    assert histogram.read().quantile(0.1) == pytest.approx(1.4)
