"""Conversations that responses can go on from: the latest ones, in memory. Must not know HTTP or the engine."""

from collections import OrderedDict
from collections.abc import Sequence

from mini_vllm.errors import InvalidParameterError
from mini_vllm.server.protocol.chat import ChatMessage

MAX_RESPONSES = 1000
MAX_CHARACTERS = 50_000_000  # of all conversations together, each counted whole


class Conversations:
    """By client and response id. When there are too many or they are too long, those used longest ago are forgotten."""

    def __init__(self, *, max_responses: int = MAX_RESPONSES, max_characters: int = MAX_CHARACTERS) -> None:
        self._max_responses = max_responses
        self._max_characters = max_characters
        self._found: OrderedDict[tuple[str, str], tuple[tuple[ChatMessage, ...], int]] = OrderedDict()
        self._num_characters = 0

    def __len__(self) -> int:
        return len(self._found)

    def keep(self, client: str, response_id: str, messages: Sequence[ChatMessage]) -> None:
        """Remember a conversation up to and with this response."""
        size = sum(_size(message) for message in messages)
        self._found[client, response_id] = tuple(messages), size
        self._num_characters += size
        while len(self._found) > self._max_responses or self._num_characters > self._max_characters:
            _, (_, size) = self._found.popitem(last=False)
            self._num_characters -= size

    def find(self, client: str, response_id: str) -> tuple[ChatMessage, ...]:
        """The conversation up to and with a response of the same client."""
        if (client, response_id) not in self._found:
            raise InvalidParameterError(
                f"previous_response_id is {response_id!r:.100}; there is no such response, or it was forgotten (the "
                f"latest {self._max_responses} are kept, unless store is false); send the whole conversation as input",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        self._found.move_to_end((client, response_id))
        return self._found[client, response_id][0]


def _size(message: ChatMessage) -> int:
    calls = sum(len(call.function.arguments) for call in message.tool_calls or ())
    return len(message.content or "") + calls + 100
