"""SentencePiece vocabularies from tokenizer.model, tokenizer.json and GGUF, against the sentencepiece library."""

import json

import pytest
from text.vocabularies import NASTY, gguf_sentence_piece, sentence_piece, without

from mini_vllm.errors import WeightsError
from mini_vllm.text import Detokenizer, Tokenizer

USER_DEFINED = ("▁▁▁▁", "<tool>", "\n\n")


def folder_with(tmp_path, vocabulary, **config):
    (tmp_path / "tokenizer.model").write_bytes(vocabulary.data)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


def test_gguf_ids_equal_sentencepiece() -> None:
    vocabulary = sentence_piece()
    tokenizer = Tokenizer.from_gguf(gguf_sentence_piece(vocabulary))
    for text in NASTY:
        assert tokenizer.encode(text, add_special_tokens=False) == vocabulary.processor.encode(text), text


def test_gguf_without_space_prefix_equals_sentencepiece_without_it() -> None:
    vocabulary = sentence_piece(dummy_prefix=False)
    tokenizer = Tokenizer.from_gguf(gguf_sentence_piece(vocabulary, add_space_prefix=False))
    for text in NASTY:
        ids = vocabulary.processor.encode(text)
        assert tokenizer.encode(text, add_special_tokens=False) == ids, text
        assert tokenizer.decode(ids) == vocabulary.processor.decode(ids)
    assert tokenizer.decode(tokenizer.encode(" hello")) == " hello"


@pytest.mark.parametrize("options", [{}, {"dummy_prefix": False}, {"user_defined": USER_DEFINED}, {"trim": True}])
def test_tokenizer_model_ids_equal_sentencepiece(tmp_path, options) -> None:
    vocabulary = sentence_piece(**options)
    tokenizer = Tokenizer.from_folder(folder_with(tmp_path, vocabulary))
    texts = [*NASTY, "a    b        c", "<tool>x <tool>", "a\n\nb\n\n\nc", "  <tool>"]
    for text in texts:
        assert tokenizer.encode(text, add_special_tokens=False) == vocabulary.processor.encode(text), text


def test_unigram_tokenizer_model_ids_equal_sentencepiece(tmp_path) -> None:
    vocabulary = sentence_piece(unigram=True)
    tokenizer = Tokenizer.from_folder(folder_with(tmp_path, vocabulary))
    for text in NASTY:
        assert tokenizer.encode(text, add_special_tokens=False) == vocabulary.processor.encode(text), text


def test_decoding_equals_sentencepiece() -> None:
    vocabulary = sentence_piece()
    tokenizer = Tokenizer.from_gguf(gguf_sentence_piece(vocabulary))
    for text in NASTY:
        ids = vocabulary.processor.encode(text)
        assert tokenizer.decode(ids) == vocabulary.processor.decode(ids)


@pytest.mark.parametrize("legacy", [True, False])
def test_ids_equal_transformers_llama(tmp_path, legacy: bool) -> None:
    """The transformers class writes tokenizer.json; we read that, and build our own from the GGUF."""
    from transformers import LlamaTokenizer

    from mini_vllm.text.sentencepiece_model import read_sentencepiece_model
    from mini_vllm.text.sentencepiece_tokenizer import merges_by_score

    vocabulary = sentence_piece()
    (tmp_path / "m.model").write_bytes(vocabulary.data)
    model = read_sentencepiece_model(tmp_path / "m.model")
    reference = LlamaTokenizer(
        vocab={piece: index for index, piece in enumerate(model.pieces)},
        merges=merges_by_score(model.pieces, model.scores, model.types),
        legacy=legacy,
        add_bos_token=True,
    )
    reference.save_pretrained(tmp_path)
    (tmp_path / "m.model").unlink()
    tokenizer = Tokenizer.from_folder(tmp_path)
    texts = [*NASTY, "<s>hello</s> world", "</s> a", "hello<unk>b"]
    for text in texts:
        expected = reference.encode(text, add_special_tokens=False)
        assert tokenizer.encode(text, add_special_tokens=False) == expected, text
        if "<unk>" not in text:
            assert tokenizer.decode(expected) == reference.decode(expected, skip_special_tokens=True), text
    assert tokenizer.encode("hello") == reference.encode("hello")
    assert tokenizer.strips_leading_space


def test_tpl_12_text_after_a_special_token_gets_its_space_as_the_format_says() -> None:
    vocabulary = sentence_piece()
    metadata = gguf_sentence_piece(vocabulary)
    with_prefix = Tokenizer.from_gguf(metadata)
    hello = vocabulary.processor.encode("hello")
    assert with_prefix.encode("<s>hello</s>", add_special_tokens=False) == [1, *hello, 2]
    plain = Tokenizer.from_gguf(metadata | {"tokenizer.ggml.add_space_prefix": False})
    ids = plain.encode("<s>hello</s> x", add_special_tokens=False)
    assert plain.decode(ids, skip_special_tokens=False) == "<s>hello</s> x"
    assert not plain.piece(ids[1]).startswith("▁")


def test_tpl_11_bos_is_added_once_unless_the_file_forbids_it() -> None:
    metadata = gguf_sentence_piece(sentence_piece())
    tokenizer = Tokenizer.from_gguf(metadata)
    assert tokenizer.encode("hello")[0] == 1
    assert tokenizer.encode("<s>hello") == tokenizer.encode("hello")
    without_bos = Tokenizer.from_gguf(metadata | {"tokenizer.ggml.add_bos_token": False})
    assert 1 not in without_bos.encode("hello")
    with_eos = Tokenizer.from_gguf(metadata | {"tokenizer.ggml.add_eos_token": True})
    assert with_eos.encode("hello") == [*tokenizer.encode("hello"), 2]


def test_user_defined_pieces_in_gguf() -> None:
    vocabulary = sentence_piece(user_defined=USER_DEFINED, dummy_prefix=False)
    metadata = gguf_sentence_piece(vocabulary, user_defined=USER_DEFINED, add_space_prefix=False)
    tokenizer = Tokenizer.from_gguf(metadata)
    for text in [*NASTY, "a    b         c", "<tool>x <tool>", "a\n\nb\n\n\nc"]:
        ids = vocabulary.processor.encode(text)
        assert tokenizer.encode(text, add_special_tokens=False) == ids, text
        assert tokenizer.decode(ids) == vocabulary.processor.decode(ids)
    assert tokenizer.id_of("<tool>") not in tokenizer.special_ids


def test_byte_pieces_are_bytes() -> None:
    tokenizer = Tokenizer.from_gguf(gguf_sentence_piece(sentence_piece()))
    index = tokenizer.id_of("<0xF0>")
    assert tokenizer.token_bytes(index) == b"\xf0"
    typed = tokenizer.encode("<0xF0>", add_special_tokens=False)
    assert index not in typed
    assert tokenizer.decode(typed) == "<0xF0>"


def test_str_04_pushing_one_token_at_a_time_keeps_all_spaces() -> None:
    tokenizer = Tokenizer.from_gguf(gguf_sentence_piece(sentence_piece()))
    ids = tokenizer.encode("the quick dog  jumps over", add_special_tokens=False)
    for skip in (True, False):
        detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip)
        deltas = [detokenizer.push([token_id]) for token_id in [1, *ids]]
        joined = "".join(deltas) + detokenizer.flush()
        assert joined == tokenizer.decode([1, *ids], skip_special_tokens=skip)
        assert joined == ("" if skip else "<s> ") + "the quick dog  jumps over"
    continuing = Detokenizer(tokenizer, keep_leading_space=True)
    assert continuing.push(ids) == " the quick dog  jumps over"


def test_a_missing_tokenizer_file_falls_back_to_the_next_kind(tmp_path) -> None:
    vocabulary = sentence_piece()
    tokenizer = Tokenizer.from_folder(folder_with(tmp_path, vocabulary, add_eos_token=True, legacy=False))
    assert tokenizer.encode("a") == [1, *vocabulary.processor.encode("a"), 2]
    assert tokenizer.named_tokens["bos_token"] == "<s>"


@pytest.mark.parametrize("cut", [1, 7, 100, -1, -9])
def test_a_truncated_tokenizer_model_is_refused(tmp_path, cut: int) -> None:
    vocabulary = sentence_piece()
    (tmp_path / "tokenizer.model").write_bytes(vocabulary.data[:cut])
    with pytest.raises(WeightsError, match="is not a SentencePiece model"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("data", [b"", b"\xff" * 40, b"plain text, no protocol buffer", b"\x0a\xff\xff\xff\xff\x7f"])
def test_junk_is_refused(tmp_path, data: bytes) -> None:
    (tmp_path / "tokenizer.model").write_bytes(data)
    with pytest.raises(WeightsError, match=r"SentencePiece model|no vocabulary"):
        Tokenizer.from_folder(tmp_path)


def faults():
    good = gguf_sentence_piece(sentence_piece())
    size = len(good["tokenizer.ggml.tokens"])
    key = "tokenizer.ggml."
    yield "scores as integers", good | {key + "scores": [1] * size}, "scores is not all floating point"
    yield "scores short", good | {key + "scores": [0.0]}, f"scores is 1 entries; it must be {size}"
    yield "scores nan", good | {key + "scores": [float("nan")] * size}, "scores is not a number"
    yield "scores missing", without(good, "scores"), "scores is missing"
    yield "types short", good | {key + "token_type": [1] * (size - 1)}, "token_type is"
    yield "types floats", good | {key + "token_type": [1.0] * size}, "not all integers"
    yield "types range", good | {key + "token_type": [9] * size}, "token_type is 9 to 9"
    yield "tokens text", good | {key + "tokens": "abc"}, "tokens is str; it must be a list"
    yield "tokens empty", good | {key + "tokens": []}, "tokens is 0 entries"
    yield "tokens nested", good | {key + "tokens": [["a"]] * size}, r"tokens\[0\] is list"
    yield "tokens bytes", good | {key + "tokens": [b"\xff"] * size}, r"tokens\[0\] is bytes"
    yield "tokens surrogate", good | {key + "tokens": [f"\udcff{n}" for n in range(size)]}, "not valid UTF-8"
    yield "tokens twice", good | {key + "tokens": ["a"] * size}, "'a' twice"
    yield "tokens missing", without(good, "tokens"), "no usable tokenizer"
    yield "model missing", without(good, "model"), "model is missing"
    yield "model number", good | {key + "model": 3}, "model is 3"
    yield "bos range", good | {key + "bos_token_id": size}, f"bos_token_id is {size}"
    yield "bos text", good | {key + "bos_token_id": "1"}, "bos_token_id is '1'"
    yield "flag number", good | {key + "add_bos_token": 1}, "add_bos_token is 1; it must be a boolean"
    yield "template list", good | {"tokenizer.chat_template": ["x"]}, "chat_template is list"


@pytest.mark.parametrize(("metadata", "message"), [pytest.param(m, e, id=n) for n, m, e in faults()])
def test_sec_04_metadata_is_checked_for_type_and_length(metadata, message: str) -> None:
    with pytest.raises(WeightsError, match=message):
        Tokenizer.from_gguf(metadata)


@pytest.mark.parametrize("merges", ["text", [1], ["ab"], ["x y"], [["a", "b"]]])
def test_sec_04_merges_are_checked(merges) -> None:
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": ["a", "b", "ab"],
        "tokenizer.ggml.merges": merges,
    }
    with pytest.raises(WeightsError, match=r"tokenizer\.ggml\.merges"):
        Tokenizer.from_gguf(metadata)
