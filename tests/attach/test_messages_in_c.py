"""What a step's message says is taken in C as `Messages.take` does it, and by that where it is of another sort."""

from __future__ import annotations

import random
import time
from types import SimpleNamespace
from typing import Any

import pytest

from attach.test_packed import Began
from kvsan.checker.attach import native
from kvsan.checker.attach.ledger import Ledger
from kvsan.checker.attach.lines import ACCESS, TOLD
from kvsan.checker.attach.state import ELSEWHERE, HERE
from kvsan.checker.attach.vllm.runners import Told
from kvsan.checker.attach.vllm.steps import Messages

HOT = native.HOT
pytestmark = pytest.mark.skipif(HOT is None, reason="the C hooks are not built (make native), or KVSAN_NATIVE=0")


class Runner:
    """With its hook in C; `slowly` says how often Python took a message."""

    def __init__(self, *, crosses: bool = False) -> None:
        self.began, self.slowly = Began(clock=time.perf_counter_ns), 0
        self.recorder = self.began.recorder
        self._kvsan_steps = Told("gpu", Messages(crosses=crosses), Ledger().hook("vllm.forward"))
        engine = SimpleNamespace(suspects=(), device_pool="gpu")
        hook = self.recorder.ledger.hook("vllm.forward")
        namer = HOT.Namer(self.recorder, None, None, lambda key: None, lambda stream: "s0")
        more = (engine, self.begin, 1, 99, None, lambda told: None)
        self.step = HOT.Hook(
            *("execute", lambda runner, output: None, None, self.recorder, hook, "w", None, namer, None, more)
        )

    def begin(self, runner: Any, output: Any) -> Any:
        self.slowly += 1
        message = self._kvsan_steps.messages.take(output)
        if message is not None:
            self.recorder.tell(self._kvsan_steps.name, message)
        return None

    def messages(self) -> list[Any]:
        return [line[2] for line in self.began.arrived() if line[0] == TOLD]


def plain(value: Any) -> Any:
    return [plain(each) for each in value] if isinstance(value, list | tuple) else value


class Server:
    """Outputs of a scheduler with requests that come, grow and go."""

    def __init__(self, seed: int) -> None:
        self.rng, self.requests, self.serial = random.Random(seed), dict[str, int](), 0

    def output(self, *, usual: bool = True) -> Any:
        rng = self.rng
        gone = {name for name in self.requests if rng.random() < 0.1}
        for name in gone:
            del self.requests[name]
        names, fresh = list(self.requests), []
        for _ in range(rng.choice((0, 0, 0, 1, 2)) if self.requests else 2):
            name = f"r{self.serial}" + rng.choice(("", "é", "x" * 40))
            self.serial += 1
            computed = rng.choice((0, 16, 300))
            self.requests[name] = computed
            ids = tuple([rng.randrange(70_000) for _ in range(rng.randrange(20))] for _ in range(rng.choice((1, 2))))
            fresh.append(SimpleNamespace(req_id=name, block_ids=ids, num_computed_tokens=computed))
        more: list[Any] = [rng.choice((None, None, None, ([rng.randrange(300)],), ([], []), ())) for _ in names]
        cached = SimpleNamespace(
            req_ids=names,
            new_block_ids=more,
            num_computed_tokens=[self.requests[name] for name in names],
            resumed_req_ids=set() if usual or not names or rng.random() < 0.5 else {names[0]},
        )
        tokens = {name: rng.choice((1, 1, 1, 1, 64)) for name in self.requests}
        for name, count in tokens.items():
            self.requests[name] += count
        found = SimpleNamespace(
            scheduled_cached_reqs=cached,
            scheduled_new_reqs=fresh,
            num_scheduled_tokens=tokens,
            finished_req_ids=gone,
            scheduled_encoder_inputs={name: [0] for name in names[:1]},
            new_block_ids_to_zero=None,
        )
        return found if usual else self.odd(found)

    def odd(self, output: Any) -> Any:
        """The same, said in another way."""
        rng = self.rng
        match rng.randrange(6):
            case 0:
                output.finished_req_ids = frozenset(output.finished_req_ids)
            case 1:
                output.finished_req_ids = sorted(output.finished_req_ids)
            case 2:
                output.scheduled_new_reqs = tuple(output.scheduled_new_reqs)
            case 3:
                for one in output.scheduled_new_reqs:
                    one.block_ids = [tuple(ids) for ids in one.block_ids]
            case 4:
                output.num_scheduled_tokens = {}
            case _:
                for one in output.scheduled_new_reqs:
                    one.num_computed_tokens = True
        return output


@pytest.mark.parametrize("seed", range(12))
def test_requests_that_come_and_go_are_taken_in_c(seed: int) -> None:
    print(seed)
    server, runner, python, want = Server(seed), Runner(), Messages(), []
    for _ in range(60):
        output = server.output()
        want.append(plain(python.take(output)))
        runner.step(runner, output)
    assert runner.slowly == 0
    assert plain(runner.messages()) == want
    assert runner._kvsan_steps.messages.count == python.count == 60
    assert runner._kvsan_steps.messages._before == python._before


@pytest.mark.parametrize("crosses", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_what_is_said_in_another_way_is_said_all_the_same(seed: int, crosses: bool) -> None:
    print(seed)
    server, runner, python, want = Server(seed), Runner(crosses=crosses), Messages(crosses=crosses), []
    for _ in range(60):
        output = server.output(usual=False)
        message = python.take(output)
        want += [] if message is None else [plain(message)]
        runner.step(runner, output)
    assert runner.slowly > 5
    assert plain(runner.messages()) == want
    assert runner._kvsan_steps.messages.count == python.count
    assert runner._kvsan_steps.messages._before == python._before


def test_a_count_that_cannot_be_kept_is_a_fault_and_not_told_twice() -> None:
    """What was said before is not what is said now, or whoever follows would hear that it is."""

    class Broken(Messages):
        @property
        def count(self) -> Any:
            return 7

        @count.setter
        def count(self, value: int) -> None:
            if value:
                raise RuntimeError("no count")

    runner = Runner()
    runner._kvsan_steps.messages = Broken()
    runner.step(runner, Server(1).output())
    assert "no count" in (runner.recorder.fault_text or "")
    assert runner.slowly == 0
    assert runner.messages() == []


@pytest.mark.parametrize("field", ["finished_req_ids", "scheduled_new_reqs", "scheduled_cached_reqs", "kvsan_token"])
def test_what_a_signal_s_handler_raises_is_the_engine_s(field: str) -> None:
    """In a property of a message, say: Ctrl-C is not let go, and the message not taken a second time."""

    class Interrupted:
        asked = 0

        def __init__(self, output: Any) -> None:
            self._output = output

        def __getattr__(self, name: str) -> Any:
            if name == field:
                Interrupted.asked += 1
                if Interrupted.asked == 1:
                    raise KeyboardInterrupt
            return getattr(self._output, name)

    runner = Runner()
    with pytest.raises(KeyboardInterrupt):
        runner.step(runner, Interrupted(Server(1).output()))
    assert Interrupted.asked == 1
    assert runner.slowly == 0
    assert runner.recorder.on


@pytest.mark.parametrize(("workers", "slowly"), [(0, 1), (HERE, 0), (ELSEWHERE, 1)])
def test_a_token_is_looked_for_unless_all_workers_are_here(workers: int, slowly: int) -> None:
    asked = []

    class Output(SimpleNamespace):
        @property
        def kvsan_token(self) -> str:
            asked.append(1)
            return "t1"

    runner = Runner()
    runner.recorder.workers = workers
    runner.step(runner, Output(**vars(Server(1).output())))
    assert (runner.slowly, len(asked)) == (slowly, slowly)
    runner.step(runner, Server(1).output())
    assert runner.slowly == slowly
    assert len(runner.messages()) == 2


class Same(str):
    """A name that is equal to another one, and says what it was asked."""

    asked = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Same.asked += 1
        return str.__eq__(self, other)


def again(name: str) -> str:
    """An equal name that is another object."""
    return "".join([name[:1], name[1:]])


@pytest.mark.parametrize(
    ("names", "tokens", "said"),
    [
        (["aa", "bb"], {"aa": 1, "bb": 300}, False),
        ([again("aa"), "bb"], {"aa": 1, "bb": 300}, False),
        (["aa", "bb"], {again("aa"): 1, "bb": 300}, False),
        (["aa", "bb"], {"aa": 1, "bb": int("300")}, False),
        (["aa", "bb"], {"aa": True, "bb": 300.0}, False),
        ([Same("aa"), "bb"], {"aa": 1, "bb": 300}, False),
        (["bb", "aa"], {"aa": 1, "bb": 300}, True),
        (["aa", "bb"], {"bb": 300, "aa": 1}, True),
        (["aa", "bb"], {"aa": 2, "bb": 300}, True),
        (["aa", "bb"], {"aa": 1}, True),
        (["aa"], {"aa": 1, "bb": 300}, True),
        ([], {"aa": 1, "bb": 300}, True),
        (["aa", "cc"], {"aa": 1, "bb": 300}, True),
        (["aa", "bb"], {"aa": 1, "cc": 300}, True),
    ],
)
def test_what_is_as_before_is_what_python_says_is(names: list[str], tokens: dict[str, Any], said: bool) -> None:
    runner, python, want = Runner(), Messages(), []
    for these, count in ((["aa", "bb"], {"aa": 1, "bb": 300}), (names, tokens), (names, tokens), (names[:1], tokens)):
        output = Server(1).output()
        output.scheduled_new_reqs, output.num_scheduled_tokens = [], count
        output.scheduled_cached_reqs = SimpleNamespace(
            req_ids=list(these), new_block_ids=[None] * len(these), num_computed_tokens=[5] * len(these)
        )
        want.append(plain(python.take(output)))
        runner.step(runner, output)
    assert plain(runner.messages()) == want
    assert runner.slowly == 0
    assert [message[2] is not None for message in want[:3]] == [True, said, False]
    assert runner._kvsan_steps.messages._before == python._before


def test_names_that_raise_where_they_are_compared_are_python_s() -> None:
    class Raises(str):
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            raise ValueError("not to be compared")

    runner = Runner()
    output = Server(1).output()
    cached = output.scheduled_cached_reqs
    runner.step(runner, output)
    cached.req_ids, cached.new_block_ids, cached.num_computed_tokens = [Raises("r0")], [None], [1]
    runner._kvsan_steps.messages._before = (["r0"], *runner._kvsan_steps.messages._before[1:])
    runner.step(runner, output)
    assert runner.slowly == 1
    assert "not to be compared" in (runner.recorder.fault_text or "")


def test_the_line_of_a_forward_counts_where_it_is_told_to() -> None:
    runner = Runner()
    recorder, told = runner.recorder, runner._kvsan_steps
    own = recorder.ledger.hook("vllm.forward")
    namer = HOT.Namer(recorder, lambda: 0, {0: 7}.get, lambda key: "s0", lambda stream: "s0")
    more = (SimpleNamespace(current_stream=lambda kind: "s0"), None, 1, 99, "file.py:1", None)
    forward = HOT.Hook("forward", lambda runner: 5, None, recorder, own, "w", None, namer, None, more)
    hooks: tuple[Any, ...] = (own, told.hook, object())
    for hook in hooks:
        runner.step(runner, Server(1).output())
        told.hook, told.open = hook, True
        assert forward(runner) == 5
        assert not told.open
        assert getattr(hook, "count", 1) == 1
    assert "no hook that counts" in (recorder.fault_text or "")
    lines = [line for line in runner.began.arrived() if line[0] == ACCESS]
    assert [(line[2:11], line[11]) for line in lines] == [
        (["s0", told.name, None, "forward", "stream", False, None, step, None], "file.py:1") for step in (1, 2)
    ]
