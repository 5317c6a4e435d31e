"""Fixtures that many rooms share."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The file of the default model: from the cache folder, where it is put on first use."""
    from mini_vllm import weights

    return weights.resolve("smollm2-135m")
