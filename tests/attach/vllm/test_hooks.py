"""Each hook of vLLM, on stand-ins with vLLM's names: what line it writes, where, and what it says when it cannot."""

from __future__ import annotations

import functools
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from attach.vllm import fake
from attach.vllm.fake import Vllm, attached, in_thread, output
from kvsan.checker.attach.state import ELSEWHERE, HERE
from kvsan.checker.attach.vllm import pools
from kvsan.model.ops import Access, Alloc, Free, Get, Put, Touch


def kinds(vllm: Vllm) -> list[str]:
    return [op.label if isinstance(op, Access) else type(op).__name__.lower() for op in vllm.log.ops]


def accesses(vllm: Vllm) -> list[Access]:
    return [op for op in vllm.log.ops if isinstance(op, Access)]


def test_lives_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    with attached(monkeypatch) as vllm:
        pool = fake.BlockPool(64)
        pool.get_new_blocks(1)  # no pool of anyone's yet
        pools.mark(vllm.engine, pool, ("gpu",))
        taken = pool.get_new_blocks(3)
        pool.touch(taken[:1])
        pool.free_blocks(iter([*taken, pool.blocks[0]]))  # the first keeps a reference, the last is the null block
        pool.touch((taken[2],))
        pool.free_blocks([])
        assert vllm.log.pools == {"gpu": 64}
        shown = [(type(op), str(op.blocks)) for op in vllm.log.ops if isinstance(op, Alloc | Free | Touch)]
        assert shown == [(Alloc, "2-4"), (Free, "3-4"), (Touch, "4")]


def test_the_older_runner_s_forward_stands_before_its_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    with attached(monkeypatch) as vllm:
        runner = vllm.runner(fake.OlderRunner, lambda: vllm.recorder.put("copy"))
        runner.execute_model(output({"a": [3, 4]}, {"a": 20}, new_block_ids_to_zero=[4]))
        assert kinds(vllm) == ["zero", "forward", "put"]
        zero, forward = accesses(vllm)
        assert str(zero.writes["gpu"]) == "4"
        assert (str(forward.reads["gpu"]), str(forward.writes["gpu"]), forward.step) == ("3-4", "3-4", 1)
        runner.execute_model(output())
        assert vllm.recorder.ledger.copies == 0
        runner.skips = True
        runner.execute_model(output({"b": [5]}, {"b": 2}))
        assert vllm.recorder.ledger.words == {"a forward that did not pass _model_forward": 1}


def test_the_newer_runner_s_forward_stands_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with attached(monkeypatch) as vllm:
        runner = vllm.runner(fake.NewerRunner)
        runner.execute_model(output({"a": [3]}, {"a": 5}), dummy_run=True)
        assert not vllm.log.ops
        runner.execute_model(output({"a": [3]}, {"a": 5}))
        assert kinds(vllm) == ["forward"]


def test_a_field_that_nobody_has_read_of_is_an_unseen_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    with attached(monkeypatch) as vllm:
        runner = vllm.runner(fake.OlderRunner)
        runner.execute_model(output({"a": [3]}, {"a": 5}, kv_block_copies=[(3, 4)]))
        assert vllm.recorder.ledger.words == {"SchedulerOutput.kv_block_copies of vLLM 9.9": 1}


def test_a_store_from_submission_to_the_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    with attached(monkeypatch) as vllm:
        worker, backend = fake.SimpleCPUOffloadWorker(vllm.config()), fake.DmaCopyBackend()
        vllm.recorder.pool("gpu", 64)
        worker.register_kv_caches({})
        backend.init({}, {}, None, vllm.world.Stream(7), vllm.world.Stream(9))
        backend.launch_copy([5, 6], [1, 2], True, 0, worker._store_events)
        in_thread(backend.copy_one)
        assert worker._store_events[0] == (0, "event")
        worker._store_events.pop(0)
        assert kinds(vllm) == ["put", "get", "store", "put", "get"]
        put, get, store, published, seen = vllm.log.ops
        assert isinstance(store, Access)
        assert (put.by, get.by, store.by, published.by, seen.by) == ("h0", "h1", "h1", "h1", "h0")
        assert (store.on, store.order, store.planned, store.batch) == ("store", "stream", 0, True)
        assert (str(store.reads["gpu"]), str(store.writes["cpu"])) == ("5-6", "1-2")
        assert isinstance(published, Put)
        assert isinstance(seen, Get)
        assert published.token == seen.token
        backend.launch_copy([3], [9], False, 1, worker._load_events)
        in_thread(backend.copy_one)
        load = accesses(vllm)[-1]
        assert (load.label, load.on, load.order, str(load.writes["gpu"])) == ("load", "load", "any", "9")


def test_a_flush_takes_over_what_the_copy_thread_published(monkeypatch: pytest.MonkeyPatch) -> None:
    with attached(monkeypatch) as vllm:
        worker = fake.SimpleCPUOffloadWorker(vllm.config())
        in_thread(lambda: list(map(worker._load_events.append, [(0, "event"), (1, "event")])))
        for _ in worker._load_events:
            pass
        worker._load_events.clear()
        assert [line.split()[0] for line in vllm.lines] == ["put", "put", "get", "get"]
        assert vllm.lines[0].split()[1] == vllm.lines[2].split()[1]


def test_in_a_pause_the_originals_are_back(monkeypatch: pytest.MonkeyPatch) -> None:
    with attached(monkeypatch) as vllm:
        worker, backend = fake.SimpleCPUOffloadWorker(vllm.config()), fake.DmaCopyBackend()
        vllm.recorder.pool("gpu", 64)
        worker.register_kv_caches({})
        backend.init({}, {}, None, vllm.world.Stream(7), vllm.world.Stream(9))
        pool = fake.BlockPool(64)
        pools.mark(vllm.engine, pool, ("gpu",))
        vllm.engine.pause()
        assert not hasattr(fake.BlockPool.free_blocks, "__kvsan_wraps__")
        backend.launch_copy([5, 6], [1, 2], True, 0, worker._store_events)
        in_thread(backend.copy_one)
        assert worker._store_events.pop(0) == (0, "event")
        pool.free_blocks(pool.get_new_blocks(3))
        assert not vllm.log.ops
        vllm.engine.resume()
        backend.launch_copy([5, 6], [1, 2], True, 0, worker._store_events)
        in_thread(backend.copy_one)
        assert worker._store_events.pop(0) == (0, "event")
        pool.get_new_blocks(1)
        assert kinds(vllm) == ["put", "get", "store", "put", "get", "alloc"]
        vllm.engine.pause()
    assert not hasattr(fake.BlockPool.free_blocks, "__kvsan_wraps__")


def test_copies_with_parameters_of_unknown_origin_are_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    with attached(monkeypatch) as vllm:
        module: Any = sys.modules["vllm.v1.simple_kv_offload.copy_backend"]
        module.copy_blocks([1], [2], SimpleNamespace(attrs=SimpleNamespace(srcAccessOrder=3)))
        assert vllm.recorder.ledger.copies == 1


@pytest.mark.parametrize("ids", [iter([1]), None, 5])
@pytest.mark.parametrize("which", ["copy_blocks", "zero_block_ids"])
def test_ids_that_cannot_be_counted_are_a_fault_and_not_the_engine_s(
    monkeypatch: pytest.MonkeyPatch, which: str, ids: Any
) -> None:
    """The engine has made its call by then."""
    with attached(monkeypatch) as vllm:
        module: Any = sys.modules["vllm.v1.simple_kv_offload.copy_backend"]
        if which == "copy_blocks":
            module.copy_blocks(ids, ids, SimpleNamespace(attrs=SimpleNamespace(srcAccessOrder=3)))
        else:
            fake.KVBlockZeroer().zero_block_ids(ids)
        assert "TypeError" in (vllm.recorder.fault_text or "")
        assert not vllm.recorder.on


def swap(*args: Any, **kwargs: Any) -> None:
    return None


def kernel(*args: Any, **kwargs: Any) -> None:
    return None


kernel.__module__ = "vllm.swap_blocks_triton"


@pytest.mark.parametrize(("function", "order"), [(swap, "any"), (functools.partial(kernel, size=1), "stream")])
def test_a_transfer_of_the_other_connector(monkeypatch: pytest.MonkeyPatch, function: Any, order: str) -> None:
    with attached(monkeypatch) as vllm:
        vllm.recorder.pool("gpu", 64)
        handler = fake.SingleDirectionOffloadingHandler(function, gpu_to_cpu=False)
        spec = (SimpleNamespace(block_ids=[1, 2]), SimpleNamespace(block_ids=[7, 8]))
        with vllm.world.on(vllm.world.Stream(5)):
            assert handler.transfer_async(1, spec)
        (load,) = accesses(vllm)
        assert (load.label, load.on, load.order) == ("load", "load", order)
        assert (str(load.reads["cpu"]), str(load.writes["gpu"])) == ("1-2", "7-8")
        assert vllm.log.pools["cpu"] == 32
        handler._swap_blocks_batch = None
        handler.transfer_async(2, spec)
        assert vllm.recorder.ledger.copies == 1


class Answer:
    """As `AsyncModelRunnerOutput`."""

    def __init__(self, made: Any) -> None:
        self.get_output = lambda: made


def test_what_travels_between_processes_carries_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    with attached(monkeypatch) as vllm:
        scheduler = fake.Scheduler(vllm.config(backend="mp"))
        runner, worker = vllm.runner(fake.OlderRunner), fake.WorkerProc()
        step = scheduler.schedule(output({"a": [3]}, {"a": 5}))
        in_thread(lambda: runner.execute_model(step))
        in_thread(lambda: worker.handle_output(Answer(SimpleNamespace(kv_connector_output=None))))
        in_thread(lambda: worker.enqueue_output(worker.outputs.get()))
        scheduler.update_from_output(step, worker.sent[0])
        assert [line.split()[0] for line in vllm.lines] == ["put", "get", "access", "put", "get", "put", "get"]
        tokens = [op.token for op in vllm.log.ops if isinstance(op, Put | Get)]
        assert tokens[0::2] == tokens[1::2]
        assert len(set(tokens)) == 3
        assert not hasattr(step, "kvsan_token")


def tokens_of(vllm: Vllm, *schedulers: Any) -> list[str]:
    """Who hands on what it schedules, and who takes a token from what comes back: `h` and `t` for each scheduler."""
    said = []
    for number, scheduler in enumerate(schedulers):
        before = len(vllm.log.ops)
        step = scheduler.schedule(output({"a": [3]}, {"a": 5}))
        scheduler.update_from_output(step, SimpleNamespace(kvsan_token=f"t{before}.{number}"))
        said.append("".join({Put: "h", Get: "t"}[type(op)] for op in vllm.log.ops[before:]))
        assert hasattr(step, "kvsan_token") == ("h" in said[-1])
    return said


def test_workers_that_are_elsewhere_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as all workers are here, nothing carries a token."""
    with attached(monkeypatch) as vllm:
        assert vllm.recorder.workers == 0
        here = fake.Scheduler(vllm.config())
        assert vllm.recorder.workers == HERE
        here.update_from_output(here.schedule(output({"a": [3]}, {"a": 5})), SimpleNamespace())
        assert not vllm.log.ops
        there = fake.Scheduler(vllm.config(backend="mp"))
        assert tokens_of(vllm, here, there, here) == ["t", "ht", "t"]
        also = fake.Scheduler(vllm.config())
        assert vllm.recorder.workers == ELSEWHERE
        assert tokens_of(vllm, also, there) == ["t", "ht"]
        assert vllm.recorder.ledger.hooks["vllm.schedule"].count == 6
        assert vllm.recorder.ledger.hooks["vllm.output"].count == 6


def test_workers_of_a_scheduler_that_was_made_unseen_may_be_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    with attached(monkeypatch) as vllm:
        here = fake.Scheduler(vllm.config())
        vllm.recorder.on = False
        unseen = fake.Scheduler(vllm.config(backend="mp"))
        vllm.recorder.on = True
        assert vllm.recorder.workers == ELSEWHERE
        assert tokens_of(vllm, here, unseen) == ["t", "t"]


def test_workers_of_a_scheduler_of_an_earlier_session_may_be_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    with attached(monkeypatch) as vllm:
        there = fake.Scheduler(vllm.config(backend="mp"))
    with attached(monkeypatch) as vllm:
        here = fake.Scheduler(vllm.config())
        assert vllm.recorder.workers == ELSEWHERE
        assert tokens_of(vllm, here, there) == ["t", "ht"]


def test_workers_of_a_scheduler_that_was_made_in_a_pause_may_be_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    with attached(monkeypatch) as vllm:
        here = fake.Scheduler(vllm.config())
        vllm.recorder.on = False
        vllm.engine.pause()
        unseen = fake.Scheduler(vllm.config(backend="mp"))
        vllm.engine.resume()
        vllm.recorder.on = True
        assert vllm.recorder.workers == ELSEWHERE
        assert tokens_of(vllm, here, unseen) == ["t", "t"]


@pytest.mark.parametrize(("backend", "workers"), [("uni", 0), ("mp", ELSEWHERE)])
def test_a_forked_child_may_be_anybody_s_worker(monkeypatch: pytest.MonkeyPatch, backend: str, workers: int) -> None:
    with attached(monkeypatch) as vllm:
        scheduler = fake.Scheduler(vllm.config(backend=backend))
        vllm.recorder.listen([vllm.log])
        assert vllm.recorder.workers == workers
        assert tokens_of(vllm, scheduler) == ["t" if backend == "uni" else "ht"]


def test_ranks_have_pools_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    with attached(monkeypatch) as vllm:
        scheduler = fake.Scheduler(vllm.config(backend="mp", ranks=2))
        scheduler.kv_cache_manager.block_pool.get_new_blocks(1)
        assert vllm.lines == ["alloc gpu@0", "alloc gpu@1"]
        vllm.runner(fake.OlderRunner, ranks=2).execute_model(output({"a": [3]}, {"a": 5}))
        assert list(accesses(vllm)[0].reads) == ["gpu@0"]


@pytest.mark.parametrize(
    ("without", "hook"),
    [({"block_pool": "BlockPool"}, "vllm.alloc"), ({"copy_backend": "copy_blocks"}, "simple.copy")],
)
def test_a_missing_target_is_named_with_the_version(
    monkeypatch: pytest.MonkeyPatch, without: dict[str, str], hook: str
) -> None:
    with attached(monkeypatch, **without) as vllm:
        assert any(f"hook {hook} has no target (version 9.9)" in why for why in vllm.recorder.ledger.missing())
        assert vllm.recorder.on


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"connector": "NixlConnector"}, "transfers of NixlConnector are not covered (vLLM 9.9)"),
        ({"speculative_config": object()}, "speculative decoding"),
    ],
)
def test_what_is_not_covered_is_said(monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], why: str) -> None:
    with attached(monkeypatch) as vllm:
        fake.Scheduler(vllm.config(**more))
        assert any(why in note for note in vllm.recorder.ledger.notes)


def test_an_engine_without_forwards_is_never_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    with attached(monkeypatch) as vllm:
        fake.Scheduler(vllm.config()).schedule(output({"a": [3]}, {"a": 5}))
        assert vllm.recorder.ledger.expects().hooks["vllm.forward"] == 1
        assert vllm.recorder.ledger.hooks["vllm.forward"].count == 0


def test_undone_the_originals_are_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before = [vars(cls).copy() for cls in (fake.BlockPool, fake.Scheduler, fake.OlderRunner)]
    with attached(monkeypatch):
        assert vars(fake.BlockPool)["touch"] is not before[0]["touch"]
    after = [vars(cls).copy() for cls in (fake.BlockPool, fake.Scheduler, fake.OlderRunner)]
    assert before == after
