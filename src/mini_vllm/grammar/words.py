"""Words that must not be written, whichever tokens would write them. Must not know logits or sampling."""

import bisect
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence, Set
from typing import Protocol

import numpy as np

from mini_vllm.grammar.cursor import Mask

MAX_KEPT = 1024  # masks of words and their ends


class TextTokens(Protocol):
    """What is asked of a tokenizer."""

    @property
    def vocab_size(self) -> int:
        """Highest token id + 1."""

    @property
    def special_ids(self) -> Set[int]:
        """Tokens that no text contains."""

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes of one token."""


class TokenIndex:
    """Which tokens contain a text or begin with it, as masks. Read at the first use; threads share it."""

    def __init__(self, vocabulary: TextTokens) -> None:
        self.num_words = -(-vocabulary.vocab_size // 32)
        self._vocabulary = vocabulary
        self._tokens: list[tuple[bytes, int]] = []  # sorted
        self._kept: OrderedDict[tuple[bytes, bool], Mask] = OrderedDict()
        self._lock = threading.Lock()

    def text_of(self, token_id: int) -> bytes:
        """What a token adds to the text."""
        vocabulary = self._vocabulary
        return b"" if token_id in vocabulary.special_ids else vocabulary.token_bytes(token_id)

    def token_bytes(self, token_id: int) -> bytes:
        """What a token stands for, special or not."""
        return self._vocabulary.token_bytes(token_id)

    def containing(self, text: bytes) -> Mask:
        """The tokens with `text` anywhere in them."""
        return self._mask(text, anywhere=True)

    def starting(self, text: bytes) -> Mask:
        """The tokens that begin with `text`."""
        return self._mask(text, anywhere=False)

    def _mask(self, text: bytes, *, anywhere: bool) -> Mask:
        with self._lock:
            mask = self._kept.get((text, anywhere))
            if mask is None:
                mask = self._kept[text, anywhere] = self._make(self._find(text, anywhere=anywhere))
                if len(self._kept) > MAX_KEPT:
                    self._kept.popitem(last=False)
            self._kept.move_to_end((text, anywhere))
            return mask

    def _find(self, text: bytes, *, anywhere: bool) -> list[int]:
        if not self._tokens:
            every = range(self._vocabulary.vocab_size)
            self._tokens = sorted((found, index) for index in every if (found := self.text_of(index)))
        if anywhere:
            return [index for token, index in self._tokens if text in token]
        listed: list[int] = []
        for token, index in self._tokens[bisect.bisect_left(self._tokens, (text, -1)) :]:
            if not token.startswith(text):
                break
            listed.append(index)
        return listed

    def _make(self, token_ids: Sequence[int]) -> Mask:
        bits = np.zeros(self.num_words * 32, dtype=np.uint8)
        bits[token_ids] = 1
        return np.packbits(bits, bitorder="little").view(np.uint32)


class BannedWords:
    """The words of one sequence. Its state is the end of the text so far, as long as a word may have begun in it."""

    def __init__(self, words: Iterable[str], index: TokenIndex) -> None:
        self._words = [word.encode() for word in words]
        self._index = index
        self._longest = max(map(len, self._words))

    def after(self, state: bytes, token_id: int) -> bytes:
        """The state behind one more token."""
        text = state + self._index.text_of(token_id)
        return text[-(self._longest - 1) :] if self._longest > 1 else b""

    def banned(self, state: bytes) -> Mask:
        """The tokens that would complete a word."""
        mask = np.zeros(self._index.num_words, dtype=np.uint32)
        for word in self._words:
            mask |= self._index.containing(word)
            for begun in range(1, min(len(word) - 1, len(state)) + 1):
                if state.endswith(word[:begun]):
                    mask |= self._index.starting(word[begun:])
        return mask
