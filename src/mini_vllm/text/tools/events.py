"""What the text of an answer turns out to be, piece by piece."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Content:
    """Text for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text that the model wrote to itself."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call begins: its tool is known."""

    index: int  # 0, 1, … within the answer
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of a call's arguments; joined they are exactly the JSON that the model wrote, or {} if it wrote none."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """A call is complete."""

    index: int


Event = Content | Reasoning | CallStart | CallArguments | CallEnd
