"""What all processes that the bench speaks with through pipes have in common: their end. Must not know what runs."""

import subprocess
from typing import AnyStr, Generic, Self


class Child(Generic[AnyStr]):
    """A process to be used in a `with` statement. Subclasses start `_process`, and say how it is ended (`_end`)."""

    _process: "subprocess.Popen[AnyStr]"

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def close(self) -> None:
        """End the process, wait until it has, and close its pipes. Idempotent."""
        self._end()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def _end(self) -> None:
        """Kill it, but not what it has started itself."""
        self._process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
