"""One scenario per scheduling policy, for golden traces. A step takes a second; ageing is 10 s."""

from collections.abc import Callable
from typing import Any

from scheduling.driving import Rig, prompt_of

from mini_vllm.scheduling import LinearCosts


def arrivals(rig: Rig, *requests: tuple[int, int, dict[str, Any]]) -> Rig:
    """Two requests a step, named A, B, C … by (prompt tokens, max_tokens, options)."""
    for i, (num_prompt, max_tokens, options) in enumerate(requests):
        arrival = rig.time + options.pop("arrival_in", 0.0)
        rig.add(chr(ord("A") + i), prompt_of(num_prompt, i), max_tokens, arrival=arrival, **options)
        if i % 2:
            rig.step()
    return rig


def first_come() -> Rig:
    rig = Rig(block_size=4, num_blocks=32, max_num_seqs=2, max_num_batched_tokens=16)
    return arrivals(rig, (8, 4, {}), (6, 2, {}), (5, 3, {}), (9, 2, {"priority": -1}), (4, 2, {}))


def priority() -> Rig:
    """F is three classes behind, which 6 s of waiting make up for."""
    rig = Rig(block_size=4, num_blocks=8, max_num_seqs=3, scheduling_policy="priority", ageing_seconds=2.0)
    waiting = [(7, 8, {"priority": 1}), (5, 3, {}), (6, 8, {"priority": 1}), (6, 3, {"priority": -1}), (5, 2, {})]
    return arrivals(rig, *waiting, (5, 2, {"priority": 3}), (5, 2, {"priority": -1}), (5, 2, {}))


def fair_share() -> Rig:
    """Five of one key came first; the other key's two are not made to wait for all of them."""
    rig = Rig(block_size=4, num_blocks=32, max_num_seqs=2, scheduling_policy="fair")
    greedy = [(8, 3, {"key": "greedy"})] * 5
    return arrivals(rig, *greedy, (8, 3, {"key": "modest"}), (8, 3, {"key": "modest"}))


def shortest_remaining() -> Rig:
    """B writes 9 tokens and goes behind those that write a few; F is short but came more than 8 s after B."""
    rig = Rig(block_size=4, num_blocks=64, max_num_seqs=1, scheduling_policy="srf", ageing_seconds=256.0)
    return arrivals(rig, (4, 6, {}), (4, 9, {}), (4, 2, {}), (4, 3, {}), (4, 1, {}), (4, 4, {"arrival_in": 8.0}))


def static_batches() -> Rig:
    """C, D and E wait for the whole first batch, although A's row is free long before."""
    rig = Rig(block_size=4, num_blocks=32, max_num_seqs=2, scheduling_policy="static")
    return arrivals(rig, (8, 2, {}), (6, 7, {}), (5, 2, {}), (9, 4, {}), (4, 2, {}))


def deadlines() -> Rig:
    """C is due first; E's time is over before it can start, so it yields to D, which can still make it."""
    rig = Rig(block_size=4, num_blocks=32, max_num_seqs=1, scheduling_policy="deadline")
    first = [(8, 4, {}), (6, 2, {"deadline": 40.0}), (5, 3, {"deadline": 9.0}), (4, 2, {"deadline": 12.0})]
    return arrivals(rig, *first, (4, 2, {"deadline": 2.0}))


def paced_prefill() -> Rig:
    """A step may take 0.7 × 50 ms: 10 ms and 1 ms a token, so 24 tokens beside A's one, and whole blocks of 4."""
    rig = Rig(block_size=4, num_blocks=64, costs=LinearCosts(step=10e-3, token=1e-3))
    return arrivals(rig, (3, 12, {}), (2, 1, {}), (70, 2, {}), (60, 2, {}))


SCENARIOS: dict[str, tuple[str, Callable[[], Rig]]] = {
    "policy_fcfs": ("first come, first served: two rows, priorities do not count", first_come),
    "policy_priority": ("priority with ageing: two seconds make up for a class; G is urgent", priority),
    "policy_fair": ("fair share: A to E are of one key, F and G of another", fair_share),
    "policy_srf": ("shortest remaining first: B is long", shortest_remaining),
    "policy_static": ("static batching: a batch of two ends before the next begins", static_batches),
    "policy_deadline": ("earliest deadline first: C is due first, E is too late", deadlines),
    "paced": ("prefill is cut so that a step stays within the target", paced_prefill),
}
