"""Flags and environment variables, derived from the fields of config.py and of SamplingParams.

A command declares a parameter `options: Options` and is decorated with `with_options(…)`; it is called with what the
user gave and nothing else, so that defaults stay where they are defined. Must not know what the settings do.
"""

import dataclasses
import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, get_args, get_origin

import typer

from mini_vllm.config import (
    CacheConfig,
    EngineConfig,
    ModelConfig,
    SchedulerConfig,
    ServerConfig,
    SimulationConfig,
    SpeculativeConfig,
    env_name,
    option_names,
)
from mini_vllm.errors import InvalidParameterError
from mini_vllm.types import SamplingParams
from mini_vllm.types.structured import StructuredOutputsParams

GROUPS: dict[str, Any] = {
    "model": ModelConfig,
    "cache": CacheConfig,
    "scheduler": SchedulerConfig,
    "speculative": SpeculativeConfig,
    "server": ServerConfig,
    "simulation": SimulationConfig,
}
ENGINE = ("model", "cache", "scheduler", "speculative")


@dataclass(frozen=True, slots=True)
class SamplingFlag:
    """How one field of SamplingParams appears on the command line."""

    help: str
    type: Any
    aliases: tuple[str, ...] = ()
    metavar: str | None = None


SAMPLING: dict[str, SamplingFlag] = {
    "speculation": SamplingFlag("guess ahead for this request, where the engine does", bool),
    "n": SamplingFlag("independent completions of the prompt", int),
    "max_tokens": SamplingFlag("most tokens to generate", int, ("--max-new-tokens", "-n")),
    "min_tokens": SamplingFlag("no end before this many tokens", int),
    "temperature": SamplingFlag("0 is greedy; higher is more varied", float),
    "top_k": SamplingFlag("sample from the k likeliest tokens; 0: all", int),
    "top_p": SamplingFlag("sample from the likeliest tokens that together have this probability", float),
    "min_p": SamplingFlag("leave out tokens below this share of the likeliest one's probability", float),
    "repetition_penalty": SamplingFlag("above 1 discourages tokens of the prompt and the output", float),
    "presence_penalty": SamplingFlag("above 0 discourages tokens of the output", float),
    "frequency_penalty": SamplingFlag("the same, in proportion to their number", float),
    "seed": SamplingFlag("makes sampling repeatable", int),
    "stop": SamplingFlag("end before this text; may be given several times", list[str]),
    "stop_token_ids": SamplingFlag("end at this token id; may be given several times", list[int]),
    "ignore_eos": SamplingFlag("go on past the model's end token", bool),
    "include_stop_str_in_output": SamplingFlag("show the stop text that ended the output", bool),
    "skip_special_tokens": SamplingFlag("leave special tokens out of the text", bool),
    "logit_bias": SamplingFlag("add BIAS to a token's logit; several times", list[str], (), "ID=BIAS"),
    "allowed_token_ids": SamplingFlag("sample only these token ids; several times", list[int]),
    "bad_token_ids": SamplingFlag("never sample these token ids; several times", list[int]),
    "bad_words": SamplingFlag("never write this text; may be given several times", list[str]),
    "thinking_token_budget": SamplingFlag("end thoughts that are longer than this many tokens", int),
    "logprobs": SamplingFlag("report this many alternatives with their log-probabilities", int),
    "prompt_logprobs": SamplingFlag("the same for the prompt's tokens", int),
    "structured_outputs": SamplingFlag(
        'constrain the output, such as {"regex": "[0-9]+"}; or json (a schema), json_object, choice, grammar',
        str,
        metavar="JSON",
    ),
}


@dataclass(frozen=True, slots=True)
class Options:
    """What the user gave, by field name; fields that were not given are absent."""

    engine: dict[str, Any] = field(default_factory=dict)
    model_from_environment: bool = False  # a model named on the command line goes before it
    server: dict[str, Any] = field(default_factory=dict)
    simulation: dict[str, Any] = field(default_factory=dict)
    sampling: dict[str, Any] = field(default_factory=dict)

    def engine_config(self, **more: Any) -> EngineConfig:
        """The engine's configuration (`ConfigError` when settings contradict each other)."""
        return EngineConfig.from_options(**{**self.engine, **more})

    def server_config(self) -> ServerConfig:
        """The server's configuration."""
        return ServerConfig(**self.server)

    def simulation_config(self) -> SimulationConfig:
        """How traffic is replayed (`ConfigError` when settings contradict each other)."""
        return SimulationConfig(**self.simulation)

    def sampling_params(self, **defaults: Any) -> SamplingParams:
        """Sampling parameters: what was given, over `defaults`, over SamplingParams' own."""
        return SamplingParams(**{**defaults, **self.sampling})


def with_options(*groups: str, sampling: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Replace a function's parameter `options` by one flag for every field of these groups."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        flags = [flag for group in groups for flag in _config_flags(group)]
        flags += _sampling_flags() if sampling else []

        @wraps(function)
        def wrapper(ctx: typer.Context, **given: Any) -> Any:
            values = {flag.name: given.pop(flag.name) for flag in flags}
            source = getattr(ctx.get_parameter_source("model"), "name", "")
            options = Options(model_from_environment=source == "ENVIRONMENT")
            _sort(options, values, groups)
            return function(**given, options=options)

        context = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
        own = [entry for entry in inspect.signature(function).parameters.values() if entry.name != "options"]
        own = [entry.replace(kind=inspect.Parameter.KEYWORD_ONLY) for entry in own]
        wrapper.__signature__ = inspect.Signature([context, *own, *flags])  # type: ignore[attr-defined]
        wrapper.__annotations__ = {entry.name: entry.annotation for entry in (context, *own, *flags)}
        return wrapper

    return decorate


def _sort(options: Options, values: dict[str, Any], groups: tuple[str, ...]) -> None:
    for name, value in values.items():
        if value is None or value == []:
            continue
        if name in SAMPLING and name not in _fields(groups):
            options.sampling[name] = PARSERS[name](value) if name in PARSERS else value
        elif "server" in groups and name in _fields(("server",)):
            options.server[name] = value
        elif "simulation" in groups and name in _fields(("simulation",)):
            options.simulation[name] = value
        else:
            options.engine[name] = value


def _fields(groups: tuple[str, ...]) -> set[str]:
    return {entry.name for group in groups for entry in dataclasses.fields(GROUPS[group])}


def _config_flags(group: str) -> list[inspect.Parameter]:
    flags = []
    for entry in dataclasses.fields(GROUPS[group]):
        choices = entry.metadata.get("choices", ())
        flags.append(
            _flag(
                entry.name,
                _without_none(entry.type),
                names=option_names(entry),
                env=env_name(entry),
                help=entry.metadata["help"],
                metavar="|".join(choices) if choices else None,
                default=entry.default,
            )
        )
    return flags


def _sampling_flags() -> list[inspect.Parameter]:
    return [
        _flag(
            name,
            flag.type,
            names=("--" + name.replace("_", "-"), *flag.aliases),
            env="MINI_VLLM_" + name.upper(),
            help=flag.help,
            metavar=flag.metavar,
        )
        for name, flag in SAMPLING.items()
    ]


def _flag(name: str, kind: Any, *, names: tuple[str, ...], env: str, **settings: Any) -> inspect.Parameter:
    """One option; None when it is not given."""
    default = settings.pop("default", None)
    if kind is bool:
        names = tuple(f"{long}/--no-{long.removeprefix('--')}" for long in names if long.startswith("--"))
        default = {True: "on", False: "off", None: None}[default]
    if default is not None:
        settings["help"] += f"; default: {default}"
    option = typer.Option(None, *names, envvar=env, show_default=False, **settings)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=kind | None)


def _without_none(kind: Any) -> Any:
    """`int | None` -> `int`; a tuple may be given piece by piece, which makes a list of it."""
    if get_origin(kind) is None:
        return kind
    inner = next(entry for entry in get_args(kind) if entry is not type(None))
    return list[str] if get_origin(inner) is tuple else inner


def _biases(entries: list[str]) -> dict[int, float]:
    biases = {}
    for entry in entries:
        token_id, _, bias = entry.partition("=")
        try:
            biases[int(token_id)] = float(bias)
        except ValueError:
            raise InvalidParameterError(
                f"logit_bias is {entry!r}; write ID=BIAS, such as 42=-100", param="logit_bias"
            ) from None
    return biases


def _structured(text: str) -> StructuredOutputsParams:
    try:
        return StructuredOutputsParams(**json.loads(text))
    except (ValueError, TypeError) as error:
        raise InvalidParameterError(
            f"structured_outputs is {text!r:.100}: {error}; write a JSON object such as "
            '{"regex": "[0-9]+"} or {"choice": ["yes", "no"]}',
            param="structured_outputs",
        ) from None


PARSERS: dict[str, Callable[[Any], Any]] = {"logit_bias": _biases, "structured_outputs": _structured}
