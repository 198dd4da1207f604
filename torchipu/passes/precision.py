"""Makes every conversion between element types an op of its own, and states how the matrix unit sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torchipu.device.product_sets import summand_tiles
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.types import DType, Leg
from torchipu.optable.random_streams import FIRST_STREAMS, ROUNDING_STREAM
from torchipu.optable.spec import spec_of
from torchipu.options import Options
from torchipu.target import Target

CAST = "ipu.cast.default"

# Types that hold every value of another, the narrowest first.
WIDER: Mapping[DType, tuple[DType, ...]] = {
    DType.HALF: (DType.FLOAT,),
    DType.CHAR: (DType.SHORT, DType.INT, DType.LONG),
    DType.UNSIGNED_CHAR: (DType.SHORT, DType.INT, DType.LONG),
    DType.SHORT: (DType.INT, DType.LONG),
    DType.INT: (DType.LONG,),
}

# Kinds that accumulate products in the matrix unit.
WITH_PRODUCTS = ("attention",)  # among others; these have partials only where they are half
WITH_PARTIALS = ("matmul", "mm", "bmm", "addmm", "baddbmm", "linear", "convolution")
# Kinds whose plans keep to the memory that temporary values may use.
WITH_INDICES = ("index", "gather", "take", "put", "scatter", "embedding", "max_unpool")
WITH_MEMORY = (*WITH_PARTIALS, *WITH_INDICES)


def set_precision(graph: Graph, options: Options, target: Target) -> Graph:
    """Return a graph in which every record serves the dtypes of its operands.

    An operand of a type that the record does not serve is cast to the narrowest wider type that it does; a result of
    the operand's type is computed in the wider one and cast back. Where no wider type is served, the op stays as it
    is. Products accumulate in partials of the type that the options, or the user's region, say, within the memory that
    they say. Ops whose half results
    are rounded otherwise than by PyTorch have attributes that say how.

    Args:
        graph: A valid graph, placed or not.
        options: Options of the compilation.
        target: The machine, whose plans say how many tiles share the summands of a product with half partials.

    Returns:
        The new graph, or the same object when nothing changes.
    """
    served = _Casts(graph, options, target)
    for op in graph.ops:
        served.add(op)
    ops = _with_rounding(served.ops, options)
    if not served.is_changed and ops is served.ops:
        return graph
    return replace(graph, ops=tuple(ops))


def _with_rounding(ops: list[Op], options: Options) -> list[Op]:
    """Say of each op with half results how they are rounded, and what overflows become.

    ATen rounds those of generic ops, to nearest.

    A result has a stream of random bits of its own, whose number depends on the leg and on the ops before it: an op
    that is recomputed rounds as it did at first.
    """
    attrs: dict[str, object] = {} if options.half_overflow == "infinity" else {"half_overflow": options.half_overflow}
    if not attrs and not options.stochastic_rounding:
        return ops
    return _rounded(ops, attrs, dict(FIRST_STREAMS) if options.stochastic_rounding else None)


def _rounded(ops: Sequence[Op], attrs: Mapping[str, object], next_stream: dict[Leg, int] | None) -> list[Op]:
    """Add the attributes of rounding, in the bodies of control flow too; streams are numbered where there are any."""
    rounded = []
    for op in ops:
        spec = spec_of(op)
        if op.bodies:
            bodies = [replace(body, ops=tuple(_rounded(body.ops, attrs, next_stream))) for body in op.bodies]
            rounded.append(replace(op, bodies=tuple(bodies)))
            continue
        if (spec is not None and spec.is_view) or all(result.dtype is not DType.HALF for result in op.outputs):
            rounded.append(op)
            continue
        stream = {}
        if next_stream is not None and spec is not None:
            stream = {ROUNDING_STREAM: next_stream[op.leg]}
            next_stream[op.leg] += len(op.outputs)
        rounded.append(replace(op, attrs={**op.attrs, **attrs, **stream}))
    return rounded


class _Casts:
    """The ops of the new graph, and the casts made so far, so that each tensor is cast once a leg and stage."""

    def __init__(self, graph: Graph, options: Options, target: Target) -> None:
        self.options = options
        self.target = target
        self.ops: list[Op] = []
        self.is_changed = False
        self._names = {tensor.name for op in graph.ops for tensor in op.outputs} | {t.name for t in graph.inputs}
        self._casts: dict[tuple[object, ...], Tensor] = {}

    def add(self, op: Op) -> None:
        """Append an op, with casts around it where it needs them, and with its partials."""
        widened = _widened_types(op)
        if op.bodies:
            self._add_with_bodies(op)
        elif widened:
            self._add_widened(op, widened)
        else:
            self._append(op)

    def _add_with_bodies(self, op: Op) -> None:
        """Append an op of control flow with the same done in what it runs."""
        inner = [_Casts(body, self.options, self.target) for body in op.bodies]
        for casts, body in zip(inner, op.bodies, strict=True):
            for member in body.ops:
                casts.add(member)
        self.is_changed = self.is_changed or any(casts.is_changed for casts in inner)
        bodies = tuple(replace(body, ops=tuple(c.ops)) for c, body in zip(inner, op.bodies, strict=True))
        self.ops.append(replace(op, bodies=bodies))

    def _add_widened(self, op: Op, widened: Mapping[DType, DType]) -> None:
        self.is_changed = True
        inputs = tuple(
            self._cast(tensor, widened[tensor.dtype], op) if tensor.dtype in widened else tensor for tensor in op.inputs
        )
        outputs = tuple(
            self._wide_result(tensor, widened[tensor.dtype]) if tensor.dtype in widened else tensor
            for tensor in op.outputs
        )
        self._append(replace(op, inputs=inputs, outputs=outputs))
        for tensor, wide in zip(op.outputs, outputs, strict=True):
            if wide is not tensor:
                self._append(_cast_op(wide, tensor, op))

    def _append(self, op: Op) -> None:
        options = self.options
        changed = _with_memory(_with_partials(op, options.partials_type), options.available_memory or {})
        changed = _with_plan(_with_indices(changed, options.indices_distribution), self.target)
        self.is_changed = self.is_changed or changed is not op
        self.ops.append(changed)

    def _cast(self, tensor: Tensor, dtype: DType, reader: Op) -> Tensor:
        key = (tensor, dtype, reader.leg, reader.block, reader.placement)
        if key not in self._casts:
            self._casts[key] = replace(tensor, name=self._fresh(f"{tensor.name}.{dtype.text}"), dtype=dtype)
            self._append(_cast_op(tensor, self._casts[key], reader))
        return self._casts[key]

    def _wide_result(self, tensor: Tensor, dtype: DType) -> Tensor:
        return replace(tensor, name=self._fresh(f"{tensor.name}.{dtype.text}"), dtype=dtype)

    def _fresh(self, name: str) -> str:
        while name in self._names:
            name += "_"
        self._names.add(name)
        return name


def _widened_types(op: Op) -> Mapping[DType, DType]:
    """Return, for each operand type that the record does not serve, the wider type that it does."""
    spec = spec_of(op)
    if spec is None:
        return {}
    widened = {}
    for dtype in {tensor.dtype: None for tensor in op.inputs}:
        if dtype in spec.dtypes:
            continue
        wider = next((wide for wide in WIDER.get(dtype, ()) if wide in spec.dtypes), None)
        if wider is not None:
            widened[dtype] = wider
    return widened


def _with_partials(op: Op, chosen: str) -> Op:
    """Return an op of the matrix unit with the type of its partials; generic ops keep the attributes of the call.

    What the user has said of the op itself wins. Floats have float partials in any case.
    """
    spec = spec_of(op)
    is_half = any(tensor.dtype is DType.HALF for tensor in op.inputs)
    if spec is not None and spec.kind.startswith(WITH_PRODUCTS) and is_half and chosen == "half":
        return op if "partials" in op.attrs else replace(op, attrs={**op.attrs, "partials": chosen})
    if spec is None or not spec.kind.startswith(WITH_PARTIALS):
        return op
    partials = str(op.attrs.get("partials", chosen)) if is_half else "float"
    return op if op.attrs.get("partials") == partials else replace(op, attrs={**op.attrs, "partials": partials})


def _with_memory(op: Op, available: Mapping[int, float]) -> Op:
    """Return an op that is planned with the memory that its IPU's temporary values may use; the user's word wins."""
    part = available.get(0 if op.placement is None else op.placement.ipu)
    spec = spec_of(op)
    if part is None or "available_memory" in op.attrs or spec is None or not spec.kind.startswith(WITH_MEMORY):
        return op
    return replace(op, attrs={**op.attrs, "available_memory": part})


def _with_indices(op: Op, distribution: str) -> Op:
    """Return an op that is planned for indices that may all name one row, where they do."""
    spec = spec_of(op)
    if distribution == "uniform" or spec is None or not spec.kind.startswith(WITH_INDICES):
        return op
    return replace(op, attrs={**op.attrs, "indices_distribution": distribution})


def _with_plan(op: Op, target: Target) -> Op:
    """Return an op with half partials with how many tiles share the summands of each of its products."""
    spec = spec_of(op)
    if spec is None or spec.products is None or op.attrs.get("partials") != "half" or "summand_tiles" in op.attrs:
        return op
    if spec.summand_tiles is not None:
        tiles = spec.summand_tiles(op, target)
    else:
        tiles = summand_tiles(op, target, spec.products(op))
    return replace(op, attrs={**op.attrs, "summand_tiles": tiles})


def _cast_op(value: Tensor, result: Tensor, near: Op) -> Op:
    """Make a cast that stands where another op stands."""
    return Op(
        kind="cast", inputs=(value,), outputs=(result,), attrs={"dtype": result.dtype}, target=CAST,
        operands=("self",), source=near.source, placement=near.placement, leg=near.leg, block=near.block,
    )
