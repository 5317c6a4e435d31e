"""Tool calls in text: how each family of models writes them, and how they are read back while they are written.

One class per format. Parsers are pure state machines: whatever the chunking, the same events come out, and what is no
call after all comes out as content.
"""

from mini_vllm.text.tools.events import CallArguments, CallEnd, CallStart, Content, Event, Reasoning
from mini_vllm.text.tools.formats import FORMATS, ToolFormat, choose_format
from mini_vllm.text.tools.parsers import ToolParser
from mini_vllm.text.tools.prompting import describe_tools

__all__ = [
    "FORMATS",
    "CallArguments",
    "CallEnd",
    "CallStart",
    "Content",
    "Event",
    "Reasoning",
    "ToolFormat",
    "ToolParser",
    "choose_format",
    "describe_tools",
]
