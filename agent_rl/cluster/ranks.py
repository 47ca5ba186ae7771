"""Calls to all learner ranks at once: they work together, so they are lost together."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_rl.cluster.settings import ClusterSettings
from agent_rl.training.recovery import PartLost


@dataclass
class Ranks:
    """All ranks; each call is made on all of them, and they end together: one that is gone takes the others along."""

    ray: Any
    actors: Sequence[Any]
    settings: ClusterSettings
    version: int = 0
    """Rollout batches that the weights of the moment have learnt from; changes only while `turn` is held."""
    turn: threading.Lock = field(default_factory=threading.Lock)
    """Held by whoever needs the ranks in a row: an update, or a hand-over that must not see weights change. Calls from
    two sides at once could also reach the ranks in different orders, and they would wait for each other for ever."""

    def call(self, method: str, *arguments: Any, timeout: float | None = None) -> list[Any]:
        """What each rank returns, in their order.

        Raises:
            PartLost: a rank is gone, or has not answered in time. The others are ended: they would wait for it.
        """
        limit = self.settings.call_timeout_s if timeout is None else timeout
        # One copy of the arguments in the object store, whatever the number of ranks.
        shared = [self.ray.put(argument) for argument in arguments]
        refs = [getattr(actor, method).remote(*shared) for actor in self.actors]
        waiting = list(refs)
        try:
            while waiting:
                done, waiting = self.ray.wait(waiting, num_returns=1, timeout=limit)
                if not done:
                    late = [str(rank) for rank, ref in enumerate(refs) if ref in waiting]
                    raise PartLost(
                        f"learner ranks {', '.join(late)} of {len(refs)} did not answer `{method}` within {limit:g} s"
                    )
                self.ray.get(done[0])
        except (self.ray.exceptions.RayActorError, self.ray.exceptions.ObjectLostError) as error:
            self.end()
            raise PartLost(f"a learner rank was lost during `{method}`: {_first_line(error)}") from error
        except self.ray.exceptions.RayTaskError as error:
            self.end()
            if _is_lost_peer(error):
                raise PartLost(f"a learner rank lost another during `{method}`: {_first_line(error)}") from error
            raise (error.cause if isinstance(error.cause, Exception) else error) from error
        except PartLost:
            self.end()
            raise
        return self.ray.get(refs)

    def end(self) -> None:
        """End all ranks at once."""
        for actor in self.actors:
            self.ray.kill(actor, no_restart=True)


def _first_line(error: BaseException | None) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def _is_lost_peer(error: Any) -> bool:
    """Whether a collective failed because the other side is gone."""
    text = str(error).lower()
    marks = ("connection closed by peer", "connection reset", "connection refused", "timed out", "nccl error")
    return any(mark in text for mark in marks)
