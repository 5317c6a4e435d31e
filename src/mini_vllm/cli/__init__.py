"""The command line: `mini-vllm COMMAND`. Typer and Rich live here and nowhere else."""
