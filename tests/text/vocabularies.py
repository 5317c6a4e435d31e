"""Tiny tokenizers trained on the spot, and the same vocabularies written as GGUF metadata."""

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import sentencepiece
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers.convert_slow_tokenizer import TikTokenConverter
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX as QWEN2

from mini_vllm.text import Tokenizer as OwnTokenizer

CORPUS = [
    "The quick brown fox jumps over the lazy dog, and then the dog chases the fox through 123 fields in 2024.",
    "Sie können das Gerät nicht öffnen; naïve café résumé, smørrebrød, Łódź, Ünïcödé ÀÉÎ.",
    "日本語のテキストをここに置く。中文文本也放在这里，数字是１２３。한국어 문장도 있습니다.",
    "def encode(self, text):\n    return [self.vocab[t] for t in text.split()]\n\n\tif x:\n\t\tpass",
    "emoji 👨‍👩‍👧 and 🫠🥹 and flags 🇩🇪🇯🇵 with skin 👍🏽, plus symbols ∑∫√≤≥ €£¥ → ← ✓",
    "don't won't it's I'll you've we're THEY'RE she'd   several   spaces    here",
    "русский текст для проверки, ελληνικά γράμματα, עברית, العربية, हिन्दी भाषा",
] * 4

NASTY = [
    "",
    " ",
    "  ",
    "a",
    " a",
    "  a",
    "a ",
    "a  b   c    d",
    "\n",
    "\n\n\n a\r\n\tb\t\t \n",
    "Hello, world! It's 1234567 o'clock; THEY'RE late, I'LL wait.",
    "👨‍👩‍👧 🫠🥹 龜 👍🏽🇩🇪",
    "日本語のテキスト１２３と中文文本，한국어 문장",
    "e\u0301a\u0308o\u0302 \u0301 n\u0303 कि",
    "line\u2028separator\u2029paragraph\u0085next\u00a0nbsp\u3000ideographic\u200bzero",
    "def f(x):\n    if x:\n        return x**2  # square\n",
    "ﬁ ﬀ Å Ⅷ ① ½ ٣٤٥ १२३ 𝟘𝟙 x²",
    "عربى עברית ελληνικά русский हिन्दी",
    "\u0000\u0001\u007f\ufeffbom\ufffd",
    "🏴󠁧󠁢󠁥󠁮󠁧󠁿 zalgo z̷̢̛a̸l̴g̵o̶",
    "....!!!???---===***(([[{{<<>>}}]])) $100.50 50% a/b\\c `code` ~x^y|z",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "▁already▁marked ▁ Ġ Ċ Ä",
    "MixedCASEWords camelCase HTTPServer2Go",
    "x" * 300 + " " * 300 + "y\n" * 50,
]

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
GPT2, LLAMA3, SMOLLM, QWEN = "gpt-2", "llama-bpe", "smollm", "qwen2"


def reference_byte_level(pre: str) -> Tokenizer:
    """An untrained byte-level tokenizer set up as the model family's own tokenizer.json is."""
    reference = Tokenizer(models.BPE(ignore_merges=pre == LLAMA3))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    with_words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if pre == GPT2:
        reference.pre_tokenizer = with_words
    elif pre == SMOLLM:
        reference.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), with_words])
    elif pre == LLAMA3:
        pattern = TikTokenConverter().pattern
        reference.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level]
        )
    elif pre == QWEN:
        reference.normalizer = normalizers.NFC()
        reference.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(QWEN2), "isolated"), byte_level])
    reference.decoder = decoders.ByteLevel()
    return reference


@cache
def byte_level(pre: str) -> Tokenizer:
    """A trained byte-level tokenizer of about 800 tokens."""
    reference = reference_byte_level(pre)
    trainer = trainers.BpeTrainer(
        vocab_size=800,
        special_tokens=SPECIALS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    reference.train_from_iterator(CORPUS, trainer)
    return reference


def gguf_byte_level(reference: Tokenizer, pre: str, **extra: Any) -> dict[str, Any]:
    """The same vocabulary as GGUF metadata."""
    state = reference.model.__getstate__()
    merges = [tuple(merge) for merge in json.loads(state)["merges"]]
    tokens = [reference.id_to_token(index) for index in range(reference.get_vocab_size())]
    added = reference.get_added_tokens_decoder()
    types = [(3 if added[index].special else 4) if index in added else 1 for index in range(len(tokens))]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [" ".join(merge) for merge in merges],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        **{f"tokenizer.ggml.{name}": value for name, value in extra.items()},
    }


@dataclass(frozen=True)
class SentencePieceVocabulary:
    """A trained SentencePiece model and its file."""

    processor: sentencepiece.SentencePieceProcessor
    data: bytes


@cache
def sentence_piece(
    *, user_defined: tuple[str, ...] = (), dummy_prefix: bool = True, unigram: bool = False, trim: bool = False
) -> SentencePieceVocabulary:
    """A trained SentencePiece vocabulary with byte fallback."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(line for text in CORPUS for line in text.split("\n")),
        model_writer=written,
        model_type="unigram" if unigram else "bpe",
        vocab_size=700,
        byte_fallback=True,
        character_coverage=0.99,
        normalization_rule_name="nmt_nfkc" if trim else "identity",
        remove_extra_whitespaces=trim,
        add_dummy_prefix=dummy_prefix,
        user_defined_symbols=list(user_defined),
        hard_vocab_limit=False,
        minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
    return SentencePieceVocabulary(processor, written.getvalue())


def gguf_sentence_piece(vocabulary: SentencePieceVocabulary, **extra: Any) -> dict[str, Any]:
    """The same vocabulary as GGUF metadata; user-defined pieces with real spaces, as converters write them."""
    processor = vocabulary.processor
    pieces, types = [], []
    for index in range(processor.get_piece_size()):
        kind = 1
        if processor.is_unknown(index):
            kind = 2
        elif processor.is_control(index):
            kind = 3
        elif processor.is_byte(index):
            kind = 6
        elif processor.is_unused(index):
            kind = 5
        pieces.append(processor.id_to_piece(index))
        types.append(kind)
    for piece in extra.pop("user_defined", ()):
        types[pieces.index(piece)] = 4
        pieces[pieces.index(piece)] = piece.replace("▁", " ")
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.scores": [processor.get_score(index) for index in range(len(pieces))],
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": processor.bos_id(),
        "tokenizer.ggml.eos_token_id": processor.eos_id(),
        "tokenizer.ggml.unknown_token_id": processor.unk_id(),
        **{f"tokenizer.ggml.{name}": value for name, value in extra.items()},
    }


def without(metadata: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Metadata that lacks one key."""
    return {key: value for key, value in metadata.items() if key != f"tokenizer.ggml.{name}"}


def tokenizer_with_template(folder, place: str, source: str) -> OwnTokenizer:
    """A tokenizer whose chat template is in one of the places where models keep them."""
    metadata = gguf_byte_level(byte_level(SMOLLM), SMOLLM)
    if place == "gguf":
        return OwnTokenizer.from_gguf(metadata | {"tokenizer.chat_template": source})
    byte_level(SMOLLM).save(str(folder / "tokenizer.json"))
    config = {"chat_template": source} if place == "config" else {}
    (folder / "tokenizer_config.json").write_text(
        json.dumps(config | {"bos_token": SPECIALS[1], "eos_token": SPECIALS[2]})
    )
    if place == "jinja":
        (folder / "chat_template.jinja").write_text(source)
    elif place == "json":
        (folder / "chat_template.json").write_text(json.dumps({"chat_template": source}))
    elif place == "additional":
        (folder / "additional_chat_templates").mkdir()
        (folder / "additional_chat_templates" / "tool_use.jinja").write_text(source)
    return OwnTokenizer.from_folder(folder)
