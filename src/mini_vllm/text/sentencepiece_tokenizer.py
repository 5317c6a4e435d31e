"""Build a `tokenizers` backend that encodes as SentencePiece does, from a vocabulary with scores.

Merges are derived from the scores: two neighbours merge into a piece that exists, best score first. Must not know
where the vocabulary came from.
"""

import re
from typing import TYPE_CHECKING, Any, Literal

from mini_vllm.text.pieces import WORD_MARK, PieceType
from mini_vllm.text.sentencepiece_model import SentencePieceModel

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PrefixRule = Literal["never", "first", "always"]  # which chunks between special tokens get a space in front
_MAX_ISOLATED = 256  # user-defined pieces found by one regular expression


def build_sentencepiece(model: SentencePieceModel, *, prefix: PrefixRule, isolate: bool = True) -> "Tokenizer":
    """A backend for this vocabulary.

    `isolate` treats user-defined pieces as SentencePiece does (found after the space in front was added); otherwise
    they are cut out of the raw text, as GGUF and the transformers library do.
    """
    from tokenizers import AddedToken, Tokenizer

    plain, marked = _user_defined(model, isolate=isolate and prefix != "never")
    backend = Tokenizer(_unigram(model) if model.unigram else _bpe(model, whole_words=bool(marked)))
    backend.normalizer = _normalizer(model, prefix=prefix)
    if (splitter := _pre_tokenizer(marked, prefix=prefix)) is not None:
        backend.pre_tokenizer = splitter
    backend.decoder = _decoder(model, prefix=prefix)
    backend.add_special_tokens(
        [
            AddedToken(model.pieces[index], normalized=False, special=True)
            for index in model.ids_of(PieceType.CONTROL, PieceType.UNKNOWN)
        ]
    )
    if plain:
        backend.add_tokens([AddedToken(piece, normalized=False, special=False) for piece in plain])
    return backend


def merges_by_score(pieces: list[str], scores: list[float], types: list[int]) -> list[tuple[str, str]]:
    """Every way to make a normal piece of two others, best score first, then lowest id."""
    mergeable = (PieceType.NORMAL, PieceType.UNUSED)
    known = {piece for piece, kind in zip(pieces, types, strict=True) if kind in mergeable}
    ranked = []
    for index, (piece, score, kind) in enumerate(zip(pieces, scores, types, strict=True)):
        if kind not in mergeable:
            continue
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in known and right in known:
                ranked.append((-score, index, left, right))
    ranked.sort()
    return [(left, right) for _, _, left, right in ranked]


def _user_defined(model: SentencePieceModel, *, isolate: bool) -> tuple[list[str], list[str]]:
    """(pieces cut out of the raw text, pieces found in the normalised text)."""
    pieces = [model.pieces[index] for index in model.ids_of(PieceType.USER_DEFINED)]
    if isolate and len(pieces) <= _MAX_ISOLATED:
        return [], pieces
    return [piece for piece in pieces if WORD_MARK not in piece], [piece for piece in pieces if WORD_MARK in piece]


def _bpe(model: SentencePieceModel, *, whole_words: bool) -> Any:
    from tokenizers import models

    return models.BPE(
        vocab={piece: index for index, piece in enumerate(model.pieces)},
        merges=merges_by_score(model.pieces, model.scores, model.types),
        unk_token=model.unk_piece,
        fuse_unk=True,
        byte_fallback=model.byte_fallback,
        ignore_merges=whole_words,
    )


def _unigram(model: SentencePieceModel) -> Any:
    from tokenizers import models

    vocabulary = list(zip(model.pieces, model.scores, strict=True))
    return models.Unigram(vocab=vocabulary, unk_id=model.unk_id, byte_fallback=model.byte_fallback)


def _normalizer(model: SentencePieceModel, *, prefix: PrefixRule) -> Any:
    from tokenizers import Regex, normalizers

    steps: list[Any] = []
    if model.charsmap:
        steps.append(normalizers.Precompiled(model.charsmap))
    if model.remove_extra_whitespaces:
        steps.append(normalizers.Replace(Regex(r"\A +| +\z"), ""))
        steps.append(normalizers.Replace(Regex(" {2,}"), " "))
    if model.escape_whitespaces:
        steps.append(normalizers.Replace(" ", WORD_MARK))
    if prefix == "always":
        steps.append(normalizers.Prepend(WORD_MARK))
    return normalizers.Sequence(steps)


def _pre_tokenizer(marked: list[str], *, prefix: PrefixRule) -> Any:
    from tokenizers import Regex, pre_tokenizers

    steps: list[Any] = []
    if prefix == "first":
        steps.append(pre_tokenizers.Metaspace(replacement=WORD_MARK, prepend_scheme="first", split=False))
    if marked:
        pattern = "|".join(re.escape(piece) for piece in sorted(marked, key=len, reverse=True))
        steps.append(pre_tokenizers.Split(Regex(pattern), "isolated"))
    return pre_tokenizers.Sequence(steps) if steps else None


def _decoder(model: SentencePieceModel, *, prefix: PrefixRule) -> Any:
    from tokenizers import decoders

    steps: list[Any] = [decoders.Replace(WORD_MARK, " ")]
    if model.byte_fallback:
        steps.append(decoders.ByteFallback())
    steps.append(decoders.Fuse())
    if prefix != "never":
        steps.append(decoders.Strip(" ", 1, 0))
    return decoders.Sequence(steps)
