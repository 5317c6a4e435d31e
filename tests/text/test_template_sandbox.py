"""Templates that attack or never end: every place a template is rendered from is sandboxed and bounded."""

import pytest
from text import templates
from text.vocabularies import tokenizer_with_template

from mini_vllm.errors import ChatTemplateError
from mini_vllm.text import ChatTemplate, load_chat_template

USER = [{"role": "user", "content": "hi"}]
TURNS = [*USER, {"role": "assistant", "content": "Hello!"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]


def ours(source: str) -> ChatTemplate:
    return ChatTemplate(source, variables={"bos_token": "<s>", "eos_token": "</s>"})


ATTACKS = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ lipsum.__globals__['os'].popen('id').read() }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ messages.append({}) }}",
    "{{ messages[0].update(role='x') }}",
    "{{ ''['__cl' ~ 'ass__'].mro() }}",
    "{{ (''|attr('__class__')).mro() }}",
    "{{ raise_exception.__globals__ }}{{ raise_exception.__globals__.json }}",
    "{% set ns = namespace(__class__='x') %}",
    "{{ '{0.__class__.__mro__}'.format(1) }}",
]


@pytest.mark.parametrize("source", ATTACKS)
def test_sec_01_a_template_cannot_reach_python(source: str) -> None:
    with pytest.raises(ChatTemplateError):
        ours(source).render(USER)


@pytest.mark.parametrize("place", ["gguf", "config", "jinja", "json", "additional", "file"])
def test_sec_01_every_place_a_template_comes_from_is_sandboxed(tmp_path, place: str) -> None:
    source = ATTACKS[0]
    tokenizer = tokenizer_with_template(tmp_path, place, source)
    file = tmp_path / "given.jinja" if place == "file" else None
    if file is not None:
        file.write_text(source)
    template = load_chat_template(tokenizer, file=file)
    name = "tool_use" if place == "additional" else "default"
    assert template.sources[name] == source
    with pytest.raises(ChatTemplateError, match="unsafe"):
        template.render(USER, tools=TOOLS)


BOMBS = [
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(200) }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{{ range(10 ** 9) }}",
    "{{ 'x' * 10 ** 9 }}",
    "{{ 10 ** 9 * ['x'] }}",
    "{{ 9 ** 99999999 }}",
    "{% set ns = namespace(x='ab' * 8) %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "{% set ns = namespace(x='ab' * 8) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{% set ns = namespace(x='\"') %}{% for i in range(99) %}{% set ns.x = ns.x | tojson %}{% endfor %}",
    "{% set ns = namespace(x=3) %}{% for i in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "{{ 'a' | center(999999999) }}",
    "{{ 'a'.ljust(999999999) }}",
    "{{ 'a' | indent(999999999, true) }}",
    "{{ [1] | batch(999999999, 1) | list }}",
    "{{ [1] | tojson(indent=999999999) }}",
    "{{ '%999999999d' % 1 }}",
    "{{ '%*d' % (999999999, 1) }}",
    "{{ '{:999999999}'.format(1) }}",
    "{{ '{:{}}'.format(1, 999999999) }}",
    "{% set x = 'a' * 99999 %}{{ x.replace('a', x) }}",
    "{% set x = 'a' * 99999 %}{{ x | replace('a', x) }}",
    "{% set x = ['a' * 99999] * 9999 %}{{ x | join }}",
    "{% set x = ['a' * 99999] * 9999 %}{{ ''.join(x) }}",
    "{% for i in range(9999) %}{{ 'x' * 99999 }}{% endfor %}",
]


@pytest.mark.parametrize("source", BOMBS)
def test_rendering_is_bounded(source: str) -> None:
    with pytest.raises(ChatTemplateError):
        ours(source).render(USER)


def test_long_conversations_render_well_within_the_bounds() -> None:
    messages = [*TURNS * 2000, USER[0]]
    text = ours(templates.QWEN).render(messages)
    assert text.count("<|im_start|>user") == 2001
