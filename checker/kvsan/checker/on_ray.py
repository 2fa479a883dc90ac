"""Shares on a Ray cluster: the one that `RAY_ADDRESS` names or that runs here, else one on this machine.

Each share is a Ray task, and Ray runs it again if its worker or its node is lost (`max_retries=-1`: Ray's documentation
on task fault tolerance), so a lost worker costs the share that it had. kvsan must be installed on every node, in the
same version.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from kvsan.checker.spread import AHEAD, SpreadError, Worker

S = TypeVar("S")
R = TypeVar("R")

_made: dict[str, Any] = {}
"""In a process of Ray's: the worker of each job. Ray uses its processes again."""


def _task(name: str, make: Callable[[], Worker[S, R]], share: S) -> R:
    worker = _made.get(name)
    if worker is None:
        _made.clear()  # of an earlier job nobody asks any more
        worker = _made[name] = make()
    answer: R = worker(share)
    return answer


class OnRay(Generic[S, R]):
    """`workers`: how many shares are out at once, times `AHEAD`; where they run, Ray decides."""

    def __init__(self, make: Callable[[], Worker[S, R]], workers: int) -> None:
        try:
            import ray
        except ImportError:
            raise SpreadError("--engine ray needs Ray: pip install 'kvsan[ray]'") from None
        self._ray: Any = ray
        self._own = not ray.is_initialized()
        if self._own:
            try:
                ray.init(log_to_driver=False, logging_level="error")
            except Exception as error:
                raise SpreadError(f"no Ray cluster: {' '.join(str(error).split())}") from None
        import uuid

        self._name = uuid.uuid4().hex
        self._make = ray.put(make)
        self._workers = workers
        self._do = ray.remote(max_retries=-1)(_task)
        self._out: deque[Any] = deque()

    def map(self, shares: Iterable[S]) -> Iterator[R]:
        more = iter(shares)
        while True:
            while len(self._out) < AHEAD * self._workers:
                try:
                    share = next(more)
                except StopIteration:
                    break
                self._out.append(self._do.remote(self._name, self._make, share))
            if not self._out:
                return
            yield self._ray.get(self._out.popleft())

    def close(self) -> None:
        for share in self._out:
            self._ray.cancel(share, force=True)
        self._out.clear()
        if self._own:
            self._ray.shutdown()
