"""How an engine speaks with the bench: JSON lines over standard input and output. Standard library only.

A script makes an engine from the settings in its first argument and hands it to `serve`. The engine has a `version`
and either `generate(prompts, new_tokens, temperature, top_p)`, which returns how many tokens each prompt got (end
tokens must be ignored), or `measure(work)`, which returns the rate of a work in tokens per second by its own means.
Whatever a library prints goes to standard error.
"""

import ctypes
import json
import os
import signal
import sys
import time

PR_SET_PDEATHSIG = 1


def settings():
    """What the bench passes: model (a path), form, threads, max_model_len and what the peer's entry adds."""
    return json.loads(sys.argv[1])


def serve(make_engine):
    """Load the engine, then answer requests until standard input ends."""
    die_with_the_bench()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    start = time.perf_counter()
    try:
        engine = make_engine(settings())
    except Exception as error:
        print(json.dumps({"error": describe(error)}), file=answers)
        raise
    ready = {"version": engine.version, "load_seconds": time.perf_counter() - start}
    ready["measures"] = hasattr(engine, "measure")
    print(json.dumps(ready), file=answers)
    for line in sys.stdin:
        try:
            answer = respond(engine, json.loads(line))
        except Exception as error:
            answer = {"error": describe(error)}
        print(json.dumps(answer), file=answers)
    if hasattr(engine, "close"):
        engine.close()


def respond(engine, request):
    """One request: {"work": …}, {"op_seconds": true}, or {"prompts": …, "new_tokens", "temperature", "top_p"}."""
    if "op_seconds" in request:
        return {"op_seconds": engine.op_seconds()}
    if "work" in request:
        return {"rate": engine.measure(request["work"])}
    prompts, wanted = request["prompts"], request["new_tokens"]
    start = time.perf_counter()
    counts = engine.generate(prompts, wanted, request["temperature"], request["top_p"])
    seconds = time.perf_counter() - start
    if list(counts) != [wanted] * len(prompts):
        raise RuntimeError(f"{wanted} tokens were asked of each prompt, but they got {sorted(set(counts))}")
    return {"seconds": seconds}


def die_with_the_bench():
    """A stopped process would outlive a bench that was killed (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def refuse_sampling(temperature):
    """For engines that are measured greedily only."""
    if temperature:
        raise ValueError("this engine is driven greedily only")


def describe(error):
    """One line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
