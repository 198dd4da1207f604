"""Convolution networks that are trained: layouts in blocks, norms by the batch, checkpoints, chains and reductions.

A network is drawn layer by layer. Weights are inputs that ask for gradients, running statistics inputs that the network
writes into, and losses whatever its last layers leave.
"""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass, field

from tests.fuzz.generate import has_gradients
from tests.fuzz.program import Given, Node, Program

CHANNELS = (1, 3, 4, 8, 12, 16, 17, 24, 32, 48)
SIDES = (1, 2, 3, 5, 7, 8, 12, 16)
MOST_WORK = 3e6
ACTIVATIONS = (
    "F.relu({0})", "F.relu({0})", "F.relu({0}, inplace=True)", "F.relu6({0})", "F.silu({0})", "F.hardswish({0})",
    "F.gelu({0})", "F.leaky_relu({0}, 0.1)", "torch.tanh({0})", "F.hardsigmoid({0}) * {0}", "F.elu({0})",
    "F.silu({0}, inplace=True)", "F.mish({0})",
)
CHAINS = (
    "{0} * {1}.sum(1, keepdim=True)", "{0} - ({0} * {1}).mean((2, 3), keepdim=True)",
    "({0} * {1}).sum((0, 2, 3), keepdim=True).tanh() + {0}", "{0} / (1.0 + ({0} - {1}).pow(2).sum(1, keepdim=True))",
    "{0} * torch.sigmoid(({0} + {1}).amax((2, 3), keepdim=True))", "{0} * ({0} * {1}).softmax(1)",
    "{0} * ({0} * {1}).flatten(1).sum(1)[:, None, None, None].tanh()", "{0} + {1} * 0.5", "{0} * torch.sigmoid({1})",
    "torch.maximum({0}, {1})", "{0} + {1}.flip(-1)", "{0} + ({0} + {1}).var((2, 3), unbiased=False, keepdim=True)",
)
ENDS = (
    "{0}.mean((2, 3))", "{0}.flatten(1).sum(1)", "{0}.amax((2, 3))", "F.adaptive_avg_pool2d({0}, 1).flatten(1)",
    "F.log_softmax({0}.mean((2, 3)), 1)", "({0} * {0}).sum(-1)", "{0}", "{0}.sum()", "{0}.permute(0, 2, 3, 1) * 2.0",
)


@dataclass(slots=True)
class _Network:
    """A network that grows.

    Attributes:
        rng: Draws.
        dtype: Of its values and weights.
        inputs: So far; numbers of values that lines make are those behind them once all are known.
        nodes: Lines, whose operands are ``("in", number)`` or ``("made", number of the line)``.
        shape: Of the last value, ``[N, C, H, W]``.
        last: The last value.
        earlier: Values by their shapes, for what joins two.
    """

    rng: random.Random
    dtype: str
    shape: tuple[int, int, int, int]
    inputs: list[Given] = field(default_factory=list)
    nodes: list[tuple[str, tuple[tuple[str, int], ...], bool]] = field(default_factory=list)
    last: tuple[str, int] = ("in", 0)
    earlier: dict[tuple[int, ...], list[tuple[str, int]]] = field(default_factory=dict)

    def given(self, shape: tuple[int, ...], **how: object) -> tuple[str, int]:
        """Return an input more."""
        self.inputs.append(Given(shape, self.dtype, seed=self.rng.randrange(1 << 30), **how))  # type: ignore[arg-type]
        return "in", len(self.inputs) - 1

    def weight(self, *shape: int, offset: float = 0.0, scale: float = 1.0) -> tuple[str, int]:
        """Return a weight, of which few are frozen."""
        layout = "channels_last" if len(shape) == 4 and self.rng.random() < 0.1 else "contiguous"
        gradient = layout == "channels_last" or self.rng.random() < 0.9
        return self.given(shape, gradient=gradient, layout=layout, offset=offset, scale=scale)

    def line(self, text: str, *operands: tuple[str, int], shape: tuple[int, int, int, int] | None = None) -> None:
        """Put a line behind the others; an operand that it writes into is read by nobody else from then on."""
        written = "inplace=True" in text
        if written:
            for values in self.earlier.values():
                values[:] = [value for value in values if value != operands[0]]
        self.nodes.append((text, operands, written))
        self.last = "made", len(self.nodes) - 1
        self.shape = shape or self.shape
        self.earlier.setdefault(self.shape, []).append(self.last)

    def normalisation(self) -> tuple[str, tuple[tuple[str, int], ...]]:
        """Return a norm of ``{0}`` by operands from ``{1}`` on, or of groups without any."""
        rng, channels = self.rng, self.shape[1]
        kind = rng.choices(("batch", "kept", "frozen", "group", "instance"), (3, 4, 1, 1, 1))[0]
        affine = (self.weight(channels, offset=1.0), self.weight(channels)) if rng.random() < 0.8 else ()
        if kind in ("group", "instance"):
            groups = rng.choice([g for g in (1, 2, 4, channels) if channels % g == 0])
            how = ", {1}, {2}" if affine else ""
            return f"F.group_norm({{0}}, {groups}{how})", affine
        scale = "{1}, {2}" if affine else "None, None"
        if kind == "batch":
            return f"F.batch_norm({{0}}, None, None, {scale}, training=True)", affine
        running = self.given((channels,), kept=True), self.given((channels,), offset=9.0, kept=True)
        first = 1 + len(affine)
        texts = f"{{{first}}}, {{{first + 1}}}"
        if kind == "frozen":
            return f"F.batch_norm({{0}}, {{{first}}}, {{{first + 1}}}.abs() + 0.5, {scale})", (*affine, *running)
        momentum = rng.choice((0.1, 0.1, 0.3, 1.0))
        return f"F.batch_norm({{0}}, {texts}, {scale}, training=True, momentum={momentum})", (*affine, *running)

    def convolution(self) -> tuple[str, tuple[tuple[str, int], ...], tuple[int, int, int, int]] | None:
        """Return a convolution of ``{0}`` by ``{1}``, and what it makes of the shape; None where it does not fit."""
        rng, (samples, channels, height, width) = self.rng, self.shape
        kernel, stride, dilation = rng.choice((1, 1, 2, 3, 3, 5)), rng.choice((1, 1, 1, 2)), rng.choice((1, 1, 1, 2))
        groups = rng.choice((1, 1, 1, channels, channels, 2))
        if channels % groups:
            return None
        filters = rng.choice(CHANNELS) if groups == 1 else groups * rng.choice((1, 1, 2, 4))
        padding = rng.choice((0, kernel // 2, kernel // 2))
        sides = tuple((side + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1 for side in (height, width))
        work = samples * filters * channels * height * width * kernel**2 / groups
        if min(sides) < 1 or work > MOST_WORK or filters > 96:
            return None
        small = round((channels // groups * kernel**2) ** -0.5, 3)  # as weights are begun with
        operands = [self.weight(filters, channels // groups, kernel, kernel, scale=small)]
        bias = ""
        if rng.random() < 0.3:
            operands.append(self.weight(filters))
            bias = ", {2}"
        settings = f"stride={stride}, padding={padding}, dilation={dilation}, groups={groups}"
        return f"F.conv2d({{0}}, {{1}}{bias}, {settings})", tuple(operands), (samples, filters, sides[0], sides[1])

    def checkpointed(self) -> None:
        """Let a convolution, a norm and an activation be one checkpoint, whose backward computes them again."""
        made = self.convolution()
        if made is None:
            return
        text, weights, shape = made
        self.shape = shape
        norm, others = self.normalisation()
        if "momentum" in norm:  # a batch counts twice in eager, which computes it again
            norm = norm[: norm.index("momentum=")] + "momentum=0.0)"
        operands = (*weights, *others)
        names = [f"a{place}" for place in range(1 + len(operands))]
        second = {f"{{{place}}}": f"a{place + len(weights)}" for place in range(1, 1 + len(others))}
        activation = self.rng.choice(ACTIVATIONS[:2] + ACTIVATIONS[3:6])
        inner = text
        for place, name in enumerate(names[: 1 + len(weights)]):
            inner = inner.replace(f"{{{place}}}", name)
        inner = f"inner({inner})"
        for mark, name in second.items():
            norm = norm.replace(mark, name)
        body = activation.replace("{0}", f"({norm.replace('{0}', inner)})") if "* {0}" not in activation else norm
        marks = ", ".join(f"{{{place}}}" for place in range(len(names)))
        self.line(
            f"torch.utils.checkpoint.checkpoint(lambda {', '.join(names)}: {body}, {marks}, use_reentrant=False)",
            self.last, *operands, shape=shape,
        )

    def layer(self) -> None:
        """Put a layer behind the others."""
        rng, (samples, channels, height, width) = self.rng, self.shape
        kind = rng.choices(
            ("block", "checkpoint", "norm", "activation", "join", "squeeze", "pool", "cat"), (6, 2, 1, 1, 4, 1, 1, 1),
        )[0]
        fellows = self.earlier.get(self.shape, [self.last])
        match kind:
            case "block":
                made = self.convolution()
                if made is None:
                    return
                text, weights, shape = made
                self.line(text, self.last, *weights, shape=shape)
                if rng.random() < 0.8:
                    norm, operands = self.normalisation()
                    self.line(norm, self.last, *operands)
                if rng.random() < 0.8:
                    self.line(rng.choice(ACTIVATIONS), self.last)
            case "checkpoint":
                self.checkpointed()
            case "norm":
                norm, operands = self.normalisation()
                self.line(norm, self.last, *operands)
            case "activation":
                self.line(rng.choice(ACTIVATIONS), self.last)
            case "join" if fellows:
                self.line(rng.choice(CHAINS), self.last, rng.choice(fellows))
            case "squeeze":
                inner = max(1, channels // 4)
                self.line(
                    "{0} * torch.sigmoid(F.conv2d(F.relu(F.conv2d({0}.mean((2, 3), keepdim=True), {1})), {2}))",
                    self.last, self.weight(inner, channels, 1, 1), self.weight(channels, inner, 1, 1),
                )
            case "pool" if min(height, width) > 2:
                name = rng.choice(("max", "avg"))
                sides = tuple((side + 2 - 3) // 2 + 1 for side in (height, width))
                self.line(f"F.{name}_pool2d({{0}}, 3, 2, 1)", self.last, shape=(samples, channels, sides[0], sides[1]))
            case "cat" if fellows and 2 * channels <= 64:
                self.line("torch.cat([{0}, {1}], 1)", self.last, rng.choice(fellows),
                          shape=(samples, 2 * channels, height, width))

    def program(self) -> Program:
        """Return it."""
        self.line(self.rng.choice(ENDS), self.last)
        first = len(self.inputs)
        nodes = tuple(
            Node(text, tuple(number if kind == "in" else first + number for kind, number in operands), (self.dtype,),
                 is_view=written)
            for text, operands, written in self.nodes
        )
        cuts = sorted(self.rng.sample(range(1, len(nodes)), min(len(nodes) - 1, self.rng.randint(0, 3))))
        return Program(tuple(self.inputs), nodes, (first + len(nodes) - 1,), tuple(cuts))


def generate(seed: int) -> Program:
    """Return the network of a seed."""
    rng = random.Random(f"network {seed}")
    while True:
        program = _drawn(rng)
        if has_gradients(program):
            return program


def _drawn(rng: random.Random) -> Program:
    shape = rng.choice((1, 2, 3, 4)), rng.choice(CHANNELS), rng.choice(SIDES), rng.choice(SIDES)
    network = _Network(rng, "half" if rng.random() < 0.08 else "float", shape)
    layout = rng.choice(("contiguous", "contiguous", "channels_last"))
    # Eager's gradient of a group norm ends the process where its operand lies so and asks for none: weights too.
    network.given(shape, gradient=layout == "channels_last" or rng.random() < 0.3, layout=layout)
    layers = rng.randint(2, 7)
    for _ in range(8 * layers):
        if len(network.nodes) >= layers:
            break
        network.layer()
    if not network.nodes:
        network.line("F.relu({0})", network.last)
    return _without_unread(network.program())


def _without_unread(program: Program) -> Program:
    """Return a program without inputs that nothing reads: of layers that did not fit."""
    read = {number for node in program.nodes for number in node.operands} | {0}
    kept = [number for number in range(len(program.inputs)) if number in read]
    moved = {number: place for place, number in enumerate(kept)}
    lost = len(program.inputs) - len(kept)
    first = len(program.inputs)
    nodes = tuple(
        dataclasses.replace(node, operands=tuple(moved[n] if n < first else n - lost for n in node.operands))
        for node in program.nodes
    )
    return dataclasses.replace(
        program, inputs=tuple(program.inputs[number] for number in kept), nodes=nodes,
        outputs=tuple(number - lost for number in program.outputs),
    )
