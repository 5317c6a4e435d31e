"""One server for all tests that leave it as they found it."""

from collections.abc import Iterator

import pytest
from server.rig import Rig, serving


@pytest.fixture(scope="session")
def rig() -> Iterator[Rig]:
    """A server with a context of 512 tokens."""
    with serving() as running:
        yield running
