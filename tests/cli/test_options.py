"""Flags and variables are derived from the settings, all of them, and nothing else."""

import dataclasses

import pytest
from typer.testing import CliRunner

from mini_vllm.cli import options as flags
from mini_vllm.cli.app import COMMANDS, make_app
from mini_vllm.config import EngineConfig, env_name, option_names
from mini_vllm.errors import InvalidParameterError
from mini_vllm.types import SamplingParams
from mini_vllm.types.structured import StructuredOutputsParams

SETTINGS = [entry for group in flags.ENGINE for entry in dataclasses.fields(flags.GROUPS[group])]


def help_of(command: str) -> str:
    result = CliRunner().invoke(make_app([command]), [command, "--help"], terminal_width=200)
    assert result.exit_code == 0
    return " ".join(result.output.split())


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_of_every_command_has_a_variable(command: str) -> None:
    app = make_app([command])
    import typer

    parameters = typer.main.get_command(app).commands[command].params
    assert parameters
    for parameter in parameters:
        if parameter.param_type_name == "option":
            assert str(parameter.envvar).startswith("MINI_VLLM_"), parameter.name


@pytest.mark.parametrize("command", ["generate", "chat", "batch", "serve", "inspect"])
def test_every_setting_is_a_flag_with_its_aliases_and_choices(command: str) -> None:
    text = help_of(command)
    for entry in SETTINGS:
        for name in option_names(entry):
            assert name in text
        assert env_name(entry) in text
        assert "|".join(entry.metadata["choices"]) in text


@pytest.mark.parametrize("command", ["generate", "chat", "batch"])
def test_every_sampling_parameter_is_a_flag(command: str) -> None:
    text = help_of(command)
    assert set(flags.SAMPLING) == {entry.name for entry in dataclasses.fields(SamplingParams)}
    for name in flags.SAMPLING:
        assert "--" + name.replace("_", "-") in text
        assert "MINI_VLLM_" + name.upper() in text
    for alias in ("--max-new-tokens", "-n"):
        assert alias in text


def given(*arguments: str, env: dict[str, str] | None = None) -> flags.Options:
    """What a command line means, without running anything."""
    import typer

    seen: list[flags.Options] = []

    @flags.with_options(*flags.ENGINE, "server", sampling=True)
    def command(options: flags.Options) -> None:
        seen.append(options)

    app = typer.Typer()
    app.command()(command)
    result = CliRunner().invoke(app, list(arguments), env=env)
    assert result.exit_code == 0, result.output
    return seen[0]


def test_structured_outputs_are_a_json_object() -> None:
    options = given("--structured-outputs", '{"choice": ["yes", "no"]}')
    assert options.sampling_params().structured_outputs == StructuredOutputsParams(choice=("yes", "no"))


@pytest.mark.parametrize("text", ["yes", "[1]", '{"colour": "red"}', "{}"])
def test_structured_outputs_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(InvalidParameterError, match="structured"):
        flags.PARSERS["structured_outputs"](text)


def test_only_what_was_given_is_passed_on() -> None:
    options = given()
    assert (options.engine, options.server, options.sampling) == ({}, {}, {})
    assert options.engine_config() == EngineConfig()


def test_flags_arrive_under_the_names_of_their_fields() -> None:
    options = given(
        *("-m", "x", "--dtype", "float32", "--no-kv-cache", "--pool-blocks", "7", "--max-batch-size", "3"),
        *("--no-prefix-caching", "--engine", "hf", "--port", "0", "-t", "2"),
    )
    assert options.engine == {
        "model": "x",
        "dtype": "float32",
        "executor": "hf",
        "threads": 2,
        "num_blocks": 7,
        "enable_prefix_caching": False,
        "kv_cache": False,
        "max_num_seqs": 3,
    }
    assert options.server == {"port": 0}
    assert not options.engine_config().cache.kv_cache


def test_sampling_flags_arrive_as_sampling_params() -> None:
    options = given(
        *("-n", "5", "--stop", "a", "--stop", "b c", "--stop-token-ids", "3", "--seed", "0", "--ignore-eos"),
        *("--logit-bias", "5=-1.5", "--logit-bias", "6=2", "--temperature", "0", "--n", "2", "--logprobs", "0"),
    )
    params = options.sampling_params()
    assert (params.max_tokens, params.stop, params.stop_token_ids, params.seed) == (5, ("a", "b c"), (3,), 0)
    assert (params.logit_bias, params.ignore_eos, params.n, params.logprobs) == ({5: -1.5, 6: 2.0}, True, 2, 0)
    assert params.temperature == 0.0


def test_variables_stand_for_flags_and_flags_go_first() -> None:
    env = {
        "MINI_VLLM_MODEL": "from-env",
        "MINI_VLLM_BLOCK_SIZE": "8",
        "MINI_VLLM_KV_CACHE": "false",
        "MINI_VLLM_MAX_TOKENS": "9",
        "MINI_VLLM_PORT": "81",
    }
    options = given("--block-size", "4", env=env)
    assert options.engine == {"model": "from-env", "block_size": 4, "kv_cache": False}
    assert (options.sampling, options.server) == ({"max_tokens": 9}, {"port": 81})
    assert options.model_from_environment
