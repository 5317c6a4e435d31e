"""tests/cases.toml lists faults that other engines really had, and the test that keeps each out of this one.

A test that covers a case has its id in its name: `test_sch_02_…` is for SCH-02.
"""

import ast
import re
import tomllib
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent
CASES: dict[str, dict[str, Any]] = tomllib.loads((TESTS / "cases.toml").read_text(encoding="utf-8"))


def named_tests() -> dict[str, set[str]]:
    """Case id -> "file::function" of the tests that carry it in their names."""
    found: dict[str, set[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for room, number in re.findall(r"(?<=_)([a-z]{3})_(\d\d)(?=_|$)", node.name):
                    case = f"{room.upper()}-{number}"
                    found.setdefault(case, set()).add(f"{path.relative_to(TESTS)}::{node.name}")
    return found


def test_every_case_has_a_test_or_a_reason() -> None:
    for case, entry in CASES.items():
        assert entry["fault"], case
        assert bool(entry.get("tests")) != bool(entry.get("not_yet")), f"{case}: either tests or not_yet"


def test_the_table_and_the_tests_agree() -> None:
    named = named_tests()
    assert {case: set(entry["tests"]) for case, entry in CASES.items() if "tests" in entry} == named
