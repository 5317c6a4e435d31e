"""Follow one token through the engine, step by step: what docs/tour.md explains, printed.

usage: python examples/one_token.py [MODEL]
"""

import sys

from mini_vllm import SamplingParams
from mini_vllm.config import EngineConfig
from mini_vllm.engine.assembly import load_engine

PROMPT = "The capital of France is"


def main() -> None:
    """Three steps of one request, with every message that passes a door."""
    model = sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m"
    engine = load_engine(EngineConfig.from_options(model=model, max_model_len=256, num_blocks=16))
    core, frontend = engine.core, engine.frontend

    prepared = frontend.prepare(PROMPT, SamplingParams(temperature=0, max_tokens=3), request_id="tour")
    request = prepared.requests[0]
    print(f"1. text -> request:  {PROMPT!r} -> {list(request.prompt_token_ids)}, max_tokens {request.max_tokens}")
    core.add(request)
    choice = frontend.choices(prepared)[request.request_id]

    while core.has_work():
        plan = core.scheduler.plan()
        for chunk in plan.chunks:
            print(
                f"\n2. plan {plan.step_id}:  positions {chunk.start}…{chunk.start + len(chunk.token_ids) - 1}, "
                f"tokens {list(chunk.token_ids)}, new blocks {list(chunk.new_block_ids)}, {chunk.outputs.name}"
            )
        result = core.executor.run(plan)
        for output in result.outputs:
            print(f"3. run:     token {list(output.token_ids)}")
        for delta in core.scheduler.commit(plan, result):
            text = choice.push(delta)
            print(f"4. commit:  delta {list(delta.token_ids)}, finish_reason {delta.finish_reason}")
            print(f"5. text:    {text.text if text else ''!r}")
    engine.close()


if __name__ == "__main__":
    main()
