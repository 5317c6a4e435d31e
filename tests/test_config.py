"""Settings: every one refuses values of another kind."""

import dataclasses
from pathlib import Path

import pytest

from mini_vllm.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig, ServerConfig, parse_bytes
from mini_vllm.errors import ConfigError

ENGINE_FIELDS = [
    option.name for group in (ModelConfig, CacheConfig, SchedulerConfig) for option in dataclasses.fields(group)
]


@pytest.mark.parametrize("name", ENGINE_FIELDS)
@pytest.mark.parametrize("junk", [object(), b"x", [1], 1j])
def test_every_setting_refuses_another_kind(name, junk):
    with pytest.raises(ConfigError, match=f"^{name} is .*; it must be ") as caught:
        EngineConfig.from_options(**{name: junk})
    assert caught.value.param == name


@pytest.mark.parametrize("name", [option.name for option in dataclasses.fields(ServerConfig)])
def test_every_setting_of_the_server_refuses_another_kind(name):
    with pytest.raises(ConfigError, match=f"^{name} is .*; it must be "):
        ServerConfig(**{name: object()})


@pytest.mark.parametrize(
    "junk", [{"block_size": "16"}, {"num_blocks": True}, {"kv_cache": "off"}, {"threads": 1.5}, {"model": None}]
)
def test_what_only_looks_right_is_refused(junk):
    with pytest.raises(ConfigError, match="it must be"):
        EngineConfig.from_options(**junk)


def test_more_threads_than_make_sense_are_refused():
    assert EngineConfig.from_options(threads=1024).model.threads == 1024
    with pytest.raises(ConfigError, match="threads is 1000000; at most 1024"):
        EngineConfig.from_options(threads=10**6)


def test_paths_and_whole_shares_are_welcome():
    config = EngineConfig.from_options(model=Path("a") / "b", tokenizer=Path("c"), kv_cache_memory_share=1)
    assert (config.model.model, config.model.tokenizer) == (str(Path("a") / "b"), "c")


@pytest.mark.parametrize(
    "text, size", [("512", 512), ("1.5 GiB", 3 * 2**29), ("2TB", 2 * 10**12), ("1TiB", 2**40), ("64k", 64000)]
)
def test_sizes(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "5XB", "-1", "nan", "inf", "1e30"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ConfigError, match="kv_cache_memory is"):
        parse_bytes(text)
