"""How token pieces become bytes: the byte-level alphabet and SentencePiece's conventions.

Pure tables and functions. Must not know tokenizer files, GGUF or any library.
"""

from enum import IntEnum
from functools import lru_cache

WORD_MARK = "▁"  # SentencePiece writes a space as this character


class PieceType(IntEnum):
    """Kinds of vocabulary entries; SentencePiece and GGUF use the same numbers."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@lru_cache(maxsize=1)
def byte_alphabet() -> dict[str, int]:
    """Character -> byte, of byte-level BPE: printable Latin-1 stands for itself, the rest is shifted above 255."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    hidden = [byte for byte in range(256) if byte not in set(printable)]
    alphabet.update({chr(256 + index): byte for index, byte in enumerate(hidden)})
    return alphabet


def byte_level_bytes(piece: str) -> bytes:
    """Bytes of a byte-level piece; a piece with a character outside the alphabet is plain text."""
    alphabet = byte_alphabet()
    try:
        return bytes([alphabet[character] for character in piece])
    except KeyError:
        return piece.encode("utf-8", "replace")


def sentencepiece_bytes(piece: str, *, byte_fallback: bool) -> bytes:
    """Bytes of a SentencePiece piece: `<0x0A>` is one byte, the word mark is a space."""
    if byte_fallback and (byte := byte_of(piece)) is not None:
        return bytes([byte])
    return piece.replace(WORD_MARK, " ").encode("utf-8", "replace")


def byte_of(piece: str) -> int | None:
    """The byte that a piece such as `<0x0A>` stands for, else None."""
    if len(piece) != 6 or not piece.startswith("<0x") or not piece.endswith(">"):
        return None
    try:
        return int(piece[3:5], 16)
    except ValueError:
        return None
