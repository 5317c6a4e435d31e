"""Where requests go."""

from collections import Counter

import pytest

from mini_vllm.errors import ConfigError
from mini_vllm.replicas import ROUTERS, NoReplicaError, ReplicaState, make_router


def states(*loads: float) -> list[ReplicaState]:
    return [ReplicaState(index, load=load) for index, load in enumerate(loads)]


def prompt(family: int, own: int = 0) -> list[int]:
    """Two blocks of 16 that a family shares, then one of its own."""
    return [family * 1000 + i for i in range(32)] + [own * 7 + i for i in range(16)]


def test_round_robin_takes_turns_and_passes_over_the_dead() -> None:
    router, replicas = make_router("round_robin"), states(9, 0, 0)
    assert [router.choose([1], replicas) for _ in range(4)] == [0, 1, 2, 0]
    replicas[1].is_alive = False
    assert [router.choose([1], replicas) for _ in range(4)] == [2, 0, 2, 0]


def test_least_loaded_takes_the_least_and_spreads_ties() -> None:
    router, replicas = make_router("least_loaded"), states(5, 2, 3)
    assert router.choose([1], replicas) == 1
    replicas = states(4, 4, 4, 4)
    assert Counter(router.choose([1], replicas) for _ in range(8)) == {0: 2, 1: 2, 2: 2, 3: 2}
    replicas[2].load = 1
    replicas[2].is_alive = False
    assert router.choose([1], replicas) != 2


def test_prefix_aware_sends_a_family_to_one_replica() -> None:
    router, replicas = make_router("prefix_aware"), states(0, 0, 0)
    homes = {}
    for family in range(3):
        homes[family] = router.choose(prompt(family), replicas)
        replicas[homes[family]].load += 48
    assert sorted(homes.values()) == [0, 1, 2]
    for own in range(1, 4):
        for family in range(3):
            assert router.choose(prompt(family, own), replicas) == homes[family]
    assert router.choose(prompt(0), replicas, salt="other tenant") in (0, 1, 2)


def test_the_longest_shared_prefix_wins_over_a_shorter_one_on_an_idle_replica() -> None:
    router, replicas = make_router("prefix_aware"), states(0, 10)
    assert router.choose(prompt(1)[:16], replicas) == 0
    replicas[0].load = 50
    replicas[1].load = 0
    assert router.choose(prompt(2), replicas) == 1
    replicas[1].load = 60
    assert router.choose(prompt(2)[:32], replicas) == 1


def test_an_overloaded_replica_loses_its_family_for_a_while() -> None:
    router, replicas = make_router("prefix_aware"), states(0, 0, 0)
    home = router.choose(prompt(1), replicas)
    replicas[home].load = 2000
    assert router.choose(prompt(1, 1), replicas) == home, "within the slack"
    replicas[home].load = 9000
    other = router.choose(prompt(1, 2), replicas)
    assert other != home
    replicas[home].load = replicas[other].load = 0
    assert {router.choose(prompt(1, 2), replicas)} <= {home, other}


def test_what_a_dead_replica_had_is_forgotten() -> None:
    router, replicas = make_router("prefix_aware"), states(0, 0)
    home = router.choose(prompt(1), replicas)
    router.lost(home)
    replicas[home].load = 1
    assert router.choose(prompt(1), replicas) == 1 - home


def test_the_memory_of_prefixes_is_bounded() -> None:
    from mini_vllm.replicas import PrefixAwareRouter

    router, replicas = PrefixAwareRouter(max_blocks=6), states(0, 0)
    for family in range(9):
        router.choose(prompt(family, family), replicas)
    assert len(router._holders) == 6


@pytest.mark.parametrize("name", ROUTERS)
def test_nobody_alive_is_an_error_and_one_alive_gets_all(name: str) -> None:
    router, replicas = make_router(name), states(0, 0)
    replicas[0].is_alive = False
    assert [router.choose(prompt(i), replicas) for i in range(3)] == [1, 1, 1]
    replicas[1].is_alive = False
    with pytest.raises(NoReplicaError, match="none of 2 replicas is alive"):
        router.choose(prompt(1), replicas)


def test_an_unknown_router_names_the_choices() -> None:
    with pytest.raises(ConfigError, match="choose one of round_robin, least_loaded, prefix_aware"):
        make_router("random")
