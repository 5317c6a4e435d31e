"""Compiles grammars for one vocabulary, once per content.

Must not know models, sequences or HTTP. Bounded: the size of what is compiled (`sources`), the library's work (its
own limits, about a second), the number of grammars that are kept.
"""

import threading
from collections import OrderedDict
from collections.abc import Collection, Sequence, Set
from concurrent.futures import Future
from typing import TYPE_CHECKING, Protocol

import numpy as np

from mini_vllm.errors import InvalidParameterError
from mini_vllm.grammar.cursor import Cursor, Grammar
from mini_vllm.grammar.guide import Guide
from mini_vllm.grammar.sources import grammar_text, one_line
from mini_vllm.grammar.thoughts import ThoughtBudget
from mini_vllm.grammar.words import BannedWords, TokenIndex
from mini_vllm.types import SamplingParams, StructuredOutputsParams
from mini_vllm.types.params import THOUGHT
from mini_vllm.types.structured import PARAM

if TYPE_CHECKING:
    from llguidance import LLTokenizer

MAX_KEPT = 256  # compiled grammars
TRIAL_STEPS = 4  # tokens that a new grammar is tried with, so that what fails at once fails as a bad request
END_TOKENS = 16  # of a prompt, in which a thought may have begun
_PROBE = "\x02"  # in front of a text, so that what follows is tokenised as in its middle


class Vocabulary(Protocol):
    """What the compiler asks of a tokenizer."""

    @property
    def vocab_size(self) -> int:
        """Highest token id + 1."""

    @property
    def special_ids(self) -> Set[int]:
        """Tokens that no text contains."""

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes of one token."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text."""


class GrammarCompiler:
    """Grammars of one model, by content. Threads may share it; the vocabulary is read at the first use."""

    def __init__(self, vocabulary: Vocabulary, *, eos_token_ids: Collection[int]) -> None:
        """`eos_token_ids` may be sampled where the text could end."""
        self._vocabulary = vocabulary
        self._eos_token_ids = sorted(i for i in eos_token_ids if i < vocabulary.vocab_size)
        self._tokenizer: LLTokenizer | None = None
        self._tokenizer_lock = threading.Lock()
        self._index = TokenIndex(vocabulary)
        self._lock = threading.Lock()
        self._kept: OrderedDict[StructuredOutputsParams, Future[Grammar]] = OrderedDict()

    def compile(self, params: StructuredOutputsParams) -> Grammar:
        """The grammar, from the cache or compiled in this thread. `InvalidParameterError` if it is none."""
        with self._lock:
            future = self._kept.get(params)
            is_new = future is None
            if future is None:
                future = self._kept[params] = Future()
            self._kept.move_to_end(params)
            while len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        if is_new:
            self._fulfil(params, future)
        try:
            return future.result()
        except InvalidParameterError as error:
            raise InvalidParameterError(str(error), param=params.source) from error

    def start(self, params: SamplingParams, prompt_token_ids: Sequence[int]) -> "Cursor | Guide | None":
        """What guides a new sequence, token by token; None: nothing does."""
        wanted, budget = params.structured_outputs, params.thinking_token_budget
        cursor = None if wanted is None else self.compile(wanted).start()
        words = BannedWords(params.bad_words, self._index) if params.bad_words else None
        thoughts = None
        if budget is not None and cursor is None:  # what must have a form has it from its first token
            ids = self._vocabulary.encode(THOUGHT, add_special_tokens=False)
            end = b"".join(map(self._index.token_bytes, prompt_token_ids[-END_TOKENS:]))
            thoughts = ThoughtBudget(budget, closing_ids=ids, prompt_end=end)
        if words is None and thoughts is None:
            return cursor
        return Guide(self._index, cursor=cursor, words=words, thoughts=thoughts)

    def _fulfil(self, params: StructuredOutputsParams, future: "Future[Grammar]") -> None:
        try:
            future.set_result(self._compile(params))
        except BaseException as error:
            with self._lock:
                self._kept.pop(params, None)
            if not isinstance(error, Exception) and type(error).__name__ == "PanicException":  # of the library's Rust
                error = InvalidParameterError(f"the grammar cannot be compiled: {one_line(error)}", param=PARAM)
            future.set_exception(error)

    def _compile(self, params: StructuredOutputsParams) -> Grammar:
        from llguidance import LLMatcher, LLParserLimits

        text = grammar_text(params)
        limits = LLParserLimits(verbose_errors=False)
        tokenizer = self._load_tokenizer()
        matcher = LLMatcher(tokenizer, text, log_level=0, limits=limits)
        if matcher.is_error():
            raise InvalidParameterError(f"the grammar is not valid: {one_line(matcher.get_error())}", param=PARAM)
        grammar = Grammar(matcher, num_words=-(-tokenizer.vocab_size // 32))
        _try_out(grammar.start())
        return grammar

    def _load_tokenizer(self) -> "LLTokenizer":
        from llguidance import LLTokenizer

        with self._tokenizer_lock:
            if self._tokenizer is None:
                words = _Words(self._vocabulary, self._eos_token_ids)
                self._tokenizer = LLTokenizer(words, eos_token=words.eos_token_ids)  # type: ignore[arg-type]
                words.fallback = self._tokenizer
            return self._tokenizer


class _Words:
    """The vocabulary as the library reads it. Special tokens start with a byte that no text contains.

    A model without an EOS token gets one behind its vocabulary, which is never chosen.
    """

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, eos_token_ids: Sequence[int]) -> None:
        special = {*vocabulary.special_ids, *eos_token_ids}
        self.tokens = [
            (b"\xff" if index in special else b"") + vocabulary.token_bytes(index)
            for index in range(vocabulary.vocab_size)
        ]
        self.eos_token_ids = list(eos_token_ids)
        if not eos_token_ids:
            self.tokens.append(b"\xff<end>")
            self.eos_token_ids = [vocabulary.vocab_size]
            special.add(vocabulary.vocab_size)
        self.eos_token_id = self.eos_token_ids[0]
        self.special_token_ids = sorted(special)
        self.fallback: LLTokenizer | None = None
        self._vocabulary = vocabulary
        self._num_probe = len(vocabulary.encode(_PROBE, add_special_tokens=False))

    def __call__(self, text: str) -> list[int]:
        """How the model would write a text that the grammar forces: as in the middle of a text."""
        ids = self._vocabulary.encode(_PROBE + text, add_special_tokens=False)[self._num_probe :]
        if b"".join([self.tokens[index] for index in ids]) == text.encode():
            return ids
        return [] if self.fallback is None else self.fallback.greedy_tokenize(text)


def _try_out(cursor: Cursor) -> None:
    """Walk a few tokens into a grammar: what nothing fits, or what is too complex, shows."""
    mask = np.zeros((1, cursor.num_words), dtype=np.uint32)
    for step in range(TRIAL_STEPS):
        cursor.fill(mask)
        if cursor.error is not None:
            raise InvalidParameterError(f"the grammar cannot be used: {cursor.error}", param=PARAM)
        if cursor.is_complete:
            if step == 0:
                raise InvalidParameterError("the grammar allows no text at all; relax it", param=PARAM)
            return
        allowed = np.flatnonzero(mask[0])
        if not allowed.size:
            raise InvalidParameterError("the grammar allows no token of this model; relax it", param=PARAM)
        word = int(allowed[0])
        bits = int(mask[0, word])
        cursor.accept([word * 32 + (bits & -bits).bit_length() - 1])
