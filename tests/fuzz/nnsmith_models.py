"""Models of NNSmith as programs: its generator solves for valid operators and sizes (Liu et al., ASPLOS 2023).

Their graphs of ATen operators become programs of ours, which go through the same doors, judge and minimiser. NNSmith's
own search for inputs without infinities is not used: of inputs near zero and near five those are taken that leave
finite results, and where neither does, no result is compared that is not finite.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import operator
import os
import random
import tempfile
import warnings
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from tests.fuzz.program import NAMES, Given, Node, Program

TYPES = ("float32", "int32", "int64", "bool")
"""Of the types that NNSmith knows those that both the IPU and eager's operators for it take."""
MOST_ELEMENTS = 4096


@functools.cache
def _operators() -> list[Any]:
    """Return what models are made of: what eager PyTorch takes in these types, found by trying."""
    # hydra writes its logs to where the process is.
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        os.chdir(folder)
        try:
            from nnsmith.abstract.extension import activate_ext
            from nnsmith.materialize.torch import TorchModelCPU

            operators = [one for one in _tried(folder) if not _casts_elsewhere(one.__name__)]
            activate_ext(opset=operators, factory=None)
            TorchModelCPU.add_seed_setter()
        finally:
            os.chdir(before)
    return operators


def _tried(folder: str) -> list[Any]:
    """Return the operators that eager takes, whatever the process has drawn and other processes have found before.

    NNSmith draws the sizes that it tries from Python's generator, and keeps what it finds in the user's cache. Two open
    sizes of a Reshape end its search: it then begins again.

    Args:
        folder: Where it keeps what it finds.
    """
    from nnsmith import narrow_spec
    from nnsmith.error import InternalError
    from nnsmith.materialize.torch import TorchModelCPU

    state, narrow_spec.NNSMITH_CACHE_DIR = random.getstate(), folder
    try:
        for seed in range(10):
            random.seed(seed)
            with contextlib.suppress(InternalError):
                return list(narrow_spec.auto_opset(TorchModelCPU, None))
    finally:
        random.setstate(state)
    raise AssertionError("NNSmith found no set of operators in ten searches")


def _casts_elsewhere(name: str) -> bool:
    return name.startswith("Cast") and name not in ("Cast", "CastF32", "CastI32", "CastI64", "CastBool")


def generate(seed: int) -> Program:
    """Return the program of a seed.

    Raises:
        ImportError: NNSmith is not installed; the extra ``dev`` has it.
    """
    rng = random.Random(seed)
    while True:
        program = _drawn(rng)
        if program is not None:
            return min((program, _moved(program, 5.0)), key=_not_finite)


def _drawn(rng: random.Random) -> Program | None:
    """Draw a model; None where a type of it is not among ours."""
    from nnsmith.abstract.dtype import DType
    from nnsmith.graph_gen import model_gen
    from nnsmith.materialize.torch import TorchModelCPU

    model = model_gen(
        opset=_operators(), method="symbolic-cinit", seed=rng.randrange(1 << 31), max_nodes=rng.randint(4, 14),
        max_elem_per_tensor=MOST_ELEMENTS, dtype_choices=[DType.from_str(name) for name in TYPES],
    )
    network = TorchModelCPU.from_gir(model.make_concrete()).torch_model
    network.debug_numeric = lambda values: None
    parameters = {name: value.detach() for name, value in network.named_parameters()}
    buffers = {name: value.detach() for name, value in network.named_buffers()}
    inputs = list(network.get_random_inps(base=0, margin=2).values())

    def run(held: list[torch.Tensor], given: list[torch.Tensor]) -> Any:
        return torch.func.functional_call(network, dict(zip([*parameters, *buffers], held, strict=True)), tuple(given))

    held = [*parameters.values(), *buffers.values()]
    graph = make_fx(run, tracing_mode="fake")(held, inputs).graph
    try:
        return _program(graph, [*held, *inputs], rng)
    except KeyError:
        return None


def _program(graph: torch.fx.Graph, tensors: list[torch.Tensor], rng: random.Random) -> Program:
    numbers: dict[torch.fx.Node, int] = {}
    first_of: dict[torch.fx.Node, int] = {}
    inputs: list[Given] = []
    nodes: list[Node] = []
    following = len(tensors)
    for node in graph.nodes:
        if node.op == "placeholder":
            numbers[node] = len(inputs)
            tensor = tensors[len(inputs)]
            inputs.append(Given(
                tuple(tensor.shape), NAMES[tensor.dtype], gradient=tensor.is_floating_point(), bound=5,
                seed=rng.randrange(1 << 30),
            ))
        elif node.op == "call_function" and node.target is operator.getitem:
            numbers[node] = first_of[node.args[0]] + node.args[1]
        elif node.op == "call_function":
            made = node.meta["val"]
            results = list(made) if isinstance(made, (tuple, list)) else [made]
            numbers[node] = first_of[node] = following
            following += len(results)
            nodes.append(_node(node, numbers, results))
    returned = next(node for node in graph.nodes if node.op == "output").args[0]
    outputs = sorted({numbers[one] for one in torch.utils._pytree.tree_leaves(returned)} - set(range(len(tensors))))
    cuts = sorted(rng.sample(range(1, len(nodes)), min(len(nodes) - 1, rng.randint(0, 3)))) if nodes else []
    return Program(tuple(inputs), tuple(nodes), tuple(outputs), tuple(cuts))


def _node(node: torch.fx.Node, numbers: dict[torch.fx.Node, int], results: list[torch.Tensor]) -> Node:
    operands: list[int] = []

    def written(value: Any) -> str:
        if isinstance(value, torch.fx.Node):
            operands.append(numbers[value])
            return f"{{{len(operands) - 1}}}"
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(written(one) for one in value)}]"
        return {torch.float32: "FLOAT", torch.float16: "HALF"}.get(value, repr(value))

    arguments = [written(value) for value in node.args]
    arguments += [f"{name}={written(value)}" for name, value in node.kwargs.items()]
    target: Any = node.target
    is_view = isinstance(target, torch._ops.OpOverload) and target.is_view
    text = f"torch.ops.{target}({', '.join(arguments)})"
    dtypes = tuple(NAMES[result.dtype] for result in results)
    return Node(text if len(dtypes) == 1 and not isinstance(node.meta["val"], (tuple, list)) else f"{{r}} = {text}",
                tuple(operands), dtypes, is_view)


def _moved(program: Program, offset: float) -> Program:
    """Return a program whose inputs of floating point lie about another number."""
    return dataclasses.replace(program, inputs=tuple(
        dataclasses.replace(given, offset=offset) if given.dtype == "float" else given for given in program.inputs
    ))


def _not_finite(program: Program) -> int:
    """Return how many results of floating point hold what is not finite."""
    with torch.no_grad():
        values = program.function()(*program.tensors())
    return sum(value.is_floating_point() and not bool(value.isfinite().all()) for value in values)
