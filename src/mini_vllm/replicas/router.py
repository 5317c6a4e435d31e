"""Which replica serves a request: round robin, least loaded, or the one that has most of its prefix.

Routers see numbers and token ids and decide; whoever owns the replicas keeps their states up to date. The simulator
and a real front door use the same classes. This module must not know engines, threads or networks.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from mini_vllm.errors import ConfigError, MiniVLLMError

ROUTERS = ("round_robin", "least_loaded", "prefix_aware")


class NoReplicaError(MiniVLLMError):
    """No replica is alive."""


@dataclass(slots=True)
class ReplicaState:
    """What a router may know of a replica."""

    index: int
    is_alive: bool = True
    load: float = 0.0  # what it has accepted and not finished, in tokens to compute and to write


class Router(Protocol):
    """Chooses replicas. One caller at a time."""

    def choose(self, token_ids: Sequence[int], replicas: Sequence[ReplicaState], *, salt: str = "") -> int:
        """The index of the replica that gets a request with this prompt; `NoReplicaError` if none is alive."""

    def lost(self, index: int) -> None:
        """A replica died: what it had cached is gone."""


class RoundRobinRouter:
    """In turn, whatever they are doing."""

    def __init__(self) -> None:
        self._next = 0

    def choose(self, token_ids: Sequence[int], replicas: Sequence[ReplicaState], *, salt: str = "") -> int:
        for offset in range(len(replicas)):
            index = (self._next + offset) % len(replicas)
            if replicas[index].is_alive:
                self._next = index + 1
                return index
        raise _none(replicas)

    def lost(self, index: int) -> None:
        return None


class LeastLoadedRouter:
    """The one with the least to do; ties go round."""

    def __init__(self) -> None:
        self._turn = 0

    def choose(self, token_ids: Sequence[int], replicas: Sequence[ReplicaState], *, salt: str = "") -> int:
        index = least_loaded(replicas, self._turn)
        self._turn = index + 1
        return index

    def lost(self, index: int) -> None:
        return None


class PrefixAwareRouter:
    """The replica that was sent the longest prefix of this prompt before, unless it has too much to do already.

    Remembers, for chained hashes of blocks of `block_size` tokens, which replicas were sent them. What it believes may
    be out of date, since replicas evict on their own: a wrong guess costs a prefill, never a wrong answer. A replica
    counts as overloaded when its load exceeds `imbalance` times the mean and the least load by `slack` tokens.
    """

    def __init__(
        self, *, block_size: int = 16, max_blocks: int = 1_000_000, imbalance: float = 1.5, slack: float = 2048.0
    ) -> None:
        self._block_size = block_size
        self._max_blocks = max_blocks
        self._imbalance = imbalance
        self._slack = slack
        self._holders: OrderedDict[int, int] = OrderedDict()  # key of a block -> replicas as bits, longest unused first
        self._turn = 0

    def choose(self, token_ids: Sequence[int], replicas: Sequence[ReplicaState], *, salt: str = "") -> int:
        keys = self._keys(token_ids, salt)
        index = self._best(keys, replicas)
        if index is None:
            index = least_loaded(replicas, self._turn)
            self._turn = index + 1
        self._remember(keys, index)
        return index

    def lost(self, index: int) -> None:
        keep = ~(1 << index)
        self._holders = OrderedDict((key, mask & keep) for key, mask in self._holders.items() if mask & keep)

    def _best(self, keys: Sequence[int], replicas: Sequence[ReplicaState]) -> int | None:
        """The least loaded of those that share the longest prefix; None if nobody has any or they are overloaded."""
        holders = 0
        for key in keys:
            mask = self._holders.get(key, 0) & (holders or -1)
            if not mask:
                break
            holders = mask
        sharing = [state for state in replicas if state.is_alive and holders >> state.index & 1] if holders else []
        if not sharing:
            return None
        best = min(sharing, key=_load)
        alive = [state.load for state in replicas if state.is_alive]
        mean, least = sum(alive) / len(alive), min(alive)
        if best.load > self._imbalance * mean and best.load > least + self._slack:
            return None
        return best.index

    def _keys(self, token_ids: Sequence[int], salt: str) -> list[int]:
        keys, key, size = list[int](), hash(salt), self._block_size
        for start in range(0, len(token_ids) - size + 1, size):
            key = hash((key, tuple(token_ids[start : start + size])))
            keys.append(key)
        return keys

    def _remember(self, keys: Sequence[int], index: int) -> None:
        for key in keys:
            self._holders[key] = self._holders.get(key, 0) | 1 << index
            self._holders.move_to_end(key)
        while len(self._holders) > self._max_blocks:
            self._holders.popitem(last=False)


def least_loaded(replicas: Sequence[ReplicaState], turn: int) -> int:
    """The index of the live replica with the least load; among equals the first from `turn` on."""
    count, best = len(replicas), None
    for state in replicas:
        if state.is_alive and (
            best is None
            or state.load < best.load
            or (state.load == best.load and (state.index - turn) % count < (best.index - turn) % count)
        ):
            best = state
    if best is None:
        raise _none(replicas)
    return best.index


def make_router(name: str, *, block_size: int = 16) -> Router:
    """A router by its name."""
    makers: dict[str, Callable[[], Router]] = {
        "round_robin": RoundRobinRouter,
        "least_loaded": LeastLoadedRouter,
        "prefix_aware": lambda: PrefixAwareRouter(block_size=block_size),
    }
    if name not in makers:
        raise ConfigError(f"router is {name!r}; choose one of {', '.join(makers)}", param="router")
    return makers[name]()


def _load(state: ReplicaState) -> float:
    return state.load


def _none(replicas: Sequence[ReplicaState]) -> NoReplicaError:
    return NoReplicaError(f"none of {len(replicas)} replicas is alive; try later")
