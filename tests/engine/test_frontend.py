"""What a user asks for, resolved into engine requests."""

import numpy as np
import pytest
from engine.parts import make_engine

from mini_vllm.engine.frontend import Frontend, ModelLimits
from mini_vllm.errors import ChatTemplateError, ContextLengthError, InvalidParameterError
from mini_vllm.testing import ByteTokenizer
from mini_vllm.types import SamplingParams


@pytest.fixture
def frontend():
    return make_engine(max_model_len=32).frontend


def _only(prepared):
    [request] = prepared.requests
    return request


def test_text_ids_and_dictionaries_are_the_same_prompt(frontend):
    params = SamplingParams()
    ids = tuple(b"hi")
    for prompt in (
        "hi",
        [104, 105],
        (104, 105),
        np.array([104, 105]),
        {"prompt": "hi"},
        {"prompt_token_ids": [104, 105]},
        {"prompt": "hi", "prompt_token_ids": None, "multi_modal_data": None},
    ):
        assert _only(frontend.prepare(prompt, params)).prompt_token_ids == ids
    assert all(type(token_id) is int for token_id in frontend.tokenize(np.array([1, 2])))


@pytest.mark.parametrize("prompt", [None, 7, b"hi", {"prompt": None}, {"prompt_token_ids": "hi"}, {1}])
def test_what_is_no_prompt_is_refused(frontend, prompt):
    with pytest.raises(InvalidParameterError, match="prompt_token_ids"):
        frontend.prepare(prompt, SamplingParams())


@pytest.mark.parametrize("key", ["multi_modal_data", "text", "cache_salt"])
def test_what_a_prompt_holds_beside_text_and_ids_is_refused_rather_than_left_out(frontend, key):
    with pytest.raises(InvalidParameterError, match=f"prompt has '{key}', which this engine does not read"):
        frontend.prepare({"prompt": "hi", key: "x"}, SamplingParams())


@pytest.mark.parametrize("bad", [np.array([1, 2]), [1], 260, -1, 2**40, 1.5, True, "7"])
def test_token_ids_outside_the_vocabulary_are_refused_by_name(frontend, bad):
    with pytest.raises(InvalidParameterError, match=r"token ids are 0 to 259") as caught:
        frontend.prepare([1, bad], SamplingParams())
    assert caught.value.param == "prompt"


def test_a_tokenizer_of_another_model_is_a_users_mistake():
    limits = ModelLimits(max_model_len=32, vocab_size=100, eos_token_ids=())
    frontend = Frontend(ByteTokenizer(), limits, clock=lambda: 0.0)
    assert frontend.tokenize("AB") == (65, 66)
    with pytest.raises(InvalidParameterError, match=r"token id 122, but this model's ids are 0 to 99; load the token"):
        frontend.tokenize("Az")


@pytest.mark.parametrize("field", ["stop_token_ids", "bad_token_ids", "allowed_token_ids", "logit_bias"])
def test_parameters_with_ids_outside_the_vocabulary_are_refused(frontend, field):
    value = {260: 1.0} if field == "logit_bias" else [260]
    with pytest.raises(InvalidParameterError, match=f"{field} contains 260"):
        frontend.prepare("a", SamplingParams(**{field: value}))


def test_banning_all_that_is_allowed_is_refused(frontend):
    with pytest.raises(InvalidParameterError, match="no token could ever be sampled"):
        frontend.prepare("a", SamplingParams(allowed_token_ids=[1, 2], bad_token_ids=[2, 1, 3]))


@pytest.mark.parametrize("field, ids", [("bad_token_ids", range(260)), ("allowed_token_ids", [270, 299])])
def test_leaving_no_token_to_sample_is_refused(field, ids):
    limits = ModelLimits(max_model_len=32, vocab_size=300, eos_token_ids=())  # rows 260 to 299 are padding
    frontend = Frontend(ByteTokenizer(), limits, clock=lambda: 0.0)
    with pytest.raises(InvalidParameterError, match="no token could ever be sampled") as caught:
        frontend.prepare("hi", SamplingParams(**{field: list(ids)}))
    assert caught.value.param == field
    frontend.prepare("hi", SamplingParams(**{field: [*ids][:-1] if field == "bad_token_ids" else [5, *ids]}))


def test_an_empty_prompt_needs_a_bos_token(frontend):
    for prompt in ("", []):
        with pytest.raises(InvalidParameterError, match="prompt is empty"):
            frontend.prepare(prompt, SamplingParams())
    with_bos = make_engine(tokenizer=ByteTokenizer(bos=True)).frontend
    for prompt in ("", []):
        assert _only(with_bos.prepare(prompt, SamplingParams())).prompt_token_ids == (256,)


def test_len_03_every_length_around_the_context_fits_is_cut_or_is_refused(frontend):
    def resolved(prompt_len, max_tokens):
        return _only(frontend.prepare([1] * prompt_len, SamplingParams(max_tokens=max_tokens))).max_tokens

    assert [resolved(20, wanted) for wanted in (11, 12, 13, None)] == [11, 12, 12, 12]
    assert resolved(31, 1) == 1
    assert resolved(32, 0) == 0
    for prompt_len, max_tokens in ((32, 1), (32, None), (33, 1), (33, 0)):
        with pytest.raises(ContextLengthError, match="maximum context length is 32 tokens") as caught:
            resolved(prompt_len, max_tokens)
        assert caught.value.code == "context_length_exceeded" and str(prompt_len) in str(caught.value)


def test_n_completions_are_n_requests_that_differ_in_their_noise(frontend):
    params = SamplingParams(n=3, seed=5, prompt_logprobs=2)
    prepared = frontend.prepare("ab", params, request_id="mine", priority=4, cache_salt="tenant")
    assert [request.choice_index for request in prepared.requests] == [0, 1, 2]
    assert len({request.noise_key for request in prepared.requests}) == 3
    assert len({request.request_id for request in prepared.requests}) == 3
    assert {(r.parent_id, r.priority, r.cache_salt) for r in prepared.requests} == {("mine", 4, "tenant")}
    assert [request.params.prompt_logprobs for request in prepared.requests] == [2, None, None]


def test_smp_08_equal_seed_and_prompt_draw_equal_noise_and_other_prompts_do_not(frontend):
    def key(prompt, seed=42):
        return _only(frontend.prepare(prompt, SamplingParams(seed=seed))).noise_key

    assert key("Pick a digit:") == key("Pick a digit:")
    assert len({key("Pick a digit:"), key("Pick a digit: "), key("Pick a digit:", 43), key("Pick a digit:", -1)}) == 4
    assert key("same", None) != key("same", None)


def test_stp_06_eos_is_left_out_under_ignore_eos_and_the_users_stops_are_not(frontend):
    request = _only(frontend.prepare("a", SamplingParams(ignore_eos=True, stop_token_ids=[7])))
    assert request.eos_token_ids == () and request.stop_token_ids == (7,)
    assert _only(frontend.prepare("a", SamplingParams())).eos_token_ids == (257,)


def test_a_model_without_a_template_says_how_to_give_one(frontend):
    with pytest.raises(ChatTemplateError, match="--chat-template"):
        frontend.render_chat([{"role": "user", "content": "hi"}])


def test_tpl_10_templated_text_gets_no_second_bos():
    class Template:
        def render(self, messages, **options):
            return "<bos>" + messages[0]["content"]

    frontend = make_engine(tokenizer=ByteTokenizer(bos=True)).frontend
    frontend.chat_template = Template()
    assert frontend.render_chat([{"role": "user", "content": "hi"}]) == [256, 104, 105]
