"""Between OpenAI's words and the engine's: pure functions and small state machines, no I/O, no HTTP.

A stream and a whole answer are made from the same pieces, so that they cannot differ.
"""
