"""The language model's kernels on a GPU: `pytest -m gpu tests/gpu/test_forward_cuda.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from kvsan.runtime.language import UNKNOWN, Group, Model, answer, mix

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

from kvsan.runtime.ballast import Ballast  # noqa: E402 - only where torch is
from kvsan.runtime.forward import batch_of  # noqa: E402
from runtime.bare import Server, serve  # noqa: E402

BOTH = (Group("full"), Group("window", 5))


@pytest.fixture
def unblocked() -> Iterator[None]:
    """Whatever would block the host raises."""
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


def test_torch_mixes_on_the_gpu_as_numpy_does() -> None:
    values = np.random.default_rng(0).integers(-(1 << 63), (1 << 63) - 1, 1_000_001, endpoint=True)
    assert (mix(torch.from_numpy(values).cuda()).cpu().numpy() == mix(values)).all()


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("known", [True, False])
def test_the_kernels_give_the_right_answer(seed: int, known: bool) -> None:
    rng = np.random.default_rng(seed)
    model = Model(BOTH, layers=1 + seed % 3, block_size=1 + seed % 5, words=1 + seed % 2, seed=seed)
    requests = [(rng.integers(0, 9, rng.integers(1, 28)).tolist(), int(rng.integers(1, 9))) for _ in range(4)]
    server = Server(model, seed, device="cuda", ballast=Ballast(2, 64) if seed % 2 else None)
    made = serve(server, requests, [5, 11], known, wait=torch.cuda.synchronize)
    assert made == [answer(model, prompt, count) for prompt, count in requests]


def test_no_step_blocks_the_host(request: pytest.FixtureRequest) -> None:
    server = Server(Model(BOTH), 1, device="cuda", ballast=Ballast(2, 64), spin_cycles=1000)
    server.step([server.row(0, 0, [1, 2, 3])])
    request.getfixturevalue("unblocked")
    for i in range(20):
        server.step([server.row(0, 3 + i, [UNKNOWN])])


def test_indices_of_steps_in_flight_are_not_written_over() -> None:
    """Forty steps are issued while the first still spins: each has staging memory of its own."""
    model = Model(BOTH)
    server = Server(model, 1, device="cuda", limit=60)
    server.step([server.row(0, 0, [1, 2, 3])])
    torch.cuda._sleep(500_000_000)
    for i in range(40):
        server.step([server.row(0, 3 + i, [UNKNOWN])])
    torch.cuda.synchronize()
    assert server.out[:41, 0].tolist() == answer(model, [1, 2, 3], 41)


@pytest.mark.parametrize("spin", [0, 50_000_000])
def test_a_stretched_read_window_lets_another_stream_in(spin: int) -> None:
    """The control of a race: a block that another stream writes while the kernel spins. In order, nothing happens."""
    model = Model(block_size=4)
    server = Server(model, 1, device="cuda", spin_cycles=spin)
    side = torch.cuda.Stream()
    server.step([server.row(0, 0, [1, 2, 3, 4, 5])])
    torch.cuda.synchronize()
    kernel = server.forward(batch_of([server.row(0, 5, [UNKNOWN])]), server.out[1])
    for part in kernel.parts:
        part()
    if not spin:
        side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        server.pool[:, server.tables[0][0][0]] = 0
    torch.cuda.synchronize()
    assert (int(server.out[1, 0]) == answer(model, [1, 2, 3, 4, 5], 2)[1]) == (not spin)
