"""Several engines behind one door: which of them gets the next request. Pure: nothing here runs an engine."""

from mini_vllm.replicas.router import (
    ROUTERS,
    LeastLoadedRouter,
    NoReplicaError,
    PrefixAwareRouter,
    ReplicaState,
    RoundRobinRouter,
    Router,
    make_router,
)

__all__ = [
    "ROUTERS",
    "LeastLoadedRouter",
    "NoReplicaError",
    "PrefixAwareRouter",
    "ReplicaState",
    "RoundRobinRouter",
    "Router",
    "make_router",
]
