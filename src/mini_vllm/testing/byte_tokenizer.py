"""A tokenizer of 256 bytes and a few special tokens: every id sequence is possible, nothing needs a file."""

import re
from collections.abc import Iterable

from mini_vllm.text import Detokenizer

SPECIAL_TOKENS = ("<bos>", "<eos>", "<|im_start|>", "<|im_end|>")


class ByteTokenizer:
    """Ids 0 to 255 are bytes; `merges` adds longer pieces behind them, then come the special tokens.

    Satisfies what the engine asks of `text.Tokenizer`. Encoding never uses the longer pieces; they exist so that a
    token may end inside a character or hold several of them.
    """

    strips_leading_space = False

    def __init__(self, *, merges: Iterable[bytes] = (), bos: bool = False) -> None:
        self._pieces = [bytes([value]) for value in range(256)] + list(merges)
        first = len(self._pieces)
        self._special = {text: first + index for index, text in enumerate(SPECIAL_TOKENS)}
        self._pieces += [text.encode() for text in SPECIAL_TOKENS]
        self.vocab_size = len(self._pieces)
        self.special_ids = frozenset(self._special.values())
        self.bos_token_id = self._special["<bos>"] if bos else None
        self.eos_token_ids = (self._special["<eos>"],)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Bytes, with special tokens recognised; BOS in front if the tokenizer has one."""
        ids: list[int] = []
        for part in re.split(f"({'|'.join(map(re.escape, SPECIAL_TOKENS))})", text):
            ids += [self._special[part]] if part in self._special else part.encode()
        if add_special_tokens and self.bos_token_id is not None and ids[:1] != [self.bos_token_id]:
            ids.insert(0, self.bos_token_id)
        return ids

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids; invalid bytes become U+FFFD."""
        detokenizer = Detokenizer(self, skip_special_tokens=skip_special_tokens)
        return detokenizer.push(ids) + detokenizer.flush()

    def token_bytes(self, token_id: int) -> bytes:
        """What one token contributes to the text; b"" for ids that do not exist."""
        return self._pieces[token_id] if 0 <= token_id < self.vocab_size else b""

    def piece(self, token_id: int) -> str:
        """The token's bytes, as text."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def id_of(self, piece: str) -> int | None:
        """The id of a special token or of a piece that is valid UTF-8."""
        if piece in self._special:
            return self._special[piece]
        data = piece.encode()
        return self._pieces.index(data) if data in self._pieces else None
