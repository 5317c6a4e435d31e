"""Byte-level BPE from GGUF metadata and from folders, against the tokenizers library set up by each family."""

import json

import pytest
from text.vocabularies import (
    GPT2,
    LLAMA3,
    NASTY,
    QWEN,
    SMOLLM,
    SPECIALS,
    byte_level,
    gguf_byte_level,
)
from tokenizers import AddedToken, processors
from tokenizers import Tokenizer as Backend

from mini_vllm.errors import InvalidParameterError, UnsupportedModelError, WeightsError
from mini_vllm.text import Tokenizer
from mini_vllm.text.tokenizer import LONG_TEXT

FAMILIES = [GPT2, SMOLLM, LLAMA3, QWEN]


@pytest.mark.parametrize("pre", FAMILIES)
@pytest.mark.parametrize("text", NASTY)
def test_gguf_ids_equal_the_family_tokenizer(pre: str, text: str) -> None:
    reference = byte_level(pre)
    tokenizer = Tokenizer.from_gguf(gguf_byte_level(reference, pre))
    expected = reference.encode(text, add_special_tokens=False)
    assert tokenizer.encode(text, add_special_tokens=False) == expected.ids
    assert tokenizer.decode(expected.ids) == reference.decode(expected.ids)


@pytest.mark.parametrize("pre", FAMILIES)
def test_families_differ(pre: str) -> None:
    """The comparison above would pass emptily if all pre-tokenizers cut alike."""
    text = "Wörter 12345 THEY'RE e\u0301 \n\n x"
    cuts = {
        family: tuple(Tokenizer.from_gguf(gguf_byte_level(byte_level(GPT2), family)).encode(text))
        for family in FAMILIES
    }
    assert len(set(cuts.values())) == len(FAMILIES)
    assert all(len(ids) > 10 for ids in cuts.values())


@pytest.mark.parametrize("pre", FAMILIES)
@pytest.mark.parametrize(
    "text", ["<|im_start|>user\nhi<|im_end|>\n", " <|im_end|> <|im_end|>x", "<|im_end|", "a<|endoftext|>b<|im_start|>"]
)
def test_special_tokens_in_the_text_are_recognised(pre: str, text: str) -> None:
    reference = byte_level(pre)
    tokenizer = Tokenizer.from_gguf(gguf_byte_level(reference, pre))
    expected = reference.encode(text, add_special_tokens=False).ids
    assert tokenizer.encode(text, add_special_tokens=False) == expected
    assert tokenizer.decode(expected, skip_special_tokens=False) == text
    assert tokenizer.decode(expected) == reference.decode(expected, skip_special_tokens=True)


def test_tpl_12_special_and_text_mixes_round_trip_without_added_spaces() -> None:
    tokenizer = Tokenizer.from_gguf(gguf_byte_level(byte_level(SMOLLM), SMOLLM))
    for text in ("<|im_start|>text<|im_end|>", "<|im_start|> text <|im_end|>\n", "a<|endoftext|>b"):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert tokenizer.encode("<|im_start|>", add_special_tokens=False) == [1]


def test_user_defined_tokens_are_whole_but_not_special() -> None:
    reference = Backend.from_str(byte_level(GPT2).to_str())
    reference.add_tokens([AddedToken("<tool>", normalized=False)])
    tokenizer = Tokenizer.from_gguf(gguf_byte_level(reference, GPT2))
    tool = reference.token_to_id("<tool>")
    assert tokenizer.encode("a<tool>b") == reference.encode("a<tool>b").ids
    assert tool in tokenizer.encode("a<tool>b")
    assert tool not in tokenizer.special_ids
    assert tokenizer.decode([tool]) == "<tool>"


def test_bos_is_added_where_the_file_says_so() -> None:
    reference = byte_level(GPT2)
    plain = Tokenizer.from_gguf(gguf_byte_level(reference, GPT2))
    with_bos = Tokenizer.from_gguf(gguf_byte_level(reference, GPT2, add_bos_token=True))
    with_both = Tokenizer.from_gguf(gguf_byte_level(reference, GPT2, add_bos_token=True, add_eos_token=True))
    body = plain.encode("hello")
    assert plain.encode("hello") == plain.encode("hello", add_special_tokens=False)
    assert with_bos.encode("hello") == [1, *body]
    assert with_both.encode("hello") == [1, *body, 2]
    assert with_both.encode("hello", add_special_tokens=False) == body


def test_bos_of_llama_3_is_the_default_and_can_be_switched_off() -> None:
    reference = byte_level(LLAMA3)
    assert Tokenizer.from_gguf(gguf_byte_level(reference, LLAMA3)).encode("x")[0] == 1
    assert 1 not in Tokenizer.from_gguf(gguf_byte_level(reference, LLAMA3, add_bos_token=False)).encode("x")


def test_tpl_11_a_prompt_that_begins_with_bos_keeps_one() -> None:
    tokenizer = Tokenizer.from_gguf(gguf_byte_level(byte_level(LLAMA3), LLAMA3))
    ids = tokenizer.encode("<|im_start|>Hello")
    assert ids.count(1) == 1
    assert ids == tokenizer.encode("<|im_start|>Hello", add_special_tokens=False)
    without_bos = Tokenizer.from_gguf(gguf_byte_level(byte_level(LLAMA3), LLAMA3, add_bos_token=False))
    assert without_bos.encode("Hello") == tokenizer.encode("Hello")[1:]


def test_add_space_prefix() -> None:
    reference = byte_level(GPT2)
    tokenizer = Tokenizer.from_gguf(gguf_byte_level(reference, GPT2, add_space_prefix=True))
    assert tokenizer.encode("hello") == reference.encode(" hello").ids
    assert tokenizer.encode(" hello") == reference.encode(" hello").ids


def test_facts_of_the_vocabulary() -> None:
    reference = byte_level(GPT2)
    tokenizer = Tokenizer.from_gguf(gguf_byte_level(reference, GPT2, eot_token_id=0, eom_token_id=2**32 - 1))
    assert tokenizer.vocab_size == reference.get_vocab_size()
    assert tokenizer.special_ids == {0, 1, 2}
    assert tokenizer.bos_token_id == 1
    assert tokenizer.eos_token_ids == (2, 0)
    assert tokenizer.named_tokens["eos_token"] == "<|im_end|>"
    the = reference.token_to_id("Ġthe")
    assert tokenizer.piece(the) == "Ġthe"
    assert tokenizer.id_of("Ġthe") == the
    assert tokenizer.token_bytes(the) == b" the"
    assert tokenizer.token_bytes(2) == b"<|im_end|>"
    for outside in (-1, tokenizer.vocab_size, 10**9):
        assert (tokenizer.piece(outside), tokenizer.token_bytes(outside)) == ("", b"")
    assert tokenizer.id_of("no such piece") is None


def test_half_a_surrogate_pair_is_refused() -> None:
    tokenizer = Tokenizer.from_gguf(gguf_byte_level(byte_level(GPT2), GPT2))
    with pytest.raises(InvalidParameterError, match="surrogate"):
        tokenizer.encode("a\ud800b")


def test_unknown_pre_tokenizer_is_named() -> None:
    metadata = gguf_byte_level(byte_level(GPT2), "martian")
    with pytest.raises(UnsupportedModelError, match=r"'martian'.*known: .*smollm"):
        Tokenizer.from_gguf(metadata)


def test_unknown_tokenizer_model_is_named() -> None:
    metadata = gguf_byte_level(byte_level(GPT2), GPT2) | {"tokenizer.ggml.model": "rwkv"}
    with pytest.raises(UnsupportedModelError, match="'rwkv'"):
        Tokenizer.from_gguf(metadata)


@pytest.mark.parametrize(
    "pre", ["default", "falcon", "deepseek-llm", "deepseek-coder", "deepseek-v3", "tekken", "gpt-4o", "qwen35", "olmo"]
)
def test_every_recipe_keeps_all_text(pre: str) -> None:
    tokenizer = Tokenizer.from_gguf(gguf_byte_level(byte_level(GPT2), pre))
    for text in NASTY:
        if pre in ("qwen35", "olmo") and "\u0301" in text:
            continue  # composed first
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids, skip_special_tokens=False).replace("Å", "Å") == text.replace("Å", "Å")


def test_folder_with_tokenizer_json(tmp_path) -> None:
    reference = byte_level(SMOLLM)
    reference.save(str(tmp_path / "tokenizer.json"))
    config = {"eos_token": {"content": "<|im_end|>"}, "bos_token": "<|im_start|>", "chat_template": "{{ 1 }}"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer.from_folder(tmp_path)
    for text in NASTY:
        assert tokenizer.encode(text) == reference.encode(text).ids
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (1, (2,))
    assert tokenizer.special_ids == {0, 1, 2}
    assert tokenizer.chat_templates == {"default": "{{ 1 }}"}


def test_folder_with_vocab_and_merges_is_gpt2(tmp_path) -> None:
    from transformers import GPT2Tokenizer

    byte_level(GPT2).model.save(str(tmp_path))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"eos_token": SPECIALS[0], "bos_token": SPECIALS[0]}))
    reference = GPT2Tokenizer.from_pretrained(str(tmp_path))
    tokenizer = Tokenizer.from_folder(tmp_path)
    for text in [*NASTY, "a<|endoftext|>b"]:
        assert tokenizer.encode(text) == reference.encode(text)
        assert tokenizer.decode(tokenizer.encode(text)) == reference.decode(
            reference.encode(text), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )


@pytest.mark.parametrize("setting", [{}, {"add_bos_token": True}, {"add_bos_token": True, "add_eos_token": True}])
def test_bos_settings_equal_transformers(tmp_path, setting: dict[str, bool]) -> None:
    from transformers import AutoTokenizer

    byte_level(LLAMA3).save(str(tmp_path / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": SPECIALS[1], "eos_token": SPECIALS[2]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | setting))
    expected = AutoTokenizer.from_pretrained(str(tmp_path)).encode("Hello there")
    assert Tokenizer.from_folder(tmp_path).encode("Hello there") == expected


def test_the_post_processor_of_tokenizer_json_adds_bos_once(tmp_path) -> None:
    reference = Backend.from_str(byte_level(LLAMA3).to_str())
    reference.post_processor = processors.TemplateProcessing("<|im_start|> $A", special_tokens=[("<|im_start|>", 1)])
    reference.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.encode("Hello there") == reference.encode("Hello there").ids
    assert tokenizer.encode("<|im_start|>Hello") == [1, *tokenizer.encode("Hello", add_special_tokens=False)]


def test_tokens_named_only_in_the_settings_are_added(tmp_path) -> None:
    byte_level(GPT2).save(str(tmp_path / "tokenizer.json"))
    size = byte_level(GPT2).get_vocab_size()
    config = {
        "added_tokens_decoder": {str(size): {"content": "<extra>", "special": False}},
        "additional_special_tokens": ["<more>"],
        "eos_token": "<stop>",
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.id_of("<extra>") == size
    assert tokenizer.decode(tokenizer.encode("<extra>")) == "<extra>"
    assert {tokenizer.id_of("<more>"), tokenizer.id_of("<stop>")} <= tokenizer.special_ids
    assert tokenizer.eos_token_ids == (tokenizer.id_of("<stop>"),)
    assert tokenizer.vocab_size == size + 3


def test_truncation_and_padding_saved_in_the_file_are_ignored(tmp_path) -> None:
    reference = Backend.from_str(byte_level(GPT2).to_str())
    reference.enable_truncation(4)
    reference.enable_padding(length=4)
    reference.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert len(tokenizer.encode("a rather long sentence of many words")) > 8
    assert len(tokenizer.encode("a")) == 1


def test_broken_files_are_one_clear_line(tmp_path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(WeightsError, match=r"tokenizer\.json cannot be read"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[1]")
    with pytest.raises(WeightsError, match="holds list"):
        Tokenizer.from_folder(tmp_path)


def test_a_folder_without_a_tokenizer_says_what_is_looked_for(tmp_path) -> None:
    with pytest.raises(Exception, match=r"no tokenizer: looked for tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("length", [LONG_TEXT - 1, LONG_TEXT, 3 * LONG_TEXT])
def test_long_texts_have_the_ids_of_short_ones(length: int) -> None:
    reference = byte_level(SMOLLM)
    tokenizer = Tokenizer.from_gguf(gguf_byte_level(reference, SMOLLM))
    text = ("  several words, 123 and é “😀”\n" * length)[:length]
    expected = reference.encode(text, add_special_tokens=False).ids
    assert tokenizer.encode(text, add_special_tokens=False) == expected
    with pytest.raises(InvalidParameterError, match="surrogate"):
        tokenizer.encode("\ud800" * length)
