"""mini-vLLM: a small, readable and fast LLM inference engine."""

__version__ = "0.1.0"
