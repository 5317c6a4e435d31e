"""GET /v1/models and /v1/models/{id}."""

from fastapi import APIRouter, Response

from mini_vllm.server.openapi import describe
from mini_vllm.server.protocol.models import ModelCard, ModelList
from mini_vllm.server.service import Service, json_response


def router(service: Service) -> APIRouter:
    """The routes."""
    routes = APIRouter()

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
    return ModelCard(
        id=name,
        created=service.created,
        max_model_len=engine.max_model_len,
        vocab_size=engine.tokenizer.vocab_size,
    )
