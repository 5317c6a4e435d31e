"""From checked GGUF metadata to a working tokenizer backend.

Must not know how the metadata was read.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mini_vllm.errors import UnsupportedModelError
from mini_vllm.text.gguf_metadata import GGUFVocabulary
from mini_vllm.text.parts import TokenizerParts
from mini_vllm.text.pieces import WORD_MARK, PieceType
from mini_vllm.text.pretokenizers import Recipe, build_normalizer, build_pre_tokenizer, recipe_of
from mini_vllm.text.sentencepiece_model import SentencePieceModel
from mini_vllm.text.sentencepiece_tokenizer import build_sentencepiece

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_NAMED = {"bos_token": "bos_token_id", "eos_token": "eos_token_id", "unk_token": "unknown_token_id"}
_NAMED |= {"pad_token": "padding_token_id", "sep_token": "seperator_token_id"}  # the format spells it so


def parts_from_gguf(metadata: Mapping[str, Any]) -> TokenizerParts:
    """Build from `tokenizer.*` metadata.

    Raises:
        WeightsError: a key is missing, of the wrong type or length, or contradicts another.
        UnsupportedModelError: a tokenizer or pre-tokenizer this engine does not know; names it.
    """
    vocabulary = GGUFVocabulary(metadata)
    if vocabulary.kind == "gpt2":
        recipe = recipe_of(vocabulary.pre)
        backend, add_bos, add_prefix = _byte_level(vocabulary, recipe), recipe.add_bos, False
    elif vocabulary.kind == "llama":
        add_prefix = vocabulary.flag("add_space_prefix", default=True)
        backend, add_bos = (
            build_sentencepiece(_as_model(vocabulary), prefix="always" if add_prefix else "never", isolate=False),
            True,
        )
    else:
        raise UnsupportedModelError(
            f"tokenizer.ggml.model is {vocabulary.kind!r}; this engine reads gpt2 (byte-level BPE) and llama "
            "(SentencePiece). Use the model's safetensors folder, which has its tokenizer.json",
            param="model",
        )
    bos = vocabulary.token_id("bos_token_id")
    eos = vocabulary.token_id("eos_token_id")
    named = {name: vocabulary.token_id(key) for name, key in _NAMED.items()}
    return TokenizerParts(
        backend=backend,
        byte_level=vocabulary.kind == "gpt2",
        byte_fallback=vocabulary.kind == "llama",
        strips_leading_space=add_prefix,
        prefix_ids=(bos,) if bos is not None and vocabulary.flag("add_bos_token", default=add_bos) else (),
        suffix_ids=(eos,) if eos is not None and vocabulary.flag("add_eos_token", default=False) else (),
        bos_token_id=bos,
        eos_token_ids=vocabulary.end_ids,
        named_tokens={name: vocabulary.pieces[index] for name, index in named.items() if index is not None},
        chat_templates=vocabulary.chat_templates(),
    )


def _byte_level(vocabulary: GGUFVocabulary, recipe: Recipe) -> "Tokenizer":
    from tokenizers import AddedToken, Tokenizer, models

    vocab = {piece: index for index, piece in enumerate(vocabulary.pieces)}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=vocabulary.merges, ignore_merges=recipe.whole_words))
    if (normalizer := build_normalizer(recipe)) is not None:
        backend.normalizer = normalizer
    add_prefix = vocabulary.flag("add_space_prefix", default=False)
    backend.pre_tokenizer = build_pre_tokenizer(recipe, add_prefix_space=add_prefix)
    pieces = vocabulary.pieces
    special = vocabulary.ids_of(PieceType.CONTROL, PieceType.UNKNOWN)
    backend.add_special_tokens([AddedToken(pieces[index], normalized=False, special=True) for index in special])
    plain = vocabulary.ids_of(PieceType.USER_DEFINED)
    backend.add_tokens([AddedToken(pieces[index], normalized=False, special=False) for index in plain])
    return backend


def _as_model(vocabulary: GGUFVocabulary) -> SentencePieceModel:
    pieces = list(vocabulary.pieces)
    for index in vocabulary.ids_of(PieceType.USER_DEFINED):
        pieces[index] = pieces[index].replace(" ", WORD_MARK)  # converters write them with real spaces
    return SentencePieceModel(
        pieces=pieces,
        scores=vocabulary.scores,
        types=vocabulary.types,
        byte_fallback=True,
        unk_id=vocabulary.token_id("unknown_token_id") or 0,
        remove_extra_whitespaces=vocabulary.flag("remove_extra_whitespaces", default=False),
    )
