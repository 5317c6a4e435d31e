"""/tokenize, /detokenize, /apply-template, /models, /ready, /version."""

import pytest
from server.rig import MODEL, Rig, answer, error

from mini_vllm import __version__

TURN = {"role": "user", "content": "hi"}
RENDERED = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def post(rig: Rig, path: str, **body):
    return answer(rig.http.post(path, json=body))


def test_a_text_as_token_ids_and_back(rig: Rig) -> None:
    found = post(rig, "/tokenize", prompt="hé", return_token_strs=True)
    assert found["tokens"] == list("hé".encode()) and found["count"] == 3
    assert found["max_model_len"] == 512 and len(found["token_strs"]) == 3
    assert post(rig, "/tokenize", prompt="")["tokens"] == []
    assert post(rig, "/detokenize", tokens=found["tokens"]) == {"prompt": "hé"}
    assert post(rig, "/detokenize", tokens=[]) == {"prompt": ""}


def test_a_conversation_as_text_and_token_ids(rig: Rig) -> None:
    assert post(rig, "/apply-template", messages=[TURN]) == {"prompt": RENDERED}
    without = post(rig, "/apply-template", messages=[TURN], add_generation_prompt=False)
    assert without["prompt"] == RENDERED.removesuffix("<|im_start|>assistant\n")
    ids = post(rig, "/tokenize", messages=[TURN])["tokens"]
    assert post(rig, "/detokenize", tokens=ids) == {"prompt": RENDERED}
    chat = rig.http.post("/v1/chat/completions", json={"messages": [TURN], "max_tokens": 1}).json()
    assert chat["usage"]["prompt_tokens"] == len(ids)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": [TURN]}, "prompt"),
        ("/tokenize", {"prompt": ["a"]}, "prompt"),
        ("/tokenize", {"messages": [{"role": "robot", "content": "a"}]}, "messages[0].role"),
        ("/detokenize", {"tokens": [1, 10**6]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": "abc"}, "tokens"),
        ("/detokenize", {}, "tokens"),
        ("/apply-template", {}, "messages"),
        ("/apply-template", {"messages": [TURN], "chat_template_kwargs": {"tools": []}}, "chat_template_kwargs"),
    ],
)
def test_what_is_wrong_is_said(rig: Rig, path: str, body: dict, param: str) -> None:
    refused = rig.http.post(path, json=body)
    assert refused.status_code == 400
    assert error(refused)["param"] == param
    assert rig.http.post(path, json={"prompt": "a", "tokens": [], "messages": [], "model": "x"}).status_code == 404


def test_models_say_what_is_served(rig: Rig) -> None:
    for path in ("/v1/models", "/models"):
        [card] = answer(rig.http.get(path))["data"]
        assert card["id"] == MODEL and card["max_model_len"] == 512
        assert card["kv_cache"] == {
            "backend": "paged",
            "block_size": 16,
            "num_blocks": 512,
            "prefix_caching": True,
            "dtype": None,
            "num_bytes": None,
        }


def test_ready_and_version(rig: Rig) -> None:
    assert answer(rig.http.get("/ready")) == {"status": "ok"}
    assert answer(rig.http.get("/version")) == {"version": __version__}


def test_the_special_tokens_by_name(rig: Rig) -> None:
    found = answer(rig.http.get("/tokenizer_info"))
    assert found["eos_token"] == found["pad_token"] == "<eos>" and found["bos_token"] is None
    assert found["max_model_len"] == 512 and found["vocab_size"] > 256
