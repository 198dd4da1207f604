"""Several Python threads that call one compiled graph."""

from concurrent.futures import ThreadPoolExecutor

import torch

from tests.strategies import GraphBuilder
from torchipu.host.executor import GraphExecutor


def test_calls_from_four_threads_do_not_write_into_each_others_results():
    builder = GraphBuilder()
    x = builder.input("x", shape=(64, 64))
    y = builder.unary("exp", builder.unary("relu", x))
    run = GraphExecutor(builder.graph(y))
    inputs = [torch.randn(64, 64) for _ in range(4)]
    run(inputs[0])

    def differences(given: torch.Tensor) -> int:
        expected = given.relu().exp()
        return sum(not torch.allclose(run(given)[0], expected) for _ in range(300))

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(differences, inputs)) == [0, 0, 0, 0]
