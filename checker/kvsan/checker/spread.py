"""Work in shares, done here, in processes of this machine, or on a Ray cluster; the answers come in the order of the
shares.

A worker is made once in each process and then asked share by share. It remembers nothing that would change an answer,
so who does which share does not matter, and a share whose worker died is done once more by another one: the answer is
the same on any number of workers. There is no scheduler here: `concurrent.futures` and Ray have one.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing import get_context
from typing import Any, Generic, Protocol, TypeVar

S = TypeVar("S")
R = TypeVar("R")
S_contra = TypeVar("S_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)

AHEAD = 3
"""So many shares a worker are handed out before their turn."""
TRIES = 5
"""So often a share is done again whose process died, before it is taken to be what kills them."""


class SpreadError(RuntimeError):
    """The workers that were asked for cannot be had."""


class Worker(Protocol[S_contra, R_co]):
    """Does a share."""

    def __call__(self, share: S_contra, /) -> R_co: ...


class Spread(Protocol[S_contra, R_co]):
    """Does shares."""

    def map(self, shares: Iterable[S_contra]) -> Iterator[R_co]:
        """The answers, in the order of the shares. They are taken from the iterable a little ahead."""

    def close(self) -> None:
        """Ends the workers; what they were doing is dropped."""


class Here(Generic[S, R]):
    """In this process."""

    def __init__(self, make: Callable[[], Worker[S, R]]) -> None:
        self._worker = make()

    def map(self, shares: Iterable[S]) -> Iterator[R]:
        return map(self._worker, shares)

    def close(self) -> None:
        """Nothing to end."""


class Processes(Generic[S, R]):
    """In so many processes of this machine. `make` must pickle."""

    def __init__(self, make: Callable[[], Worker[S, R]], workers: int) -> None:
        self._make, self._workers = make, workers
        self._pool = self._start()

    def _start(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(self._workers, get_context("spawn"), _begin, (self._make,))

    def map(self, shares: Iterable[S]) -> Iterator[R]:
        more = iter(shares)
        waiting: deque[tuple[S, Future[R]]] = deque()
        died = 0
        while True:
            while len(waiting) < AHEAD * self._workers:
                try:
                    share = next(more)
                except StopIteration:
                    break
                waiting.append((share, self._submit(share)))
            if not waiting:
                return
            try:
                answer = waiting[0][1].result()
            except BrokenProcessPool:
                died += 1
                if died > TRIES:
                    raise SpreadError(f"worker processes died {died} times in a row over the same share") from None
                self._pool.shutdown(wait=False, cancel_futures=True)
                self._pool = self._start()
                waiting = deque((share, self._again(share, future)) for share, future in waiting)
                continue
            died = 0
            waiting.popleft()
            yield answer

    def _submit(self, share: S) -> Future[R]:
        with suppress(BrokenProcessPool):
            return self._pool.submit(_do, share)
        broken: Future[R] = Future()
        broken.set_exception(BrokenProcessPool())
        return broken

    def _again(self, share: S, future: Future[R]) -> Future[R]:
        """What was done stays done."""
        if future.done() and not future.cancelled() and future.exception() is None:
            return future
        return self._submit(share)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in list((self._pool._processes or {}).values()):  # a share may be long; nobody wants its answer
            process.terminate()


_worker: Any = None


def _begin(make: Callable[[], Any]) -> None:
    global _worker  # noqa: PLW0603 - the one worker of this process
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever started us
    _worker = make()


def _do(share: Any) -> Any:
    return _worker(share)


def spread(make: Callable[[], Worker[S, R]], workers: int, engine: str = "local") -> Spread[S, R]:
    """`engine`: `local` or `ray`. Raises `SpreadError`."""
    if engine == "ray":
        from kvsan.checker.on_ray import OnRay

        return OnRay(make, workers)
    return Here(make) if workers == 1 else Processes(make, workers)
