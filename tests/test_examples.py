"""Every example runs and prints what the documentation says it prints."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_the_tour_shows_what_its_program_prints(default_model: str) -> None:
    command = [sys.executable, str(ROOT / "examples" / "one_token.py"), default_model]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    tour = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
    shown = tour.split("```text\n")[1].split("```")[0]
    assert printed.startswith(shown.rstrip())
    assert "finish_reason length" in printed
