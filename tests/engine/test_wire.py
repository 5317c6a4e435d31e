"""What travels between a front end and an engine in another process arrives as it was."""

import dataclasses
import socket

from mini_vllm.engine import wire
from mini_vllm.errors import ContextLengthError, EngineBusyError, InvalidParameterError, MiniVLLMError
from mini_vllm.types import (
    EngineStats,
    Request,
    RequestMetrics,
    SamplingParams,
    StructuredOutputsParams,
    TokenDelta,
    TokenLogprobs,
)
from mini_vllm.types.structured import CallableTool, CallsGrammar


def test_every_field_of_a_request_arrives():
    structure = StructuredOutputsParams(
        calls=CallsGrammar(tools=(CallableTool("a", "{}", "b", strict=True),), begin="x", answer="{}", at_most=3)
    )
    special = {
        "stop": ("a", "b"),
        "logit_bias": {5: -1.5, 6: 100.0},
        "structured_outputs": structure,
        "seed": 2**64 - 1,
        "allowed_token_ids": (7,),
        "bad_words": ("x", "y"),
        "top_p": 0.5,
        "min_p": 0.25,
        "temperature": 0.125,
        "max_tokens": 9,
    }

    def other(option):
        """A value that is not the default."""
        value = option.default
        if option.name in special:
            return special[option.name]
        if isinstance(value, bool):
            return not value
        if isinstance(value, int | float) or value is None:
            return (value or 0) + 1
        return (7, 8)

    params = SamplingParams(**{option.name: other(option) for option in dataclasses.fields(SamplingParams)})
    assert all(getattr(params, o.name) != o.default for o in dataclasses.fields(params))
    request = Request(
        request_id="a/0#1",
        parent_id="a",
        choice_index=1,
        prompt_token_ids=(1, 2),
        params=params,
        max_tokens=3,
        noise_key=2**64 - 1,
        priority=-5,
        arrival=1.25,
        cache_salt="s",
    )
    ours, theirs = socket.socketpair()
    here, there = wire.Link(ours, wire.Command), wire.Link(theirs, wire.Command)
    here.send(wire.Submit((request, dataclasses.replace(request, choice_index=2))))
    assert there.receive() == wire.Submit((request, dataclasses.replace(request, choice_index=2)))
    here.close()
    assert there.receive() is None
    there.close()


def test_errors_travel_by_name_and_nothing_else_does():
    for error in (
        ContextLengthError("too long", param="prompt"),
        InvalidParameterError("n is 0", param="n", code="c"),
        EngineBusyError("full"),
    ):
        again = wire.as_error(wire.as_fault(error))
        assert type(again) is type(error) and str(again) == str(error)
        assert (getattr(again, "param", None), getattr(again, "code", None)) == (
            getattr(error, "param", None),
            getattr(error, "code", None),
        )
    assert str(wire.as_error(wire.as_fault(KeyError("x")))) == "KeyError: 'x'"
    for name in ("sys", "INSTALL_TORCH", "Exception", "nothing"):
        assert type(wire.as_error(wire.Fault(name, "words"))) is MiniVLLMError


def test_deltas_keep_every_field_on_their_way():
    score = TokenLogprobs(7, float("-inf"), 3, ((1, -0.5), (2, -1.5)))
    delta = TokenDelta(
        request_id="a/0#1",
        token_ids=(1, 2),
        logprobs=(score,),
        prompt_logprobs=(score, score),
        finish_reason="stop",
        stop_token_id=2,
        metrics=RequestMetrics(arrival=1.5, started=2.0),
    )
    ours, theirs = socket.socketpair()
    here, there = wire.Link(ours, wire.Report), wire.Link(theirs, wire.Report)
    step = wire.Step(EngineStats(steps=3), (delta,), (("a", "b"),), (wire.Refusal(("c",), wire.Fault("X", "y")),))
    there.send(step)
    assert here.receive() == step
    there.shut()
    assert here.receive() is None
    here.close()
    there.close()
