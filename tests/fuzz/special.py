"""Programs on special values: NaN, infinities, zeros of both signs, ties, ends of the range of integers, no elements.

Operators round little or nothing on them, so that each element has to be what eager has. Where eager may choose between
zeros of both signs, as the larger of two or the sum of a product, ``+ 0.0`` follows, which makes both the positive one.
What torch leaves open, or does in two ways itself, is not asked: which of equal elements the gradient of a k-th or the
largest few goes to, the slope of a clamped or exponential activation at NaN and of a logit at -0.0 (others in its
vectors than behind them), the sign of NaN, neighbours of zero, which are zero on the machine, products of which a zero
hides what is not finite behind it, roots of half as powers, which other types have by another formula, GELU of
infinities (torch 2.13 has NaN for the positive one in float32, and infinity in float64), attention among what is
not finite, of which one of its kernels makes zeros and the other NaN, and among what cancels, and the median of rows
that share their memory, which torch 2.13 finds in what nobody has written.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from tests.fuzz import generate as generator
from tests.fuzz.operators import DRAWS, Call, Draw, Value, _broadcasts, _dim, _one_of
from tests.fuzz.program import Given, Program

LAYOUTS = ("contiguous", "contiguous", "transposed", "strided", "expanded", "channels_last", "rows", "offset")
DTYPES = ("float",) * 6 + ("half", "half", "int", "int", "long", "short", "char", "byte", "bool", "bool")
INTEGERS = ("int", "long", "short", "char", "byte")
SPECIAL: dict[str, tuple[Draw, float]] = {}
"""By name: a draw, and how often it is taken."""

ONE = (
    "-{0}", "{0}.abs()", "{0}.sign()", "{0}.floor()", "{0}.ceil()", "{0}.round()", "{0}.trunc()", "{0} * 2.0",
    "{0} * 0.5", "{0} + 0.0", "{0} - 0.0", "{0} * 1.0", "{0} * -1.0", "{0} * 0.0", "0.0 - {0}", "{0} / 1.0",
    "{0} / -0.0", "1.0 / {0}", "{0} - {0}", "{0} + {0}", "{0} * {0}", "{0} / {0}", "{0}.isnan()", "{0}.isinf()",
    "{0}.isfinite()", "{0}.isposinf()", "{0}.isneginf()", "torch.signbit({0}.nan_to_num())",
    "torch.nan_to_num({0}, 0.25, 2.0, -2.0)", "{0} == {0}", "{0} != {0}", "{0} > 0", "{0} >= 0.0", "{0} < -0.0",
    "{0}.reciprocal()", "{0}.sqrt()", "{0}.rsqrt()", "{0}.square()", "{0}.pow(3)", "{0}.pow(-1)", "{0}.pow(0)",
    "{0}.float().pow(0.5)", "2.0 ** {0}", "0.0 ** {0}.abs()", "torch.heaviside({0}, {0} * 0.0 + 0.5)",
    "{0}.copysign(-1.0)", "{0}.to(torch.bool)", "{0}.logical_not()", "{0}.clamp(-1.0, 2.0)", "{0}.clamp(min=0.0) + 0.0",
    "{0}.clamp(max=0.0) + 0.0", "{0}.clamp(2.0, -1.0)", "{0}.clamp(min=float('nan'))", "F.relu({0}) + 0.0",
    "F.relu6({0}.detach()) + 0.0", "F.hardtanh({0}.detach())", "F.threshold({0}, 0.0, -1.0)", "F.leaky_relu({0}, 0.5)",
    "F.hardshrink({0}.detach(), 0.5)", "F.softshrink({0}.detach(), 0.5) + 0.0",
    "F.hardsigmoid({0}.detach() * torch.inf) + 0.0", "torch.where({0} > 0, {0}, -0.0)",
    "torch.where({0} == 0.0, -1.0, {0})", "{0}.masked_fill({0}.isnan(), 1.0)", "{0}.masked_fill({0} > 0, -torch.inf)",
    "{0}.clamp(-9, 9).nan_to_num().int()", "{0}.to(HALF, copy=True)", "{0}.to(FLOAT, copy=True)",
    "({0}.float() * 30000.0).to(HALF)", "torch.exp({0} * torch.inf)", "torch.sigmoid({0} * torch.inf)",
    "torch.tanh({0} * torch.inf)", "torch.erf({0} * torch.inf)", "F.softplus({0} * torch.inf)", "F.silu({0})",
    "F.gelu({0}.clamp(-3, 3))", "F.elu({0}.detach())", "F.gelu({0}, approximate='tanh')", "F.mish({0})",
    "F.hardswish({0}.detach())", "F.logsigmoid({0})", "F.selu({0}.detach())", "F.celu({0}.detach())",
    "torch.log({0})", "torch.log2({0})",
    "torch.log1p({0})", "torch.expm1({0})", "torch.exp({0})", "torch.sin({0})", "torch.atan({0})", "torch.sinc({0})",
    "torch.xlogy({0}, {0})", "torch.special.entr({0})", "torch.logit({0}.detach())", "torch.lgamma({0}.abs())",
    "{0}.fmod(1.5)", "{0}.remainder(1.5)", "torch.frac({0})",
    "{0}.view({0}.shape).T if {0}.dim() == 2 else {0}.clone()",
    "torch.nan_to_num({0}).sign().contiguous().view(torch.int32)",
    "torch.asinh({0})", "{0}.nan_to_num(0.0).relu().neg()", "{0}.relu().neg().abs()", "{0}.softmax(-1)",
)
TWO = (
    "{0} + {1}", "{0} - {1}", "{0} * {1}", "{0} / {1}", "torch.maximum({0}, {1}) + 0.0",
    "torch.minimum({0}, {1}) + 0.0", "torch.fmax({0}, {1}) + 0.0", "torch.fmin({0}, {1}) + 0.0",
    "{0}.copysign({1}.nan_to_num())",
    "{0} == {1}", "{0} != {1}", "{0} < {1}", "{0} <= {1}", "{0}.fmod({1})", "{0}.remainder({1})",
    "torch.floor_divide({0}, {1})", "torch.where({0} > {1}, {0}, {1})", "torch.where({0}.isnan(), {1}, {0})",
    "{0}.clamp(min={1}) + 0.0", "{0}.pow({1})", "torch.atan2({0}, {1})", "torch.hypot({0}, {1})",
    "torch.logaddexp({0}, {1})", "torch.addcmul({0}, {0}, {1})", "torch.addcdiv({0}, {0}, {1})",
    "torch.add({0}, {1}, alpha=0.0)", "torch.lerp({0}, {1}, 0.5)", "torch.isclose({0}, {1}, equal_nan=True)",
    "torch.heaviside({0}, {1})", "torch.nextafter({0}.masked_fill({0} == 0, 1.0), {1})", "({0} > 0) & ({1} > 0)",
    "torch.xlogy({0}, {1})",
    "F.mse_loss({0} + {1}, {0} + {1})",
)
ALONG = (
    "{0}.amax(DIM) + 0.0", "{0}.amin(DIM, keepdim=True) + 0.0", "{0}.max(DIM).values + 0.0", "{0}.max(DIM).indices",
    "{0}.min(DIM).indices", "{0}.argmax(DIM)", "{0}.argmin(DIM, keepdim=True)", "{0}.aminmax(dim=DIM).max + 0.0",
    "{0}.sort(DIM, stable=True).values + 0.0", "{0}.sort(dim=DIM, descending=True, stable=True).indices",
    "{0}.argsort(dim=DIM, stable=True)", "{0}.detach().topk(1, DIM).values + 0.0", "{0}.cummax(DIM).values + 0.0",
    "{0}.cummax(DIM).indices", "{0}.cummin(DIM).indices", "{0}.cumsum(DIM)", "{0}.cumprod(DIM)",
    "{0}.sum(DIM) + 0.0", "{0}.mean(DIM) + 0.0", "{0}.prod(DIM)", "{0}.nansum(DIM) + 0.0", "{0}.nanmean(DIM) + 0.0",
    "{0}.logsumexp(DIM)", "{0}.logcumsumexp(DIM)", "{0}.softmax(DIM)", "{0}.log_softmax(DIM)", "F.softmin({0}, DIM)",
    "{0}.masked_fill({0} > -9, -torch.inf).softmax(DIM)", "{0}.masked_fill({0} > 0, -torch.inf).log_softmax(DIM)",
    "{0}.detach().contiguous().median(DIM).values + 0.0", "{0}.detach().contiguous().nanmedian(DIM).values + 0.0",
    "{0}.detach().contiguous().kthvalue(1, DIM).values + 0.0", "{0}.count_nonzero(DIM)", "{0}.any(DIM)", "{0}.all(DIM)",
    "{0}.var(DIM)", "{0}.std(DIM, correction=0)", "{0}.norm(dim=DIM)",
    "torch.linalg.vector_norm({0}, torch.inf, dim=DIM)", "torch.linalg.vector_norm({0}, 0, dim=DIM)",
    "torch.linalg.vector_norm({0}, 1, dim=DIM)", "F.normalize({0}, dim=DIM)", "{0}.diff(dim=DIM)", "{0}.flip(DIM)",
    "{0}.roll(1, DIM)", "{0}.narrow(DIM, 0, 0)", "{0}.select(DIM, -1)", "{0}.unsqueeze(DIM)", "{0}.unfold(DIM, 2, 1)",
    "{0}.unfold(DIM, 1, 2).sum(-1) + 0.0", "torch.cat([{0}, {0}.narrow(DIM, 0, 0)], DIM)",
    "torch.stack([{0}, {0}], DIM)", "torch.cat([{0}, -{0}], DIM)", "{0}.chunk(2, DIM)[-1]", "{0}.unbind(DIM)[0]",
    "{0}.movedim(DIM, 0)", "{0}.transpose(DIM, 0)", "{0}.repeat_interleave(2, DIM)",
    "{0}.index_select(DIM, torch.tensor([0, 0]))", "{0}.index_select(DIM, torch.tensor([], dtype=torch.long))",
    "{0}.gather(DIM, {0}.argsort(DIM, stable=True)) + 0.0",
    "{0}.scatter_reduce(DIM, torch.zeros_like({0}, dtype=torch.long), {0}, 'amax') + 0.0",
    "{0}.scatter_reduce(DIM, torch.zeros_like({0}, dtype=torch.long), {0}, 'amin', include_self=False) + 0.0",
    "{0}.scatter_add(DIM, torch.zeros_like({0}, dtype=torch.long), {0}) + 0.0",
    "{0}.scatter(DIM, torch.zeros_like({0}.narrow(DIM, 0, 1), dtype=torch.long), -0.0)",
    "{0}.select_scatter({0}.select(DIM, 0) * 2, DIM, -1)", "torch.renorm({0}, 2, DIM, 0.5)",
    "torch.searchsorted({0}.nan_to_num().sort(DIM).values.movedim(DIM, -1), {0}.nan_to_num().movedim(DIM, -1))",
)
WHOLE = (
    "{0}.sum() + 0.0", "{0}.max() + 0.0", "{0}.min() + 0.0", "{0}.mean() + 0.0", "{0}.argmax()", "{0}.argmin()",
    "{0}.prod()", "{0}.any()", "{0}.all()", "{0}.isnan().any()", "{0}.norm()", "{0}.flatten().median() + 0.0",
    "{0}.squeeze()", "{0}.reshape(-1)", "{0}.expand(2, *{0}.shape)", "{0}.expand(0, *{0}.shape)", "{0}.unsqueeze(0)",
    "{0}.flatten()[:0]", "{0}.new_zeros(0)", "{0}.detach() * 1", "{0}.flip(list(range({0}.dim())))",
    "{0}.permute(tuple(range({0}.dim() - 1, -1, -1)))", "{0}.clone(memory_format=torch.contiguous_format)",
    "torch.zeros_like({0})", "torch.full_like({0}, -0.0)", "{0}.flatten().cumsum(0)", "{0}.where({0} > 0, {0} * 2)",
    "{0}.reshape(1, -1).expand(2, -1)[:, ::2]", "{0}.count_nonzero()", "{0}.repeat(2, *[1] * {0}.dim())",
    "{0}.flatten()[:2].clone().as_strided((2, 2), (0, 1))", "torch.atleast_2d({0}).diagonal()",
    "torch.atleast_2d({0}).mT", "torch.atleast_2d({0}).tril()", "torch.atleast_2d({0})[..., 0, ::2]",
)
MATRICES = (
    "{0} @ {0}.mT + 0.0", "{0} @ {0}.new_ones({0}.shape[-1], 2) + 0.0", "{0}[..., :0] @ {0}[..., :0].mT",
    "{0}[..., :0, :] @ {0}.mT", "F.linear({0}, {0}.new_ones(3, {0}.shape[-1]), {0}.new_ones(3))",
    "torch.einsum('...ij->...', {0}) + 0.0", "F.layer_norm({0}, {0}.shape[-1:])", "F.rms_norm({0}, {0}.shape[-1:])",
    "F.cross_entropy({0}.flatten(0, -2), {0}.flatten(0, -2).argmax(-1))", "{0}.tril(-1)", "{0}.diagonal(0, -2, -1) * 2",
    "F.cross_entropy({0}.flatten(0, -2), {0}.flatten(0, -2).argmax(-1) * 0 - 100)", "{0}[..., [0], :]",
    "{0}[:, None, ::2]", "F.embedding(torch.zeros(0, dtype=torch.long), {0}.flatten(0, -2))",
    "{0}.T if {0}.dim() == 2 else {0}.mT",
    "F.scaled_dot_product_attention(*[{0}.detach().nan_to_num(0.0, 3.0, -3.0).abs()] * 3)",
    "{0}.flatten(0, -2).tril().sum(0) + 0.0",
    "F.scaled_dot_product_attention(*[{0}.detach().nan_to_num(0.0, 3.0, -3.0).abs()] * 3, attn_mask=({0}[..., :1] > "
    "0).expand(*{0}.shape[:-1], {0}.shape[-2]))", "torch.cdist({0}, {0})", "F.pad({0}, (1, 0), value=torch.nan)",
    "F.pad({0}, (1, -1, 0, 1), value=-torch.inf)",
)
IMAGES = (
    "F.max_pool2d({0}, 2, 1) + 0.0", "F.max_pool2d({0}, 2, 2, 1, ceil_mode=True) + 0.0", "F.avg_pool2d({0}, 2, 1)",
    "F.max_pool2d({0}, 2, return_indices=True)[1]", "F.adaptive_max_pool2d({0}, (1, 2)) + 0.0",
    "F.avg_pool2d({0}, 2, 1, 1)", "F.adaptive_avg_pool2d({0}, 1) + 0.0",
    "F.conv2d({0}, {0}.new_ones(2, {0}.shape[1], 2, 2), padding=1)",
    "F.conv2d({0}[:0], {0}.new_ones(2, {0}.shape[1], 1, 1))", "F.interpolate({0}, scale_factor=2.0)",
    "F.conv2d({0}, {0}.new_ones({0}.shape[1], 1, 2, 1), groups={0}.shape[1])", "F.pixel_unshuffle({0}, 1)",
    "F.batch_norm({0}, None, None, training=True)", "F.group_norm({0}, 1) + 0.0",
    "F.pad({0}, (1, 1, 0, 1), mode='replicate')",
    "F.conv_transpose2d({0}, {0}.new_ones({0}.shape[1], 1, 2, 2), stride=2)", "F.unfold({0}, 2, padding=1)",
    "F.interpolate({0}, scale_factor=2.0, mode='bilinear')",
    "{0}.contiguous(memory_format=torch.channels_last)", "{0}.sum((2, 3)) + 0.0", "{0}.amax((0, 2)) + 0.0",
    "{0}.flatten(1)", "{0}.permute(0, 2, 3, 1) * 2",
)
INTEGRAL = (
    "{0} + 1", "{0} - 1", "{0} * 2", "{0} * {0}", "-{0}", "{0}.abs()", "{0}.sign()", "{0} // 3", "{0} // -3", "{0} % 3",
    "{0} % -3", "{0} >> 1", "{0} << 2", "~{0}", "{0} & 3", "{0} | 4", "{0} ^ -1", "{0}.sum()",
    "{0}.sum(dtype=torch.int32)", "{0}.prod()", "{0}.pow(2)", "{0}.pow(3)", "{0}.float()", "{0}.half()", "{0}.int()",
    "{0}.long()", "{0}.short()", "{0}.char()", "{0}.byte()", "{0}.bool()", "{0} / 2", "{0} * 0.5", "{0} + 1.5",
    "{0} > 1", "{0} == 0", "{0}.clamp(-1, 3)", "{0}.clamp(min=2)", "{0}.max()", "{0}.float().mean()",
    "{0}.flatten().cumsum(0)", "{0}.flatten().sort().values", "{0}.flatten().argmax()", "{0}.square()",
    "{0}.neg().neg()", "1 - {0}", "2 // ({0} | 1)", "torch.fmod({0}, 3)", "{0}.reciprocal()", "{0}.sqrt()",
    "F.relu({0})", "{0}.flatten().amax(0)", "{0}.flatten().amin(0, keepdim=True)",
    "torch.div({0}, 3, rounding_mode='trunc')", "torch.div({0}, -3, rounding_mode='floor')", "{0}.bitwise_not()",
    "{0}.logical_not()", "{0}.any()", "{0}.all()", "{0} + True", "torch.where({0} > 1, {0}, 0)", "{0}.clone().fill_(7)",
    "{0}.flatten().diff()", "torch.full_like({0}, 3)", "{0}.unsqueeze(-1).expand(*{0}.shape, 2)", "{0}.floor()",
)
INTEGRAL_TWO = (
    "{0} + {1}", "{0} - {1}", "{0} * {1}", "{0} & {1}", "{0} | {1}", "{0} ^ {1}", "{0} == {1}", "{0} < {1}",
    "torch.maximum({0}, {1})", "torch.minimum({0}, {1})", "{0} // ({1} & 7 | 1)", "{0} % ({1} & 7 | 1)", "{0} / {1}",
    "torch.where({0} > {1}, {0}, {1})", "torch.gcd({0} & 31, {1} & 15)", "{0}.clamp(max={1})", "{0} >> ({1} & 7)",
    "{0} << ({1} & 7)", "torch.fmod({0}, {1} & 7 | 1)", "{0}.logical_xor({1})", "torch.add({0}, {1}, alpha=3)",
    "torch.cat([{0}.flatten(), {1}.flatten()])",
)
LOGICAL = (
    "~{0}", "{0}.float()", "{0}.half()", "{0}.int()", "{0} * 2", "{0} + 1", "{0} + 0.5", "{0}.sum()", "{0}.any()",
    "{0}.all()", "{0}.logical_not()", "{0} == False", "{0} & True", "{0} | False", "{0} ^ True", "{0} + {0}",
    "{0} * {0}", "{0} < True", "{0}.flatten().cumsum(0)", "{0}.flatten().max()",
    "{0}.flatten().sort(stable=True).indices", "{0}.byte() - 1", "torch.where({0}, torch.inf, -0.0)",
    "torch.where({0}, 1, 2)", "{0}.float().argmax()", "{0}.to(torch.int8)", "{0} / 2", "{0}.flatten().prod()",
    "{0}.unsqueeze(0).expand(2, *{0}.shape)", "{0}.count_nonzero()", "{0}.clone().logical_xor_({0})",
)
MIXED = (
    "{0} * {1}", "{0} + {1}", "{0} - {1}", "torch.where({1} > 0, {0}, {1})", "{0} / {1}", "{0} > {1}", "{0} == {1}",
    "torch.add({0}, {1}, alpha=2)", "torch.maximum({0}, {1}) + 0.0", "{0}.masked_fill({1} != 0, -0.0)",
    "torch.where({1} != 0, {0}, -{0})", "{0}.clone().mul_({1})", "torch.zeros_like({0}).copy_({1})",
)
WRITES = (
    "{r} = {0}.clone()\n{r}.T.mul_(2.0) if {r}.dim() == 2 else {r}.mul_(-1.0)",
    "{r} = {0}.clone()\n{r}[{r} != {r}] = 0.25", "{r} = {0}.clone()\n{r}.flatten()[::2] = torch.nan",
    "{r} = {0} * 1.0\n{r}.transpose(DIM, 0)[0].unsqueeze(0).neg_()",
    "{r} = {0} * 1.0\nfor one in {r}.unbind(DIM): one.add_(1.0)",
    "{r} = {0} * 1.0\nfor one in {r}.chunk(2, DIM): one.mul_(2.0)",
    "{r} = {0} * 1.0\n{r}.select(DIM, 0).copy_({r}.select(DIM, -1).clone())",
    "{r} = {0} * 1.0\n{r}.unfold(DIM, 1, 1).mul_(0.0)",
    "{r} = {0} * 1.0\n{r}.narrow(DIM, 0, 1).narrow(DIM, 0, 1).fill_(-0.0)",
    "{r} = {0} * 1.0\n{r}[..., None].squeeze(-1).abs_()",
    "{r} = torch.zeros_like({0})\nfor step in range({0}.shape[0]): {r}[step] = {0}[step - 1] + {r}[step - 1]",
    "{r} = {0} * 1.0\n{r}.narrow(DIM, 0, 0).fill_(9.0)", "{r} = {0} * 1.0\n{r}[..., -1:] -= {r}[..., :1].clone()",
    "{r} = {0} * 1.0\nother = {r}.T\n{r}.zero_()\nother.add_(1.0)", "{r} = {0} * 1.0\n{r}.clamp_(min=0.5).sub_({0})",
    "{r} = {0} * 1.0\n{r}.view(-1)[0] = torch.inf", "{r} = {0} * 1.0\n{r}.flatten()[-1].fill_(-torch.inf)",
    "{r} = {0} * 1.0\n{r}.masked_fill_({r}.isnan(), 0.0).masked_fill_({r} == 0, -0.0)",
    "{r} = {0} * 1.0\n{r}.copy_({r} > 0)", "{r} = {0} * 1.0\n{r}[torch.tensor([0, 0])] += 1.0",
    "{r} = {0} * 1.0\n{r}.index_add_(0, torch.tensor([0, 0]), {0}[[0, 0]])", "{0}.mul_(-1.0)\n{r} = {0}",
    "{0}.narrow(DIM, 0, 1).neg_()\n{r} = {0}", "{0}.transpose(DIM, 0).abs_()\n{r} = {0}",
    "{0}.unsqueeze(0).nan_to_num_(0.5)\n{r} = {0}",
    "{r} = {0} * 1.0\n{r}.permute(tuple(range({r}.dim() - 1, -1, -1)))[0].zero_()",
)
BRANCHES = (
    "torch.cond({0}.sum() > 0, lambda a: a * 2.0, lambda a: a - 1.0, ({0},))",
    "torch.cond({0}.isnan().any(), lambda a: a.nan_to_num(0.5, 2.0, -2.0), lambda a: a.clone(), ({0},))",
)


def _fits(value: Value, kind: str) -> bool:
    return {
        "floating": value.is_floating, "integral": value.dtype in INTEGERS, "logical": value.dtype == "bool",
        "other": not value.is_floating,
    }[kind]


def _enter(
    name: str, weight: float, texts: Sequence[str], kinds: tuple[str, ...], least: int = 0, most: int = 9,
) -> None:
    """Enter a table of texts.

    Args:
        name: Of the table.
        weight: How often it is taken.
        texts: With DIM for one of the first operand's dimensions.
        kinds: What each operand is.
        least: Dimensions of the first operand.
        most: So many, too.
    """

    def draw(rng: random.Random, values: Sequence[Value]) -> Call | None:
        first = _one_of(rng, values, lambda one: _fits(one, kinds[0]) and least <= len(one.shape) <= most)
        text = rng.choice(texts)
        if first is None:
            return None
        operands = [first]
        for kind in kinds[1:]:
            fits = [one for one in values if _fits(one, kind) and _broadcasts(first.shape, one.shape)]
            other = _one_of(rng, fits, lambda one: True)
            if other is None:
                return None
            operands.append(other)
        if "DIM" in text:
            text = text.replace("DIM", str(_dim(rng, first)))
        # Torch says of a write into elements that share memory only that it is undefined.
        if text.startswith("{0}.") and "_(" in text and (0 in first.tensor.stride() or first.tensor.numel() == 0):
            return None
        return Call(text, tuple(operands), is_view=text.startswith("{0}.") and "\n" in text)

    SPECIAL[name] = draw, weight


_enter("one", 5, ONE, ("floating",))
_enter("two", 4, TWO, ("floating", "floating"))
_enter("along", 5, ALONG, ("floating",), least=1)
_enter("whole", 2, WHOLE, ("floating",))
_enter("matrices", 2, MATRICES, ("floating",), least=2)
_enter("images", 1.5, IMAGES, ("floating",), least=4, most=4)
_enter("integral", 3, INTEGRAL, ("integral",))
_enter("integral of two", 2.5, INTEGRAL_TWO, ("integral", "integral"))
_enter("logical", 1.5, LOGICAL, ("logical",))
_enter("mixed", 2, MIXED, ("floating", "other"))
_enter("writes", 3, WRITES, ("floating",), least=1)
_enter("branches", 0.3, BRANCHES, ("floating",))
SPECIAL["view"] = DRAWS["view"][0], 3
SPECIAL["joined"] = DRAWS["joined"][0], 1
SPECIAL["parted"] = DRAWS["parted"][0], 0.5


def _inputs(rng: random.Random) -> tuple[Given, ...]:
    """Draw inputs whose sizes meet: each dimension is one of three sizes, seldom an empty one."""
    sizes = rng.sample((1, 2, 3, 4, 5, 8, 17), 3)
    if rng.random() < 0.15:
        sizes[0] = 0
    inputs = []
    for number in range(rng.randint(2, 5)):
        shape = tuple(rng.choice(sizes) for _ in range(rng.choice((0, 0, 1, 2, 2, 2, 3, 4))))
        dtype = rng.choice(DTYPES) if number else "float"
        layout = rng.choice(LAYOUTS) if shape else "contiguous"
        if (layout == "channels_last" and len(shape) < 3) or (layout == "expanded" and not shape[0]):
            layout = "transposed"
        is_trained = dtype in ("float", "half") and layout != "expanded" and rng.random() < 0.5
        inputs.append(Given(shape, dtype, layout, is_trained, seed=rng.randrange(1 << 30), is_special=True))
    return tuple(inputs)


def generate(seed: int) -> Program:
    """Return the program of a seed."""
    return generator.generate(seed, SPECIAL, _inputs)
