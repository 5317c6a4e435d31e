"""Text to token ids and back.

One class over the `tokenizers` library, which is imported when a tokenizer is loaded. It must not know models,
requests or chat messages. Special tokens that occur in the text are recognised: templates depend on it.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from mini_vllm.errors import InvalidParameterError
from mini_vllm.text.detokenizer import Detokenizer
from mini_vllm.text.parts import TokenizerParts
from mini_vllm.text.pieces import byte_level_bytes, sentencepiece_bytes

LONG_TEXT = 10_000  # characters whose encoding would hold up other threads for milliseconds


class Tokenizer:
    """Encodes and decodes; stateless apart from caches, so threads may share it.

    Attributes:
        vocab_size: highest token id + 1 (a model may have more rows; their ids decode to nothing).
        bos_token_id: or None.
        eos_token_ids: what the tokenizer's own files call the end (may be empty).
        special_ids: ids left out of text by `skip_special_tokens`.
        strips_leading_space: whether decoding drops one space at the very start of the text (SentencePiece).
        named_tokens: `bos_token`, `eos_token` … with their texts, for chat templates.
        chat_templates: name -> Jinja source, as the tokenizer's files have them.
    """

    def __init__(self, parts: TokenizerParts) -> None:
        self._backend = parts.backend
        self._parts = parts
        added = parts.backend.get_added_tokens_decoder()
        self._added: dict[int, str] = {index: token.content for index, token in added.items()}
        self.special_ids = frozenset(index for index, token in added.items() if token.special)
        size = parts.backend.get_vocab_size(with_added_tokens=True)
        self.vocab_size: int = max([size - 1, *self._added]) + 1
        self.bos_token_id = parts.bos_token_id
        self.eos_token_ids = parts.eos_token_ids
        self.strips_leading_space = parts.strips_leading_space
        self.named_tokens = dict(parts.named_tokens)
        self.chat_templates = dict(parts.chat_templates)
        self._bytes: dict[int, bytes] = {}

    @classmethod
    def from_folder(cls, path: str | Path) -> Self:
        """From tokenizer.json, tokenizer.model, or vocab.json with merges.txt (`ModelNotFoundError` if none)."""
        from mini_vllm.text.folder import parts_from_folder

        return cls(parts_from_folder(Path(path)))

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Self:
        """From the `tokenizer.*` metadata of a GGUF file (`WeightsError`, `UnsupportedModelError`)."""
        from mini_vllm.text.gguf_tokenizer import parts_from_gguf

        return cls(parts_from_gguf(metadata))

    @classmethod
    def from_checkpoint(cls, path: str | Path, metadata: Mapping[str, Any] | None) -> Self:
        """From GGUF metadata where there is some, else from the folder."""
        return cls.from_folder(path) if metadata is None else cls.from_gguf(metadata)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`.

        `add_special_tokens` puts BOS in front (and EOS behind) where the model wants it, and never twice: a text
        that already begins with BOS keeps that one. Templated text is encoded with False.
        """
        try:
            ids: list[int] = self._encode(text)
        except (UnicodeEncodeError, TypeError):
            raise InvalidParameterError(
                "the text holds half of a surrogate pair, which is not a character; send valid Unicode", param="prompt"
            ) from None
        if not add_special_tokens:
            return ids
        before, after = self._parts.prefix_ids, self._parts.suffix_ids
        if before and tuple(ids[: len(before)]) != before:
            ids = [*before, *ids]
        if after and tuple(ids[-len(after) :]) != after:
            ids = [*ids, *after]
        return ids

    def _encode(self, text: str) -> list[int]:
        if len(text) < LONG_TEXT:
            return self._backend.encode(text, add_special_tokens=False).ids
        # The library's way for batches lets other threads run meanwhile, and keeps no offsets.
        return self._backend.encode_batch_fast([text], add_special_tokens=False)[0].ids

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids; bytes that are no valid UTF-8 become U+FFFD."""
        detokenizer = Detokenizer(self, skip_special_tokens=skip_special_tokens)
        return detokenizer.push(ids) + detokenizer.flush()

    def token_bytes(self, token_id: int) -> bytes:
        """What one token contributes to the text, special tokens included; b"" for ids without a piece."""
        found = self._bytes.get(token_id)
        if found is None:
            found = self._bytes[token_id] = self._compute_bytes(token_id)
        return found

    def piece(self, token_id: int) -> str:
        """The vocabulary's own writing of a token (`Ġthe`, `▁the`, `<0x0A>`); "" for ids without one."""
        if not 0 <= token_id < self.vocab_size:
            return ""
        return self._backend.id_to_token(token_id) or ""

    def id_of(self, piece: str) -> int | None:
        """The id of a piece or special token, or None."""
        found: int | None = self._backend.token_to_id(piece)
        return found

    def _compute_bytes(self, token_id: int) -> bytes:
        added = self._added.get(token_id)
        if self._parts.byte_level:
            return byte_level_bytes(self.piece(token_id)) if added is None else added.encode("utf-8", "replace")
        fallback = self._parts.byte_fallback and added is None
        return sentencepiece_bytes(self.piece(token_id), byte_fallback=fallback)
