"""The commands on a tiny model."""

import json
import re

import pytest
from cli.tiny import CONTEXT, write_model
from text.vocabularies import SMOLLM, byte_level

from mini_vllm.cli.app import COMMANDS
from mini_vllm.kernels.native_abi import bind_library

FOOTER = re.compile(
    r"prompt tokens: (\d+)(?: \((\d+) cached\))? \| tokens: (\d+) \| TTFT: [\d.]+ s \| tok/s: [\d.]+ \| "
    r"finish reason: (\w+)(?: \(.*\))? \| cache: (.*)\n"
)


def test_generate_prints_text_and_figures(run, model) -> None:
    ran = run("generate", model, "The quick brown", "-n", 12, "--ignore-eos")
    prompt = byte_level(SMOLLM).encode("The quick brown").ids
    assert ran.code == 0
    assert ran.out.endswith("\n") and len(ran.out) > 5
    match = FOOTER.fullmatch(ran.err)
    assert match, ran.err
    assert match.groups() == (str(len(prompt)), None, "12", "length", "paged, prefix caching")


def test_generate_is_the_same_streamed_or_not_and_in_every_cache_mode(run, model) -> None:
    plain = run("generate", model, "The fox", "-n", 24, "--ignore-eos")
    modes = {
        ("--no-stream",): "paged, prefix caching",
        ("--no-kv-cache",): "off",
        ("--cache-backend", "contiguous"): "contiguous",
        ("--no-prefix-caching",): "paged",
        ("--prefill-chunk-size", "1"): "paged, prefix caching",
        ("--engine", "native"): "paged, prefix caching",
    }
    for flags, mode in modes.items():
        ran = run("generate", model, "The fox", "-n", 24, "--ignore-eos", *flags)
        assert ran.out == plain.out, flags
        assert ran.err.endswith(f"cache: {mode}\n")


@pytest.mark.parametrize(
    ("words", "stdin"),
    [
        (["{model}", "Hello there"], ""),
        (["--model", "{model}", "Hello there"], ""),
        (["Hello there", "-m", "{model}"], ""),
        (["{model}", "--prompt", "Hello there"], ""),
        (["{model}"], "Hello there"),
        (["{model}", "-"], "Hello there"),
        (["-m", "{model}"], "Hello there\n"),
    ],
)
def test_generate_takes_model_and_prompt_in_every_way(run, model, words, stdin) -> None:
    expected = run("generate", "-m", model, "-p", "Hello there", "-n", 4)
    ran = run("generate", *[word.format(model=model) for word in words], "-n", 4, stdin=stdin)
    assert (ran.code, ran.out) == (0, expected.out)


def test_generate_says_that_a_lone_word_is_the_model_where_no_text_follows(run, model) -> None:
    ran = run("generate", model, "-n", 2, stdin="")
    assert (ran.code, f"{model} is read as the model, and standard input is empty" in ran.err) == (0, True)
    for words, stdin in ((["-m", model], ""), ([model, ""], ""), ([model], "x")):
        assert "standard input" not in run("generate", *words, "-n", 2, stdin=stdin).err


def test_a_model_on_the_command_line_goes_before_the_variable(run, model, monkeypatch) -> None:
    monkeypatch.setenv("MINI_VLLM_MODEL", "no/such-model")
    expected = run("generate", "-m", model, "-p", "Hi", "-n", 4)
    assert run("generate", model, "Hi", "-n", 4).out == expected.out
    monkeypatch.setenv("MINI_VLLM_MODEL", model)
    monkeypatch.setenv("MINI_VLLM_MAX_TOKENS", "4")
    assert run("generate", "Hi").out == expected.out


def test_generate_stops_at_a_stop_text(run, model) -> None:
    whole = run("generate", model, "The fox", "-n", 24, "--ignore-eos").out
    stop = whole[3:5]
    ran = run("generate", model, "The fox", "-n", 24, "--ignore-eos", "--stop", "\x00never", "--stop", stop)
    assert ran.out == whole[: whole.index(stop)] + "\n"
    assert f"finish reason: stop ({stop!r})" in ran.err


def test_generate_json_has_every_choice(run, model) -> None:
    ran = run("generate", model, "A", "-n", 6, "--n", 3, "--seed", 1, "--temperature", 1, "--json", "--ignore-eos")
    answer = json.loads(ran.out)
    assert [len(choice["token_ids"]) for choice in answer["choices"]] == [6, 6, 6]
    assert len({choice["text"] for choice in answer["choices"]}) > 1
    assert answer["num_tokens"] == 18
    again = run("generate", model, "A", "-n", 6, "--n", 3, "--seed", 1, "--temperature", 1, "--json", "--ignore-eos")
    assert json.loads(again.out)["choices"] == answer["choices"]


def test_generate_shows_logprobs(run, model) -> None:
    ran = run("generate", model, "A", "-n", 3, "--logprobs", 2, "--ignore-eos", "--no-footer")
    lines = ran.out.splitlines()
    assert ran.err == ""
    assert len([line for line in lines if re.match(r" +-\d+\.\d{4}  '", line)]) == 3


def test_generate_chat_applies_the_template(run, model) -> None:
    ran = run("generate", model, "Hi", "--chat", "-n", 2, "--ignore-eos")
    raw = run("generate", model, "Hi", "-n", 2, "--ignore-eos")
    count = [int(FOOTER.search(one.err).group(1)) for one in (ran, raw)]
    assert count[0] > count[1] + 8


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["generate", "{model}", "x", "--temperature", "-1"], "temperature is -1.0; it must lie in"),
        (["generate", "{model}", "x", "--dtype", "int3"], "dtype is 'int3'; choose one of auto"),
        (["generate", "{model}", "x", "--stop-token-ids", "999999"], "stop_token_ids contains 999999"),
        (["generate", "{model}", "x", "--logit-bias", "a=b"], "logit_bias is 'a=b'; write ID=BIAS"),
        (["generate", "{model}", "x", "--no-kv-cache", "--cache-backend", "contiguous"], "contradicts no-kv-cache"),
        (["generate", "{model}", "x", "--num-blocks", "2", "--kv-cache-memory", "1MiB"], "give one of them"),
        (["generate", "{model}", "x" * 3000], f"maximum context length is {CONTEXT} tokens"),
        (["generate", "{model}", "x", "--max-model-len", "100000"], "max_model_len is 100000"),
        (["generate", "no-such-model.gguf", "x"], "no such file or folder"),
        (["generate", "/nowhere/at/all", "x"], "no such file or folder"),
        (["generate", "{model}", "a", "b"], "one text too many: 'b'"),
        (["generate", "{model}", "x", "-n", "many"], "valid integer"),
        (["generate", "{model}", "x", "--frobnicate"], "No such option: --frobnicate"),
        (["generate", "{model}", "x", "--chat-template", "/nowhere.jinja"], "does not exist"),
        (["chat", "{model}", "extra"], "one word too many: 'extra'"),
        (["frobnicate"], "No such command 'frobnicate'"),
        (["generate", "{model}", "x", "--threads", "0"], "threads is 0; it must be at least 1"),
        (["generate", "{model}", "x", "--threads", "1025"], "threads is 1025; at most 1024 make sense"),
        (["bench", "peers", "--threads", "0"], "threads is 0; it must be at least 1"),
        (["generate", "{model}", "x", "--isa", "mmx"], "isa is 'mmx', which cannot run here; choose one of "),
        (["inspect", "{model}", "--isa", ""], "isa is '', which cannot run here; choose one of "),
        (["batch", "{model}", "/nowhere.json"], "/nowhere.json cannot be read: No such file"),
        (["batch", "{model}", "-", "--format", "xml"], "format is 'xml'"),
        (["serve", "{model}", "--port", "99999"], "port is 99999"),
        (["stats", "--url", "ftp://x"], "must begin with http"),
        (["stats", "--url", "http://127.0.0.1:1"], "no mini-vLLM server answers at http://127.0.0.1:1/stats"),
        (["tokenize", "{model}", "a\ud800b"], "surrogate"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(run, model, arguments, says) -> None:
    ran = run(*[argument.format(model=model) for argument in arguments])
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err
    assert ran.err.startswith("error: ") and ran.err.count("\n") == 1


def test_a_flag_forces_the_instruction_set(run, model) -> None:
    for name in bind_library().mv_isa_names().decode().split():
        assert f"instruction_set {name}," in run("inspect", model, "--isa", name).out
        assert run("generate", model, "x", "-n", 8, "--isa", name).code == 0


def test_broken_files_are_one_line_and_exit_code_2(run, tmp_path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\xff" * 40)
    folder = write_model(tmp_path / "cut")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    for path in (broken, folder):
        for command in ("generate", "inspect"):
            ran = run(command, "-m", path, *(["-p", "x"] if command == "generate" else []))
            assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1), ran.err


def test_tokenize(run, model) -> None:
    text = "Héllo 日本 <|im_end|>"
    reference = byte_level(SMOLLM)
    ran = run("tokenize", model, text, "--json")
    answer = json.loads(ran.out)
    assert answer["token_ids"] == reference.encode(text).ids
    assert answer["pieces"] == reference.encode(text).tokens
    assert answer["round_trip"] is True
    lines = run("tokenize", model, text).out.splitlines()
    assert f"ids: {' '.join(map(str, answer['token_ids']))}" in lines
    assert lines[-2:] == [f"tokens: {len(answer['token_ids'])}", "round trip: yes"]


def test_inspect_counts_without_loading(run, model) -> None:
    vocab = byte_level(SMOLLM).get_vocab_size()
    facts = json.loads(run("inspect", model, "--json", "--block-size", 8, "--num-blocks", 10).out)
    assert facts["architecture"] == "LlamaForCausalLM"
    assert (facts["layers"], facts["context"], facts["vocabulary"]) == (2, CONTEXT, vocab)
    assert facts["parameters"] == vocab * 32 + 32 + 2 * (32 * 32 * 2 + 16 * 32 * 2 + 64 * 32 * 3 + 64)
    assert facts["weights_in_file"] == 4 * facts["parameters"]
    assert facts["dtype"] == "f32"
    assert facts["greedy_head_copy"] == -(-vocab // 16) * 16 * (32 * 6 // 8 * 2 + 2 * 2 + 12)  # pairs of 32 columns
    assert facts["kv_bytes_per_token"] == 2 * 2 * 2 * 8 * 4
    assert facts["fits"] == f"80 tokens in 10 blocks of 8: 0 sequences of {CONTEXT} tokens"
    assert facts["end_tokens"] == "2 <|im_end|>"
    assert facts["chat_template"] == "default"
    assert "threads" in facts["kernels"]
    lines = run("inspect", model).out.splitlines()
    assert any(re.fullmatch(r"parameters +41,\d{3}", line) for line in lines)
    assert any(re.fullmatch(r"kv cache, at most +\d.*", line) for line in lines)
    assert any(re.fullmatch(r"chat template +the model's own", line) for line in lines)
    assert any(re.fullmatch(r"sampling defaults +the model sets none", line) for line in lines)
    half = json.loads(run("inspect", model, "--json", "--dtype", "bfloat16").out)
    assert half["weights_in_memory"] < 0.6 * facts["weights_in_memory"]


def test_inspect_shows_what_the_model_sets(run, tmp_path) -> None:
    folder = write_model(tmp_path / "m")
    (folder / "generation_config.json").write_text(
        json.dumps({"temperature": 0.6, "top_p": 0.9, "eos_token_id": [2, 0]})
    )
    facts = json.loads(run("inspect", folder, "--json").out)
    assert facts["sampling_defaults"] == "temperature 0.6, top_p 0.9"
    assert facts["end_tokens"] == "0 <|endoftext|>, 2 <|im_end|>"
    out = run("inspect", folder).out
    assert re.search(r"^sampling defaults +temperature 0\.6, top_p 0\.9 \(set by the model\)$", out, re.MULTILINE)
    template = tmp_path / "mine.jinja"
    template.write_text("{{ messages[0].content }}")
    out = run("inspect", folder, "--chat-template", template, "--no-generation-config").out
    assert re.search(rf"^chat template +of {template}$", out, re.MULTILINE)
    assert "top_p 0.9 (set by the model, not used)" in out


def test_lod_11_flags_go_before_the_models_settings(run, tmp_path) -> None:
    folder = write_model(tmp_path / "m")
    greedy = run("generate", folder, "The fox", "-n", 16, "--ignore-eos").out
    settings = {"temperature": 5.0, "top_k": 0, "repetition_penalty": 1.3}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    flags = ["generate", folder, "The fox", "-n", 16, "--ignore-eos", "--seed", 1]
    assert run(*flags).out != greedy
    assert run(*flags, "--temperature", 0, "--repetition-penalty", 1).out == greedy
    assert run(*flags, "--no-generation-config").out == greedy


def test_pull_of_something_local_prints_its_path(run, model) -> None:
    assert run("pull", model).out == model + "\n"


def test_version_and_help(run) -> None:
    from mini_vllm import __version__

    assert run("--version").out == f"mini-vllm {__version__}\n"
    text = run().out
    assert text == run("--help").out
    for name, summary in COMMANDS.items():
        assert name in text and summary.split(",")[0] in " ".join(text.split())
    for name in COMMANDS:
        assert run(name, "--help").code == 0


def chat_lines(run, model, *lines: str, flags=()):
    return run("chat", model, "-n", 8, "--temperature", 0, *flags, stdin="\n".join(lines) + "\n")


def test_chat_keeps_the_conversation(run, model, tmp_path) -> None:
    saved = tmp_path / "talk.json"
    ran = chat_lines(run, model, "Hello", "/system Be brief.", "Again", f"/save {saved}", "/exit", "not reached")
    assert ran.code == 0
    messages = json.loads(saved.read_text())
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user", "assistant"]
    assert messages[0]["content"] == "Be brief."
    for message in messages:
        if message["role"] == "assistant":
            assert message["content"] in ran.out
    loaded = chat_lines(run, model, f"/load {saved}", "/history", "/exit")
    assert "user: Again" in loaded.out and "system: Be brief." in loaded.out


def test_chat_commands(run, model) -> None:
    ran = chat_lines(
        run, model, "One", "/retry", "/undo", "/undo", "/history", "/set temperature 5e9", "/set top-k 3", "/params"
    )
    assert "taken back: One" in ran.out
    assert "there is nothing to undo" in ran.out
    assert "nothing was said yet" in ran.out
    assert "error: temperature is" in ran.out
    assert "top_k = 3" in ran.out
    more = chat_lines(run, model, "/help", "/nothing", "/retry", "/clear", "/set stop x", "/load /nowhere", "/save")
    assert "/history" in more.out and "unknown command /nothing" in more.out and "nothing to retry" in more.out
    assert more.code == 0


def test_chat_goes_on_after_a_question_that_does_not_fit(run, model) -> None:
    ran = chat_lines(run, model, "x" * 4000, "Hello", "/history")
    assert ran.err.startswith(f"error: this model's maximum context length is {CONTEXT} tokens")
    assert "user: Hello" in ran.out and "xxx" not in ran.out


def test_chat_without_a_template_is_refused(run, tmp_path) -> None:
    folder = write_model(tmp_path / "plain", chat_template=False)
    ran = run("chat", folder, stdin="hi\n")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "no chat template; give one with --chat-template FILE" in ran.err
