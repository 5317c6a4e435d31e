"""An op table that computes nothing and writes down every call."""

from typing import Any


class Recorder:
    """Each op appends its name to `calls` and returns its own number as a tensor."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.arguments: list[tuple[Any, ...]] = []

    def __getattr__(self, op: str) -> Any:
        def record(*arguments: Any, **options: Any) -> str:
            self.calls.append(op)
            self.arguments.append((*arguments, *options.values()))
            return f"%{len(self.calls)}"

        return record
