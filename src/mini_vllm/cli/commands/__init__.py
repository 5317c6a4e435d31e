"""One module per command, each with a function `command`; loaded only when the command is called."""
