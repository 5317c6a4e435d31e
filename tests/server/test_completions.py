"""POST /v1/completions: prompts of every shape, echo, log-probabilities, n, lengths."""

import pytest
from server.rig import MODEL, Rig, answer, error, serving


def post(rig: Rig, **body):
    return rig.http.post("/v1/completions", json=body)


def test_answers_have_the_documented_shape(rig: Rig) -> None:
    body = rig.complete("say:hello")
    assert body["id"].startswith("cmpl-")
    assert (body["object"], body["model"]) == ("text_completion", MODEL)
    assert body["choices"] == [
        {"index": 0, "text": "hello", "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    ]
    assert body["usage"] == {
        "prompt_tokens": 9,
        "completion_tokens": 6,
        "total_tokens": 15,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_prompts_may_be_text_or_ids_or_lists_of_either(rig: Rig) -> None:
    ids = list(b"say:hello")
    for prompt, count in ((ids, 1), ([ids], 1), ([ids, ids], 2), (["say:hello"], 1), (["say:hello", "say:hello"], 2)):
        assert [choice["text"] for choice in rig.complete(prompt)["choices"]] == ["hello"] * count


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        (None, "required"),
        ([], "empty"),
        ("", "empty"),
        ([[]], "empty"),
        ([1, "a"], "mixes"),
        ([[1], "a"], "mixes"),
        ([-1], "-1"),
        ([10**6], "1000000"),
        ([2**70], str(2**70)),
        ([[1, 10**6]], "1000000"),
        ([1.5], "prompt[0]"),
        ([True], "prompt[0]"),
        ({"text": "x"}, "prompt"),
        (["x"] * 4097, "4096"),
    ],
)
def test_prompts_that_are_none_are_refused(rig: Rig, prompt, words: str) -> None:
    response = post(rig, prompt=prompt, max_tokens=1)
    assert response.status_code == 400
    refused = error(response)
    assert words in refused["message"]
    assert refused["param"].startswith("prompt")


def test_len_12_two_prompts_with_n_2_give_four_choices_in_order(rig: Rig) -> None:
    asked = {"prompt": ["say:one", "say:two!"], "n": 2, "echo": True, "max_tokens": 20}
    body = answer(rig.http.post("/v1/completions", json=asked))
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert [choice["text"] for choice in body["choices"]] == ["say:oneone"] * 2 + ["say:two!two!"] * 2
    assert body["usage"]["prompt_tokens"] == len("say:one") + len("say:two!")
    assert body["usage"]["completion_tokens"] == 2 * (3 + 1) + 2 * (4 + 1)

    texts, finishes = dict.fromkeys(range(4), ""), []
    for event in rig.events("/v1/completions", asked):
        for choice in event["choices"]:
            texts[choice["index"]] += choice["text"]
            finishes += [choice["index"]] if choice["finish_reason"] else []
    assert list(texts.values()) == [choice["text"] for choice in body["choices"]]
    assert sorted(finishes) == [0, 1, 2, 3]


def test_len_13_a_list_of_prompts_is_not_joined(rig: Rig) -> None:
    body = rig.complete(["A", "B"], max_tokens=1, echo=True, seed=1)
    assert [choice["text"][0] for choice in body["choices"]] == ["A", "B"]
    assert [len(choice["text"]) for choice in body["choices"]] == [2, 2]


def test_len_05_max_tokens_zero_needs_echo_and_odd_limits_are_refused(rig: Rig) -> None:
    echoed = rig.complete("abc", max_tokens=0, echo=True)
    assert echoed["choices"][0]["text"] == "abc"
    assert echoed["choices"][0]["finish_reason"] == "length"
    assert echoed["usage"]["completion_tokens"] == 0
    for limit in (0, -1, "5", 1e9, 1.5, True, [1]):
        response = post(rig, prompt="abc", max_tokens=limit)
        assert (response.status_code, error(response)["param"]) == (400, "max_tokens"), limit
    assert rig.complete("abc", max_tokens=None)["usage"]["completion_tokens"] == 16
    assert rig.complete("abc", max_tokens=10**9)["usage"]["completion_tokens"] == 512 - 3


def test_len_07_negative_limits_are_refused(rig: Rig) -> None:
    for limit in (-2, -100, -(2**63)):
        assert "max_tokens" in error(post(rig, prompt="abc", max_tokens=limit))["message"]


def test_len_03_prompt_and_output_may_fill_the_context_exactly(rig: Rig) -> None:
    for prompt_len, limit, made in ((500, 11, 11), (500, 12, 12), (500, 13, 12), (511, 1, 1)):
        body = rig.complete([97] * prompt_len, max_tokens=limit)
        assert body["usage"]["completion_tokens"] == made
        assert body["choices"][0]["finish_reason"] == "length"
    for prompt_len in (512, 513):
        response = post(rig, prompt=[97] * prompt_len, max_tokens=1)
        assert (response.status_code, error(response)["code"]) == (400, "context_length_exceeded")


def test_len_01_prompts_beyond_the_step_budget_work_and_beyond_the_context_are_refused_at_once() -> None:
    with serving(max_num_batched_tokens=64, max_num_seqs=8) as rig:
        assert rig.complete("a " * 200, max_tokens=4)["usage"]["prompt_tokens"] == 400
        response = post(rig, prompt="a " * 5000, max_tokens=4)
        refused = error(response)
        assert (response.status_code, refused["code"]) == (400, "context_length_exceeded")
        assert "maximum context length" in refused["message"]
        assert rig.complete("hi", max_tokens=4)["usage"]["completion_tokens"] == 4


def test_len_14_huge_logprobs_are_refused(rig: Rig) -> None:
    for wanted in (21, 100_000, -1, 10**30, True, 1.5):
        response = post(rig, prompt="abc", echo=True, max_tokens=1, logprobs=wanted)
        assert (response.status_code, error(response)["param"]) == (400, "logprobs"), wanted
    assert len(rig.complete("say:x", logprobs=20)["choices"][0]["logprobs"]["tokens"]) == 2


def test_lgp_01_minus_infinity_is_a_number_in_json(rig: Rig) -> None:
    top = rig.complete("say:hi", logprobs=5)["choices"][0]["logprobs"]["top_logprobs"]
    assert top[0] == {"h": -0.25, "i": -2.0, "j": -9999.0}


@pytest.mark.parametrize("stream", [False, True])
def test_lgp_06_echoed_tokens_join_to_the_text_and_offsets_index_it(rig: Rig, stream: bool) -> None:
    prompt = "\n1. Carol has 20 “x” \U0001f600 say:nice \U0001f600|!"
    asked = {"prompt": prompt, "max_tokens": 12, "temperature": 0, "logprobs": 1, "echo": True, "n": 2}
    if stream:
        parts = [event["choices"][0] for event in rig.events("/v1/completions", asked)]
    else:
        parts = answer(rig.http.post("/v1/completions", json=asked))["choices"]
    for index in (0, 1):
        mine = [part for part in parts if part["index"] == index]
        text = "".join(part["text"] for part in mine)
        merged = {name: [entry for part in mine for entry in part["logprobs"][name]] for name in mine[0]["logprobs"]}
        assert text == prompt + "nice \U0001f600!"
        assert "".join(merged["tokens"]) == text
        assert merged["token_logprobs"][0] is None and merged["top_logprobs"][0] is None
        assert None not in merged["token_logprobs"][1:]
        for token, offset in zip(merged["tokens"], merged["text_offset"], strict=True):
            assert text[offset : offset + len(token)] == token
        # The prompt's tokens, the answer's, and one entry for EOS, which has no text.
        assert len(merged["tokens"]) == len(prompt.encode()) + len("nice \U0001f600!".encode()) + 1


def test_lgp_06_the_chosen_token_is_the_same_float_as_the_best(rig: Rig) -> None:
    found = rig.complete("say:yes", max_tokens=1, echo=True, logprobs=1, temperature=0, seed=1234)
    logprobs = found["choices"][0]["logprobs"]
    assert len(logprobs["tokens"]) == len("say:yes") + 1
    for chosen, top in zip(logprobs["token_logprobs"][1:], logprobs["top_logprobs"][1:], strict=True):
        assert chosen == max(top.values())


def test_lgp_08_scoring_makes_no_token(rig: Rig) -> None:
    body = rig.complete("Hello world", max_tokens=0, echo=True, logprobs=10, temperature=0, seed=1)
    choice = body["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("Hello world", "length")
    assert choice["logprobs"]["tokens"] == list("Hello world")
    assert choice["logprobs"]["token_logprobs"] == [None] + [-0.25] * 10
    assert body["usage"]["completion_tokens"] == 0


def test_lgp_09_prompt_logprobs_are_the_same_with_a_warm_prefix_cache() -> None:
    with serving(prefill_chunk_size=16) as rig:
        asked = {"prompt": "word " * 40, "max_tokens": 1, "echo": True, "logprobs": 5, "temperature": 0, "seed": 1}
        first, second = (rig.complete(**asked)["choices"] for _ in range(2))
        assert first == second
        assert None not in first[0]["logprobs"]["token_logprobs"][1:]


def test_entries_of_a_stop_string_leave_with_its_text(rig: Rig) -> None:
    for stream in (False, True):
        asked = {"prompt": "say:one.STOP.two", "stop": [".STOP."], "logprobs": 0, "max_tokens": 20}
        if stream:
            parts = [event["choices"][0] for event in rig.events("/v1/completions", asked)]
        else:
            parts = rig.complete(**asked)["choices"]
        assert "".join(part["text"] for part in parts) == "one"
        assert [token for part in parts for token in part["logprobs"]["tokens"]] == ["o", "n", "e"]
        assert (parts[-1]["finish_reason"], parts[-1]["stop_reason"]) == ("stop", ".STOP.")


def test_usage_counts_up_to_the_token_that_completes_the_stop(rig: Rig) -> None:
    assert rig.complete("say:one.STOP.two", stop=".STOP.")["usage"]["completion_tokens"] == len("one.STOP.")


def test_sampling_fields_reach_the_engine(rig: Rig) -> None:
    assert rig.complete("say:hello", min_tokens=8, max_tokens=8, ignore_eos=True)["usage"]["completion_tokens"] == 8
    body = rig.complete("say:a,b", stop_token_ids=[ord(",")])
    assert (body["choices"][0]["text"], body["choices"][0]["stop_reason"]) == ("a", ord(","))
    body = rig.complete("say:a,b", stop=",", include_stop_str_in_output=True)
    assert body["choices"][0]["text"] == "a,"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"logit_bias": {"5": 101}}, "logit_bias[5]"),
        ({"logit_bias": {"999999": 1}}, "logit_bias"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"seed": 2**70}, "seed"),
        ({"priority": 2**40}, "priority"),
        ({"prompt": ["x"] * 64, "n": 65}, "prompt"),
        ({"regex": ""}, "regex"),
        ({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
        ({"response_format": {"type": "json"}}, "response_format"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": 5}, "stream_options"),
    ],
)
def test_fields_out_of_range_are_refused_by_name(rig: Rig, fields, param: str) -> None:
    for stream in (False, True):
        response = post(rig, **{"prompt": "say:x", "stream": stream, **fields})
        assert response.status_code == 400
        assert error(response)["param"] == param


def test_neutral_values_of_unsupported_fields_pass(rig: Rig) -> None:
    fields = {"suffix": None, "best_of": 1, "use_beam_search": False, "json": None, "truncate_prompt_tokens": None}
    assert rig.complete("say:x", response_format={"type": "text"}, **fields)["choices"][0]["text"] == "x"


def test_equal_seeds_give_equal_choices_that_differ_among_themselves(rig: Rig) -> None:
    asked = {"prompt": "hm", "n": 3, "seed": 7, "max_tokens": 8}
    first, second = ([choice["text"] for choice in rig.complete(**asked)["choices"]] for _ in range(2))
    assert first == second
    assert len(set(first)) > 1
