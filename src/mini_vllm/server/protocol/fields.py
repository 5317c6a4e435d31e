"""Fields that are known but not supported: documented as ignored, or rejected with the reason.

Every field of OpenAI's request schemas is a field of our struct or stands in one of these tables; a test walks them.
Fields that nobody knows are ignored, and logged once.
"""

import msgspec

from mini_vllm.server.protocol.chat import ChatRequest
from mini_vllm.server.protocol.completions import CompletionRequest
from mini_vllm.server.protocol.embeddings import EmbeddingRequest
from mini_vllm.server.protocol.generate import GenerateRequest
from mini_vllm.server.protocol.messages import MessagesRequest
from mini_vllm.server.protocol.responses import ResponsesRequest

SHARED_IGNORED: dict[str, str] = {
    "user": "an end user's id, for the hosted service",
    "service_tier": "there is one tier",
    "metadata": "nothing is stored",
    "store": "nothing is stored",
    "safety_identifier": "for the hosted service",
    "prompt_cache_key": "equal prefixes are always shared; use cache_salt to keep them apart",
    "prompt_cache_retention": "prefixes stay until their memory is needed",
    "prompt_cache_options": "prefixes stay until their memory is needed",
}

CHAT_IGNORED: dict[str, str] = {
    **SHARED_IGNORED,
    "reasoning_effort": "the model decides",
    "verbosity": "the model decides",
    "prediction": "a hint that changes nothing but speed",
    "moderation": "there is no moderation",
}

SHARED_REJECTED: dict[str, str] = {
    "truncate_prompt_tokens": "not supported yet; prompts are never cut",
    "use_beam_search": "beam search is not supported",
    "prompt_embeds": "prompts are text or token ids",
    "lora_request": "adapters are not supported",
}

CHAT_REJECTED: dict[str, str] = {
    **SHARED_REJECTED,
    "audio": "this server makes text only",
    "web_search_options": "there is no web search",
    "chat_template": "templates in requests are not accepted; start the server with --chat-template",
}

RESPONSES_IGNORED: dict[str, str] = {
    **{name: why for name, why in CHAT_IGNORED.items() if name not in ("metadata", "store")},
    "reasoning": "the model decides",
    "access_programs": "for the hosted service",
    "max_tool_calls": "it counts calls of built-in tools, and there are none",
}

RESPONSES_REJECTED: dict[str, str] = {
    **SHARED_REJECTED,
    "conversation": "conversations are not kept apart from responses; use previous_response_id",
    "prompt": "stored prompts are not supported; send instructions and input",
    "background_options": "responses are made while the client waits",
    "image": "this server makes text only",
    "context_management": "inputs are never shortened here",
    "chat_template": "templates in requests are not accepted; start the server with --chat-template",
}

MESSAGES_IGNORED: dict[str, str] = {
    **{name: why for name, why in SHARED_IGNORED.items() if name in ("metadata", "service_tier")},
    "cache_control": "equal prefixes are always shared",
    "inference_geo": "for the hosted service",
    "output_config": "the model decides",
}

MESSAGES_REJECTED: dict[str, str] = {
    **SHARED_REJECTED,
    "container": "there are no containers",
    "context_management": "inputs are never shortened here",
    "mcp_servers": "tools run at the client",
}

EMBEDDINGS_IGNORED: dict[str, str] = {"user": SHARED_IGNORED["user"]}
EMBEDDINGS_REJECTED: dict[str, str] = {
    "truncate_prompt_tokens": SHARED_REJECTED["truncate_prompt_tokens"],
}

COMPLETIONS_IGNORED = SHARED_IGNORED
COMPLETIONS_REJECTED = SHARED_REJECTED

# Every endpoint that has such fields: its struct, what it ignores, what it refuses.
ENDPOINTS: dict[str, tuple[type[msgspec.Struct], dict[str, str], dict[str, str]]] = {
    "/v1/chat/completions": (ChatRequest, CHAT_IGNORED, CHAT_REJECTED),
    "/v1/completions": (CompletionRequest, COMPLETIONS_IGNORED, COMPLETIONS_REJECTED),
    "/v1/responses": (ResponsesRequest, RESPONSES_IGNORED, RESPONSES_REJECTED),
    "/v1/messages": (MessagesRequest, MESSAGES_IGNORED, MESSAGES_REJECTED),
    "/v1/embeddings": (EmbeddingRequest, EMBEDDINGS_IGNORED, EMBEDDINGS_REJECTED),
    "/generate": (GenerateRequest, SHARED_IGNORED, SHARED_REJECTED),
}
