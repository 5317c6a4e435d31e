"""The command line: `mini-vllm COMMAND`. Typer and Rich live here and nowhere else."""

import sys


def main() -> int:
    """The program. Its parts are imported in here, so that Ctrl-C is clean from the first moment on."""
    try:
        from mini_vllm.cli.app import main as run

        return run()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130
