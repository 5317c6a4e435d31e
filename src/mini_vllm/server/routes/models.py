"""GET /v1/models, /v1/models/{id} and /models."""

from typing import Any

from fastapi import APIRouter, Response

from mini_vllm.server.openapi import describe
from mini_vllm.server.protocol.models import KVCacheCard, ModelCard, ModelList
from mini_vllm.server.service import Service, json_response

_PLAIN_FORMATS = frozenset({"f32", "f16", "bf16"})


def router(service: Service) -> APIRouter:
    """The routes."""
    routes = APIRouter()

    @routes.get("/models", **describe(None, ModelList))
    @routes.get("/v1/models", **describe(None, ModelList))
    async def models() -> Response:
        """The models that requests may name."""
        return json_response(ModelList(data=[_card(service, service.model_names[0])]))

    @routes.get("/v1/models/{model:path}", **describe(None, ModelCard))
    async def model(model: str) -> Response:
        """One of them. The name is compared with the served ones and nothing else."""
        service.check_model(model)
        return json_response(_card(service, model))

    return routes


def _card(service: Service, name: str) -> ModelCard:
    engine = service.engine
    facts = engine.describe()
    weights = facts.get("weight_format")
    return ModelCard(
        id=name,
        created=service.created,
        max_model_len=engine.max_model_len,
        vocab_size=engine.tokenizer.vocab_size,
        architecture=facts.get("architecture"),
        num_parameters=_integer(facts.get("num_parameters")),
        weight_bytes=_integer(facts.get("weight_bytes")),
        device=_device(facts),
        dtype=weights,
        quantization=weights if weights not in _PLAIN_FORMATS else None,
        kv_cache=_kv_cache(facts),
    )


def _kv_cache(facts: Any) -> KVCacheCard | None:
    found = facts.get("kv_cache")
    if found is None:
        return None
    return KVCacheCard(**found, dtype=facts.get("kv_format"), num_bytes=_integer(facts.get("kv_bytes")))


def _device(facts: Any) -> str | None:
    """The device, and on a CPU which instructions compute."""
    device = facts.get("device")
    table, instructions = facts.get("op_table"), facts.get("instruction_set")
    shown = "cpu" if device == "auto" else device
    inner = " ".join(part for part in (table, instructions) if part)
    return f"{shown} ({inner})" if shown and inner else shown


def _integer(text: str | None) -> int | None:
    return None if text is None else int(text)
