"""What a tokenizer is made of, wherever it was read from. The loaders fill it, `Tokenizer` uses it."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerParts:
    """A backend and the facts about it that ids depend on."""

    backend: "Tokenizer"
    byte_level: bool  # pieces are written in the byte-level alphabet; otherwise SentencePiece's way
    byte_fallback: bool = False  # pieces such as <0x0A> are bytes
    strips_leading_space: bool = False  # decoding drops the space that encoding put in front
    prefix_ids: tuple[int, ...] = ()  # put before a raw prompt (BOS)
    suffix_ids: tuple[int, ...] = ()  # put after it (EOS, for the few models that want it)
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    named_tokens: dict[str, str] = field(default_factory=dict)  # bos_token -> its text: what templates may use
    chat_templates: dict[str, str] = field(default_factory=dict)  # name -> Jinja source
