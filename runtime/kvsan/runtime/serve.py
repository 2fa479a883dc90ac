"""A workload, served: so many requests at a time, users who go away, and which completions came out wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from kvsan.runtime.engine import Engine
from kvsan.runtime.language import Model, answers
from kvsan.runtime.requests import Completion
from kvsan.runtime.workload import Request


def serve(
    engine: Engine,
    requests: Iterable[Request],
    concurrency: int,
    *,
    each_turn: Callable[[list[Completion]], None] | None = None,
) -> dict[int, Completion]:
    """Serves the requests, the next one when one is done; their completions by number, when all transfers have ended.

    `each_turn` is told what each turn of the engine ended; what it raises ends the serving.
    """
    if concurrency < 1:
        raise ValueError(f"concurrency is a number of requests from 1, not {concurrency}")
    done: dict[int, Completion] = {}
    going: dict[int, Request] = {}
    left = iter(requests)
    more = True
    while more or going:
        while more and len(going) < concurrency:
            request = next(left, None)
            if request is None:
                more = False
                break
            engine.submit(request.number, request.prompt, request.new_tokens)
            going[request.number] = request
        ended = engine.turn()
        for number in [n for n, request in going.items() if request.abort_after is not None]:
            after = going[number].abort_after
            if after is not None and engine.progress(number) >= after and (gone := engine.abort(number)) is not None:
                ended.append(gone)
        for completion in ended:
            done[completion.number] = completion
            del going[completion.number]
        if each_turn is not None:
            each_turn(ended)
    engine.drain()
    return done


def garbled(model: Model, requests: Sequence[Request], done: dict[int, Completion]) -> list[int]:
    """The numbers of the completions that are not what the model answers, or not the beginning of it if aborted."""
    mine = [request for request in requests if request.number in done]
    right = answers(model, [(request.prompt, request.new_tokens) for request in mine])
    wrong = []
    for request, answer in zip(mine, right, strict=True):
        got = done[request.number]
        if list(got.tokens) != (answer[: len(got.tokens)] if got.why == "aborted" else answer):
            wrong.append(request.number)
    return wrong
