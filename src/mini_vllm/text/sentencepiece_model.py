"""Read a SentencePiece `tokenizer.model` (a protocol buffer) without the sentencepiece library.

Only the fields that change token ids are read. Every length is checked against the file. Must not know GGUF or the
`tokenizers` library.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from mini_vllm.errors import WeightsError
from mini_vllm.text.pieces import PieceType

_UNIGRAM, _BPE = 1, 2
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclass(slots=True)
class SentencePieceModel:
    """Vocabulary and settings. `pieces`, `scores` and `types` are parallel, in id order."""

    pieces: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    types: list[int] = field(default_factory=list)
    unigram: bool = False
    byte_fallback: bool = False
    unk_id: int = 0
    bos_id: int = 1
    eos_id: int = 2
    add_dummy_prefix: bool = True
    remove_extra_whitespaces: bool = True
    escape_whitespaces: bool = True
    charsmap: bytes = b""

    @property
    def unk_piece(self) -> str | None:
        """Text of the unknown token, if the vocabulary has one."""
        return self.pieces[self.unk_id] if 0 <= self.unk_id < len(self.pieces) else None

    def ids_of(self, *types: PieceType) -> list[int]:
        """Ids of the pieces of these types."""
        return [index for index, kind in enumerate(self.types) if kind in types]


def read_sentencepiece_model(path: Path) -> SentencePieceModel:
    """Parse a `tokenizer.model`; a file that is not one is a `WeightsError`."""
    model = SentencePieceModel()
    try:
        for number, value in _fields(path.read_bytes()):
            if number == 1:
                _read_piece(model, _as_bytes(value))
            elif number == 2:
                _read_trainer(model, _as_bytes(value))
            elif number == 3:
                _read_normalizer(model, _as_bytes(value))
    except (IndexError, ValueError, TypeError, struct.error) as error:
        raise WeightsError(
            f"{path} is not a SentencePiece model ({error}); download it again", param="model"
        ) from error
    if not model.pieces:
        raise WeightsError(f"{path} has no vocabulary; download it again", param="model")
    return model


def _read_piece(model: SentencePieceModel, data: bytes) -> None:
    piece, score, kind = "", 0.0, int(PieceType.NORMAL)
    for number, value in _fields(data):
        if number == 1:
            piece = _as_bytes(value).decode("utf-8")
        elif number == 2:
            (score,) = struct.unpack("<f", _as_bytes(value))
        elif number == 3:
            kind = _as_int(value)
    model.pieces.append(piece)
    model.scores.append(score)
    model.types.append(kind)


def _read_trainer(model: SentencePieceModel, data: bytes) -> None:
    for number, value in _fields(data):
        if number == 3:
            kind = _as_int(value)
            if kind not in (_UNIGRAM, _BPE):
                raise ValueError(f"model type {kind} is neither unigram (1) nor BPE (2)")
            model.unigram = kind == _UNIGRAM
        elif number == 35:
            model.byte_fallback = bool(_as_int(value))
        elif number in (40, 41, 42):
            setattr(model, {40: "unk_id", 41: "bos_id", 42: "eos_id"}[number], _as_int(value))


def _read_normalizer(model: SentencePieceModel, data: bytes) -> None:
    for number, value in _fields(data):
        if number == 2:
            model.charsmap = _as_bytes(value)
        elif number in (3, 4, 5):
            name = {3: "add_dummy_prefix", 4: "remove_extra_whitespaces", 5: "escape_whitespaces"}[number]
            setattr(model, name, bool(_as_int(value)))


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Field number and value of each field of a message: an int (varint) or bytes."""
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, position = _varint(data, position)
            yield number, value
            continue
        if wire == _BYTES:
            size, position = _varint(data, position)
        elif wire in (_FIXED32, _FIXED64):
            size = 4 if wire == _FIXED32 else 8
        else:
            raise ValueError(f"wire type {wire} at byte {position}")
        if position + size > len(data):
            raise ValueError(f"field {number} of {size} bytes passes the end")
        yield number, data[position : position + size]
        position += size


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError(f"number of more than 10 bytes at byte {position}")


def _as_bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number where bytes belong")
    return value


def _as_int(value: int | bytes) -> int:
    """Protocol buffer int32: negative numbers arrive as 64-bit two's complement."""
    if not isinstance(value, int):
        raise ValueError("bytes where a number belongs")
    return value - 2**64 if value >= 2**63 else value
