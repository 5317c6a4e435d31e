"""Where templates are found, which one is taken, and which tokens they say end a turn."""

import json

import pytest
from text import templates
from text.vocabularies import SMOLLM, byte_level, gguf_byte_level, tokenizer_with_template

from mini_vllm.errors import ChatTemplateError, WeightsError
from mini_vllm.text import ChatTemplate, Tokenizer, end_of_turn_id, eos_token_ids, load_chat_template

USER = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]


@pytest.mark.parametrize("place", ["gguf", "config", "jinja", "json", "file"])
def test_templates_are_found_in_every_place(tmp_path, place: str) -> None:
    tokenizer = tokenizer_with_template(tmp_path, place, "{{ bos_token }}" + place)
    file = tmp_path / "given.jinja" if place == "file" else None
    if file is not None:
        file.write_text("{{ bos_token }}file")
    assert load_chat_template(tokenizer, file=file).render(USER) == "<|im_start|>" + place


def test_later_places_win_and_named_templates_are_chosen(tmp_path) -> None:
    named = [{"name": "default", "template": "old"}, {"name": "tool_use", "template": "with tools"}]
    tokenizer_with_template(tmp_path, "jinja", "new")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    template = load_chat_template(Tokenizer.from_folder(tmp_path))
    assert template.render(USER) == "new"
    assert template.render(USER, tools=TOOLS) == "with tools"
    metadata = gguf_byte_level(byte_level(SMOLLM), SMOLLM)
    metadata |= {"tokenizer.chat_template": "plain", "tokenizer.chat_template.tool_use": "tools"}
    template = load_chat_template(Tokenizer.from_gguf(metadata))
    assert (template.render(USER), template.render(USER, tools=TOOLS)) == ("plain", "tools")


def test_the_given_file_overrides_and_may_be_json(tmp_path) -> None:
    tokenizer = tokenizer_with_template(tmp_path, "config", "own")
    (tmp_path / "given.json").write_text(json.dumps({"chat_template": "given"}))
    assert load_chat_template(tokenizer, file=tmp_path / "given.json").render(USER) == "given"
    for name, content, says in (("a.json", "{}", "no chat_template"), ("b.jinja", None, "does not exist")):
        if content is not None:
            (tmp_path / name).write_text(content)
        with pytest.raises(ChatTemplateError, match=says):
            load_chat_template(tokenizer, file=tmp_path / name)


def test_a_model_without_a_template_says_what_to_do() -> None:
    template = load_chat_template(Tokenizer.from_gguf(gguf_byte_level(byte_level(SMOLLM), SMOLLM)))
    assert not template
    with pytest.raises(ChatTemplateError, match="no chat template; give one with --chat-template FILE"):
        template.render(USER)
    with pytest.raises(ChatTemplateError, match="no default chat template, only rag"):
        ChatTemplate({"rag": "x"}).render(USER)


def test_tpl_10_templated_text_has_one_bos() -> None:
    metadata = gguf_byte_level(byte_level(SMOLLM), SMOLLM, add_bos_token=True)
    tokenizer = Tokenizer.from_gguf(metadata | {"tokenizer.chat_template": templates.GEMMA})
    text = load_chat_template(tokenizer).render(USER)
    assert tokenizer.encode(text, add_special_tokens=False).count(1) == 1
    assert tokenizer.encode(text).count(1) == 1  # even where a client forgets the flag
    assert tokenizer.encode("raw prompt").count(1) == 1


def test_lod_08_every_end_token_of_a_gguf_ends() -> None:
    metadata = gguf_byte_level(byte_level(SMOLLM), SMOLLM, eot_token_id=0, eom_token_id=7)
    tokenizer = Tokenizer.from_gguf(metadata)
    assert eos_token_ids({}, {}, tokenizer) == (0, 2, 7)


def test_lod_08_the_end_of_turn_in_the_template_ends() -> None:
    metadata = gguf_byte_level(byte_level(SMOLLM), SMOLLM, eos_token_id=0)
    tokenizer = Tokenizer.from_gguf(metadata | {"tokenizer.chat_template": templates.CHATML})
    template = load_chat_template(tokenizer)
    assert end_of_turn_id(tokenizer, template) == 2
    assert eos_token_ids({}, {}, tokenizer, template) == (0, 2)
    for source in ("{{ messages[1].content }} then <|im_end|>", "{{ raise_exception('no') }}", "no text<|im_end|>"):
        assert end_of_turn_id(tokenizer, ChatTemplate(source)) is None


def test_lod_10_generation_config_adds_its_list() -> None:
    tokenizer = Tokenizer.from_gguf(gguf_byte_level(byte_level(SMOLLM), SMOLLM))
    assert eos_token_ids({"eos_token_id": 2}, {"eos_token_id": [2, 7]}, tokenizer) == (2, 7)
    assert eos_token_ids({"text_config": {"eos_token_id": [5]}, "eos_token_id": None}, {}, tokenizer) == (2, 5)
    assert eos_token_ids({"eos_token_id": -1}, {}, tokenizer) == (2,)
    with pytest.raises(WeightsError, match="eos_token_id in generation_config is 'x'"):
        eos_token_ids({}, {"eos_token_id": "x"}, tokenizer)


def test_a_syntax_error_is_named_and_found_at_the_start(tmp_path) -> None:
    (tmp_path / "bad.jinja").write_text("ok\n{% for x in %}")
    with pytest.raises(ChatTemplateError, match=r"not valid Jinja: .*line 2"):
        load_chat_template(tokenizer_with_template(tmp_path, "none", ""), file=tmp_path / "bad.jinja")
