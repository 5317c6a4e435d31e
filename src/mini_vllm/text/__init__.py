"""Text in, text out: tokenizers, incremental detokenisation, stop strings, chat templates.

The doors of this room. Heavy libraries (`tokenizers`, `jinja2`) are imported when first used.
"""

from mini_vllm.text.chat import ChatTemplate, load_chat_template
from mini_vllm.text.detokenizer import Detokenizer
from mini_vllm.text.ends import end_of_turn_id, eos_token_ids
from mini_vllm.text.same_tokens import check_same_tokens
from mini_vllm.text.stops import StopStrings
from mini_vllm.text.tokenizer import Tokenizer

__all__ = [
    "ChatTemplate",
    "Detokenizer",
    "StopStrings",
    "Tokenizer",
    "check_same_tokens",
    "end_of_turn_id",
    "eos_token_ids",
    "load_chat_template",
]
