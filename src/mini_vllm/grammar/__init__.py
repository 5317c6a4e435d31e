"""Structured output: what may come next. One thin door to a library (llguidance), imported when first used.

Doors: `GrammarCompiler` (one per model) makes a `Grammar` of `StructuredOutputsParams`, and a `Grammar` one `Cursor`
per sequence, which fills bit masks over the vocabulary.
"""

from mini_vllm.grammar.compiler import GrammarCompiler
from mini_vllm.grammar.cursor import Cursor, Grammar

__all__ = ["Cursor", "Grammar", "GrammarCompiler"]
