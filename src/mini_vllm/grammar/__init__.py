"""Structured output: what may come next. One thin door to a library (llguidance), imported when first used.

Doors: `GrammarCompiler` (one per model) makes a `Grammar` of `StructuredOutputsParams`, and a `Grammar` one `Cursor`
per sequence, which fills bit masks over the vocabulary. `GrammarCompiler.start` also minds bad words and the budget of
thoughts (`Guide`).
"""

from mini_vllm.grammar.compiler import GrammarCompiler
from mini_vllm.grammar.cursor import Cursor, Grammar
from mini_vllm.grammar.guide import Guide

__all__ = ["Cursor", "Grammar", "GrammarCompiler", "Guide"]
