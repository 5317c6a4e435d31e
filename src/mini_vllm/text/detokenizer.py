"""Token ids to text, a few at a time, never a broken character.

Pure state machine over the bytes of tokens: whole characters are passed on at once, only an incomplete UTF-8 tail is
held. Must not know requests, stops or how tokens were made.
"""

import codecs
from collections.abc import Iterable, Set
from typing import Protocol


class TokenBytes(Protocol):
    """What a detokenizer asks of a tokenizer."""

    @property
    def special_ids(self) -> Set[int]:
        """Ids that `skip_special_tokens` leaves out."""

    @property
    def strips_leading_space(self) -> bool:
        """Whether one space at the very start of the text is dropped."""

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes of one token."""


class Detokenizer:
    """Incremental decoding of one sequence.

    The texts of all pushes and the flush, joined, equal `tokenizer.decode(all ids)` however the ids are grouped.
    Bytes that can never become a character give U+FFFD, one for each maximal invalid part; a tail that is still
    incomplete at the flush gives exactly one.

    `keep_leading_space` is for text that continues a prompt: the space that SentencePiece decoding drops at the start
    of a text belongs to the continuation and is kept.
    """

    def __init__(
        self, tokenizer: TokenBytes, *, skip_special_tokens: bool = True, keep_leading_space: bool = False
    ) -> None:
        self._tokenizer = tokenizer
        self._skipped: Set[int] = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._at_start = tokenizer.strips_leading_space and not keep_leading_space

    def push(self, ids: Iterable[int]) -> str:
        """The text that these tokens complete; may be empty."""
        token_bytes, skipped = self._tokenizer.token_bytes, self._skipped
        data = b"".join([token_bytes(token_id) for token_id in ids if token_id not in skipped])
        return self._strip(self._decoder.decode(data))

    def flush(self) -> str:
        """What is held, at the end: "" or one U+FFFD. The detokenizer is then as new, but for the leading space."""
        text = self._strip(self._decoder.decode(b"", final=True))
        self._decoder.reset()
        return text

    @property
    def holding(self) -> bool:
        """Whether bytes of an incomplete character are held."""
        return bool(self._decoder.getstate()[0])

    def _strip(self, text: str) -> str:
        if not self._at_start or not text:
            return text
        self._at_start = False
        return text[1:] if text[0] == " " else text
