"""On a Ray cluster of two nodes on this machine, one of whose workers is killed in the middle."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kvsan.checker.explore import How, Scope, explore
from kvsan.checker.on_ray import OnRay
from kvsan.model.designs import load

ray = pytest.importorskip("ray", reason="needs Ray: pip install 'kvsan[ray]'")
pytestmark = [
    pytest.mark.sweep,  # starting a cluster takes half a minute
    pytest.mark.filterwarnings("ignore"),  # Ray's own
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    from ray.cluster_utils import Cluster

    two = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        two.add_node(num_cpus=1)
        ray.init(
            address=two.address,
            logging_level="error",
            log_to_driver=False,
            runtime_env={"env_vars": {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}},
        )
        assert len(ray.nodes()) == 2
        yield
    finally:
        ray.shutdown()
        two.shutdown()


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("how", [How(), How(runs=300, seed=2)], ids=["exhaustive", "random"])
def test_the_answer_is_that_of_one_process(how: How) -> None:
    design, scope = load("vllm-no-store-pin"), Scope(2, 2, 2)
    here = explore(design, scope, how)
    there = explore(design, scope, replace(how, engine="ray", workers=2))
    assert there.findings == here.findings
    assert there.never == here.never
    assert (there.progress.states, there.progress.moves, there.progress.runs) == (
        here.progress.states,
        here.progress.moves,
        here.progress.runs,
    )


class Squarer:
    """One share kills the process that does it, once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, share: int) -> int:
        with (self.folder / "done").open("a") as done:
            done.write(f"{share}\n")
        if share == 7 and not (self.folder / "died").exists():
            (self.folder / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return share * share


@pytest.mark.usefixtures("cluster")
def test_a_killed_worker_costs_its_share_and_nothing_else(tmp_path: Path) -> None:
    def make(folder: Path = tmp_path) -> Squarer:
        return Squarer(folder)

    work: OnRay[int, int] = OnRay(make, 2)
    try:
        assert list(work.map(range(30))) == [n * n for n in range(30)]
    finally:
        work.close()
    assert (tmp_path / "died").exists()
    done = [int(line) for line in (tmp_path / "done").read_text().splitlines()]
    assert sorted(set(done)) == list(range(30))
    assert done.count(7) == 2
    assert len(done) == 31
