"""Messages: one line, whatever the values in them hold."""

import pytest

from mini_vllm.errors import ConfigError, UserError, WeightsError


@pytest.mark.parametrize("kind", [UserError, ConfigError, WeightsError])
def test_a_message_is_one_line_that_every_terminal_can_show(kind):
    error = kind("file: key a\nb\r\nc\0\x1b[31m \ud800 é is wrong")
    assert str(error) == "file: key a b c\\x00\\x1b[31m \\ud800 é is wrong"


def test_a_message_ends_somewhere():
    assert str(UserError("x" * 10**6)) == "x" * 2000 + "…"
