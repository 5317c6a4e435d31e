"""Fixtures that many rooms share."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The file of the default model: from the cache folder, where it is put on first use."""
    from mini_vllm import weights

    return weights.resolve("smollm2-135m")


# Left out of `make test-fast`: they start processes, wait for clocks, or try thousands of inputs.
SLOW_MODULES = {
    "bench/test_neighbours.py",
    "bench/test_surface.py",
    "cli/test_process.py",
    "engine/test_default_model.py",
    "engine/test_embedding.py",
    "engine/test_process.py",
    "engine/test_process_end.py",
    "engine/test_threads.py",
    "engine/test_trace.py",
    "engine/test_speculation.py",
    "engine/test_speculation_mixes.py",
    "invariance/test_mixes.py",
    "invariance/test_speculation.py",
    "sampling/test_speculation.py",
    "server/test_access.py",
    "server/test_cancel.py",
    "server/test_engine_process.py",
    "server/test_errors.py",
    "server/test_fields.py",
    "server/test_load.py",
    "server/test_loop.py",
    "server/test_metrics.py",
    "server/test_process.py",
    "server/test_sockets.py",
    "server/test_speculation.py",
    "server/test_stall.py",
    "server/test_structured.py",
    "server/test_tools.py",
    "weights/test_gguf_broken.py",
    "weights/test_sources.py",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the modules that `make test-fast` leaves out."""
    for item in items:
        if item.path.relative_to(Path(__file__).parent).as_posix() in SLOW_MODULES:
            item.add_marker(pytest.mark.slow)
