"""A wide vocabulary: operators that programs have less often, drawn beside those of `tests.fuzz.operators`.

Each family is a table of texts with what their operands must be; a new operator is a line in one of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from tests.fuzz.operators import DRAWS, Call, Draw, Value, _broadcasts, _dim, _one_of

WIDE: dict[str, tuple[Draw, float]] = {}
"""By name: a draw, and how often it is taken."""


def _drawn(weight: float) -> Callable[[Draw], Draw]:
    def enter(draw: Draw) -> Draw:
        WIDE[draw.__name__.lstrip("_")] = (draw, weight)
        return draw

    return enter


def _filled(value: Value | None, dims: int = 0, least: int = 1) -> bool:
    return value is not None and len(value.shape) >= dims and min(value.shape, default=1) >= least


def _dense(rng: random.Random, values: Sequence[Value], dims: int = 0, most: int = 9, least: int = 1) -> Value | None:
    """Draw a value of floating point without an empty dimension."""
    return _one_of(
        rng, values, lambda one: one.is_floating and dims <= len(one.shape) <= most and _filled(one, 0, least),
    )


def _like(rng: random.Random, values: Sequence[Value], value: Value) -> Value:
    """Draw a value of the same type and sizes, which may be the value itself."""
    return _one_of(rng, values, lambda one: one.dtype == value.dtype and one.shape == value.shape) or value


def _integers(rng: random.Random, values: Sequence[Value], dims: int = 0) -> Value | None:
    return _one_of(rng, values, lambda one: one.dtype in ("int", "long") and one.tensor.numel() > 0
                   and len(one.shape) >= dims)


UNARY = (
    "F.celu({0}, 0.7)", "F.selu({0})", "F.hardtanh({0}, -0.5, 0.8)", "F.hardsigmoid({0})", "F.relu6({0} * 4.0)",
    "F.logsigmoid({0})", "F.softsign({0})", "F.tanhshrink({0})", "F.threshold({0}, 0.2, -0.3)",
    "F.hardshrink({0}, 0.4)", "F.softshrink({0}, 0.4)", "F.rrelu({0}, 0.1, 0.3, training=False)",
    "F.dropout({0}, 0.5, training=False)", "torch.expm1(-{0}.abs())", "torch.log1p({0}.abs())", "torch.asinh({0})",
    "torch.acosh({0}.abs() + 1.5)", "torch.atanh(torch.tanh({0}) * 0.9)", "torch.sinh({0}.clamp(-2, 2))",
    "torch.cosh({0}.clamp(-2, 2))", "torch.asin(torch.tanh({0}) * 0.9)", "torch.acos(torch.tanh({0}) * 0.9)",
    "torch.tan({0}.clamp(-1, 1))", "torch.erfc({0})", "torch.erfinv(torch.tanh({0}) * 0.8)",
    "torch.lgamma({0}.abs() + 0.5)", "torch.digamma({0}.abs() + 0.5)", "torch.special.i0({0}.clamp(-3, 3))",
    "torch.special.i1({0}.clamp(-3, 3))", "torch.sinc({0})", "torch.logit(torch.sigmoid({0}), 1e-4)",
    "torch.special.entr({0}.abs() + 0.1)", "torch.special.ndtr({0})", "torch.special.log_ndtr({0})", "{0}.square()",
    "{0}.sign()", "{0}.floor() + {0}", "{0}.ceil() * 0.5", "{0}.round()", "{0}.trunc()", "{0}.frac()",
    "{0}.abs().pow(1.5)", "{0}.pow(3)", "({0}.abs() + 0.5).pow(-1.5)", "2.0 ** {0}.clamp(-3, 3)",
    "torch.log2({0}.abs() + 1.0)", "torch.log10({0}.abs() + 1.0)", "{0}.clamp_min(0.1)", "{0}.clamp_max(0.1)",
    "{0}.deg2rad()", "{0}.positive()", "{0}.fmod(0.7)", "{0}.remainder(0.7)", "torch.heaviside({0}, {0} * 0.0 + 0.5)",
    "{0}.contiguous() - 1", "{0}.softmax(-1) if {0}.dim() else {0}", "torch.signbit({0})", "{0}.isnan()",
    "{0}.new_zeros({0}.shape) + {0}", "torch.full_like({0}, 0.3) * {0}", "{0}.new_full((2, 1), 1.5)",
    "torch.ones_like({0}).tril() if {0}.dim() > 1 else {0}", "torch.arange(5, dtype={0}.dtype)",
    "torch.linspace(-1, 1, 4).to({0}.dtype)", "torch.eye(3, 4, dtype={0}.dtype)", "{0}.masked_fill({0} > 0.5, 0.25)",
    "{0}.detach() * 2.0", "torch.logaddexp({0}, -{0})", "{0}.neg().relu().neg()", "{0}.copysign(-1.0)",
    "{0}.to(torch.int32)", "({0} * 4).long()", "({0} > 0).sum()", "torch.count_nonzero({0})",
    "{0}.nan_to_num(nan=1.0).sub(0.5)", "torch.xlogy({0}, {0}.abs() + 0.5)",
    "({0} > 0).float().cumsum(0) if {0}.dim() else {0}",
)


@_drawn(5)
def _unary(rng: random.Random, values: Sequence[Value]) -> Call | None:
    value = _dense(rng, values)
    return Call(rng.choice(UNARY), (value,)) if value else None


BINARY = (
    "torch.fmax({0}, {1})", "torch.fmin({0}, {1})", "torch.logaddexp({0}, {1})", "torch.logaddexp2({0}, {1})",
    "torch.fmod({0}, {1}.abs() + 0.7)", "torch.remainder({0}, {1}.abs() + 0.7)", "torch.copysign({0}, {1})",
    "({0}.abs() + 0.5).pow({1}.clamp(-2, 2))", "torch.xlogy({0}, {1}.abs() + 0.5)", "torch.dist({0}, {1})",
    "torch.floor_divide({0}, {1}.abs() + 0.7)", "torch.true_divide({0}, {1}.abs() + 2.0)", "{0} == {1}", "{0} != {1}",
    "{0}.ge({1})", "({0} > 0) & ({1} > 0)", "({0} > 0) | ({1} > 0)", "({0} > 0) ^ ({1} > 0)",
    "torch.addcmul({0}, {0}, {1}, value=0.5)", "torch.addcdiv({0}, {0}, {1}.abs() + 1.0, value=-0.5)",
    "torch.rsub({0}, {1}, alpha=2)", "{0}.clamp(min={1})", "torch.clamp({0}, max={1})",
    "torch.special.xlog1py({0}, {1}.abs())", "torch.nextafter({0}, {1}).sub({0}).abs() < 1.0",
    "torch.ldexp({0}, {1}.clamp(-2, 2).round())", "{0}.lerp({1}, {1})", "torch.broadcast_tensors({0}, {1})[0] * 2.0",
    "{0}.where({0} > 0, {1})", "{0}.expand_as({0} + {1}) * 1.5",
    "torch.float_power({0}.abs() + 0.5, 2.0).to({1}.dtype)", "F.prelu({0}, {1}.flatten()[:1])",
)


@_drawn(4)
def _binary(rng: random.Random, values: Sequence[Value]) -> Call | None:
    left = _dense(rng, values)
    right = left and _one_of(rng, values, lambda one: one.dtype == left.dtype and _filled(one)
                             and _broadcasts(left.shape, one.shape))
    return Call(rng.choice(BINARY), (left, right)) if left and right else None


INTEGRAL = (
    "{0} + {1}", "{0} - {1}", "{0} * {1}", "{0} // ({1}.abs() + 1)", "{0} % ({1}.abs() + 1)", "{0} & {1}",
    "{0} | {1}", "{0} ^ {1}", "~{0}", "{0} << 1", "{0} >> 1", "torch.gcd({0}, {1})", "{0}.sign()",
    "{0}.float() / ({1} + 0.5).abs()", "{0} / ({1}.abs() + 1)", "{0}.sum()", "{0}.sum(-1) if {0}.dim() else {0}",
    "{0}.cumsum(0) if {0}.dim() else {0}", "{0}.max()", "{0}.amin()", "{0} < {1}", "{0}.eq(2)",
    "torch.maximum({0}, {1})", "{0}.clamp(1, 4)", "{0}.abs().float().sqrt()", "{0}.bool()", "{0}.long()",
    "{0}.to(torch.int32)", "{0}.pow(2)", "torch.where({0} > 2, {0}, {1})", "{0}.prod()",
    "{0}.sort(-1).values if {0}.dim() else {0}", "{0}.argmax(-1) if {0}.dim() else {0}", "{0}.fmod(3)",
    "{0}.float().mean()", "{0}.logical_and({1})", "{0}.logical_not()", "{0}.any()", "({0} > 0).all()",
    "torch.div({0}, 2, rounding_mode='floor')", "torch.div({0}, 2, rounding_mode='trunc')", "{0}.neg().abs()",
    "{0}.bitwise_left_shift(2)", "F.one_hot({0}.long() % 4, 4)", "{0}.flip(-1) if {0}.dim() else {0}",
)


@_drawn(2)
def _integral(rng: random.Random, values: Sequence[Value]) -> Call | None:
    left = _integers(rng, values)
    right = left and _one_of(rng, values, lambda one: one.dtype in ("int", "long") and _filled(one)
                             and _broadcasts(left.shape, one.shape))
    if left is None or right is None:
        return None
    text = rng.choice(INTEGRAL)
    return Call(text, (left, right) if "{1}" in text else (left,))


ALONG = (
    "{0}.cumprod(DIM)", "{0}.cummax(DIM).values", "{0}.cummin(DIM).values", "{0}.logcumsumexp(DIM)",
    "{0}.diff(dim=DIM)", "torch.trapezoid({0}, dim=DIM)", "torch.std_mean({0}, dim=DIM, unbiased=False)[0]",
    "torch.var_mean({0}, dim=DIM)[1]", "{0}.std(DIM, correction=0)", "{0}.aminmax(dim=DIM).max",
    "{0}.contiguous().median(DIM).values", "{0}.kthvalue(1, DIM).values", "{0}.quantile(0.3, DIM)", "{0}.nansum(DIM)",
    "{0}.nanmean(DIM)", "{0}.argmax(DIM)", "{0}.argmin(DIM, keepdim=True)", "({0} > 0).any(DIM)",
    "({0} > 0).all(DIM)", "{0}.argsort(dim=DIM, stable=True)", "{0}.softmax(DIM).argmax(DIM)", "F.softmin({0}, DIM)",
    "{0}.unbind(DIM)[0]", "{0}.chunk(2, DIM)[-1]", "{0}.tensor_split(2, DIM)[0] * 2.0", "{0}.movedim(DIM, 0)",
    "{0}.swapaxes(DIM, 0)", "{0}.unfold(DIM, 1, 1)", "{0}.renorm(2, 0, 0.7) if {0}.dim() > 1 else {0}",
    "{0}.norm(dim=DIM)", "torch.linalg.vector_norm({0}, 1, dim=DIM)",
    "torch.linalg.vector_norm({0}, float('inf'), dim=DIM)", "torch.linalg.vector_norm({0}, 3, dim=DIM)",
    "F.normalize({0}, p=1.0, dim=DIM)", "{0}.logsumexp(DIM, keepdim=True) - {0}",
    "{0}.sub({0}.amax(DIM, keepdim=True)).exp()", "{0}.sort(dim=DIM, descending=True, stable=True).indices",
    "{0}.count_nonzero(DIM)",
    "{0}.index_select(DIM, torch.tensor([0, 0]))", "{0}.take_along_dim({0}.argsort(dim=DIM, stable=True), DIM)",
    "{0}.scatter(DIM, {0}.argsort(dim=DIM, stable=True), {0} * 0.5)",
    "{0}.scatter_reduce(DIM, {0}.argsort(dim=DIM, stable=True), {0}, 'amax')",
    "{0}.scatter_reduce(DIM, {0}.argsort(dim=DIM, stable=True) // 2, {0}, 'mean')",
    "{0}.scatter_reduce(DIM, {0}.argsort(dim=DIM, stable=True) // 2, {0} * 0.5, 'sum', include_self=False)",
    "{0}.roll(1, DIM) - {0}",
    "{0}.gather(DIM, {0}.argsort(DIM, descending=True))", "{0}.mode(DIM).values",
    "{0}.select_scatter({0}.select(DIM, 0) * 2, DIM, 0)", "{0}.slice_scatter({0}.narrow(DIM, 0, 1) + 1, DIM, 0, 1)",
    "{0}.index_copy(DIM, torch.tensor([0]), {0}.narrow(DIM, -1, 1))", "F.glu(torch.cat([{0}, {0}], DIM), DIM)",
    "{0}.topk(1, DIM, largest=False).values",
)


@_drawn(5)
def _along(rng: random.Random, values: Sequence[Value]) -> Call | None:
    value = _dense(rng, values, 1)
    return Call(rng.choice(ALONG).replace("DIM", str(_dim(rng, value))), (value,)) if value else None


MATRICES = (
    "torch.diagonal({0}, 0, -2, -1)", "torch.diag_embed({0})", "{0}.diagonal(1, -2, -1).sum(-1)",
    "{0}.rot90(1, (-2, -1))", "{0}.mT", "{0}.fliplr()", "torch.einsum('...ij,...kj->...ik', {0}, {0})",
    "torch.einsum('...ij->...j', {0})", "torch.einsum('...ij,...ij->...', {0}, {0})",
    "torch.linalg.norm({0}, dim=(-2, -1))", "torch.matrix_exp({0} @ {0}.mT * 0.01)", "torch.cdist({0}, {0} + 1.0)",
    "torch.cdist({0}, {0} * 0.5 + 1.0, p=1.0)",
    "F.pdist({0}.flatten(0, -2) * torch.arange(1.0, {0}[..., 0].numel() + 1)[:, None])",
    "torch.linalg.cholesky({0} @ {0}.mT + 2 * torch.eye({0}.shape[-2]))",
    "torch.linalg.inv({0} @ {0}.mT + 2 * torch.eye({0}.shape[-2]))",
    "torch.linalg.solve({0} @ {0}.mT + 2 * torch.eye({0}.shape[-2]), {0})",
    "torch.logdet({0} @ {0}.mT + torch.eye({0}.shape[-2]))",
    "torch.linalg.det({0} @ {0}.mT + torch.eye({0}.shape[-2]))", "torch.trace({0}.flatten(0, -2))",
    "{0}.flatten(-2).unflatten(-1, {0}.shape[-2:])", "torch.tensordot({0}, {0}, dims=([-1], [-1]))",
    "torch.matmul({0}, {0}[..., 0, :].unsqueeze(-1))", "{0}.adjoint() * 2", "{0}.tril(-1) + {0}.triu(1)",
    "torch.linalg.matrix_power({0} @ {0}.mT * 0.1, 2)",
    "torch.block_diag({0}.flatten(0, -2), torch.ones(1, 1, dtype={0}.dtype))",
    "torch.cartesian_prod({0}.flatten()[:3], {0}.flatten()[:2])", "torch.outer({0}.flatten()[:4], {0}.flatten()[:3])",
    "torch.kron({0}.flatten(0, -2)[:2], {0}.flatten(0, -2)[:2])", "torch.dot({0}.flatten(), {0}.flatten())",
    "torch.cov({0}.flatten(0, -2))",
    "F.bilinear({0}, {0}, torch.ones(2, {0}.shape[-1], {0}.shape[-1], dtype={0}.dtype) * 0.3)",
    "torch.tril_indices({0}.shape[-2], {0}.shape[-1])[0]",
    "torch.addmm({0}.flatten(0, -2), {0}.flatten(0, -2), torch.eye({0}.shape[-1], dtype={0}.dtype), "
    "beta=0.5, alpha=2.0)",
    "torch.addmv({0}[..., 0].flatten(), {0}.flatten(0, -2), {0}.flatten(0, -2)[0])",
    "torch.chain_matmul({0}.flatten(0, -2), {0}.flatten(0, -2).t(), {0}.flatten(0, -2))",
    "torch.baddbmm({0}.flatten(0, -3)[None] if {0}.dim() == 2 else {0}.flatten(0, -3), {0}.reshape(-1, "
    "*{0}.shape[-2:]), torch.eye({0}.shape[-1], dtype={0}.dtype).expand({0}.reshape(-1, "
    "*{0}.shape[-2:]).shape[0], -1, -1), beta=0.3)",
    "F.rms_norm({0}, {0}.shape[-1:])", "F.layer_norm({0}, {0}.shape[-2:], {0}.reshape(-1, *{0}.shape[-2:])[0], None)",
    "F.cosine_similarity({0}, {0} + 1.0, -1)", "F.pairwise_distance({0}, {0} + 1.0)",
    "{0}.contiguous().as_strided((2,), (1,))", "{0}[..., 0, :][..., None, :] * {0}", "{0}[:, torch.tensor([0, -1])]",
    "{0}[torch.tensor([0, 0]), torch.tensor([0, -1])]", "{0}[[0], ..., [0]]",
    "torch.meshgrid({0}[..., 0].flatten(), {0}.flatten()[:2], indexing='ij')[0]",
    "{0}.index_put((torch.tensor([0, 0]),), {0}[:1].squeeze(0), accumulate=True)",
    "torch.vander({0}.flatten()[:3], 3)", "{0}.put(torch.tensor([0, 1]), {0}.flatten()[:2] * 2)",
    "{0}.take(torch.tensor([0, -1]))", "{0}.masked_scatter({0} > 0.3, {0} * 0.5)",
    "torch.searchsorted({0}.sort(-1).values, {0})",
    "torch.bucketize({0}, torch.tensor([-1.0, 0.0, 1.0]).to({0}.dtype))",
    "torch.cross({0}[..., :1].expand(*{0}.shape[:-1], 3), torch.ones(3, "
    "dtype={0}.dtype).expand(*{0}.shape[:-1], 3), dim=-1)",
    "F.multi_head_attention_forward({0}.flatten(0, -2)[:, None], {0}.flatten(0, -2)[:, None], {0}.flatten(0, "
    "-2)[:, None], {0}.shape[-1], 1, torch.ones(3 * {0}.shape[-1], {0}.shape[-1], dtype={0}.dtype) * 0.2, "
    "None, None, None, False, 0.0, torch.eye({0}.shape[-1], dtype={0}.dtype), None)[0]",
)


@_drawn(4)
def _matrices(rng: random.Random, values: Sequence[Value]) -> Call | None:
    value = _dense(rng, values, 2, 4)
    return Call(rng.choice(MATRICES), (value,)) if value else None


LOSSES = (
    "F.mse_loss({0}, {1}RED)", "F.l1_loss({0}, {1}RED)", "F.smooth_l1_loss({0}, {1}RED, beta=0.5)",
    "F.huber_loss({0}, {1}RED, delta=0.7)", "F.binary_cross_entropy_with_logits({0}, torch.sigmoid({1})RED)",
    "F.binary_cross_entropy(torch.sigmoid({0}), torch.sigmoid({1})RED)",
    # By half, since of one value both may be: what is left of equal distributions is what rounding within made.
    "F.kl_div(F.log_softmax({0}, -1), F.softmax({1}, -1) * 0.5RED)", "F.kl_div({0}, {1}RED, log_target=True)",
    "F.soft_margin_loss({0}, {1}.sign()RED)", "F.hinge_embedding_loss({0}, {1}.sign()RED)",
    "F.margin_ranking_loss({0}, {1}, {1}.sign()RED, margin=0.3)", "F.poisson_nll_loss({0}, {1}.abs()RED)",
    "F.gaussian_nll_loss({0}, {1}, {1}.abs() + 0.3RED)",
    "F.cross_entropy({0}.flatten(0, -2), {1}.flatten(0, -2).softmax(-1)RED)",
    "F.cross_entropy({0}.flatten(0, -2), {1}.flatten(0, -2).argmax(-1)RED, label_smoothing=0.2)",
    "F.cross_entropy({0}.flatten(0, -2), {1}.flatten(0, -2).argmax(-1)RED, ignore_index=0)",
    "F.nll_loss(F.log_softmax({0}.flatten(0, -2), -1), {1}.flatten(0, -2).argmax(-1)RED, "
    "weight=torch.arange(1.0, {0}.shape[-1] + 1).to({0}.dtype))",
    "F.multilabel_soft_margin_loss({0}.flatten(0, -2), ({1} > 0).to({0}.dtype).flatten(0, -2)RED)",
    "F.multi_margin_loss({0}.flatten(0, -2), {1}.flatten(0, -2).argmax(-1)RED)",
    "F.cosine_embedding_loss({0}.flatten(0, -2), {1}.flatten(0, -2), {1}.flatten(0, -2)[:, 0].sign()RED, margin=0.1)",
    "F.triplet_margin_loss({0}.flatten(0, -2), {1}.flatten(0, -2), {1}.flatten(0, -2) * -0.5 + 1.0RED)",
    "torch.nn.functional.triplet_margin_with_distance_loss({0}.flatten(0, -2), {1}.flatten(0, -2) + 1.0, "
    "-{1}.flatten(0, -2)RED)",
)


@_drawn(2)
def _losses(rng: random.Random, values: Sequence[Value]) -> Call | None:
    value = _dense(rng, values, 2)
    if value is None:
        return None
    how = f", reduction='{rng.choice(('mean', 'sum', 'none'))}'"
    return Call(rng.choice(LOSSES).replace("RED", how), (value, _like(rng, values, value)))


IMAGES = (
    "F.batch_norm({0}, None, None, training=True)",
    "F.batch_norm({0}, {0}.mean((0, 2, 3)).detach(), {0}.detach().var((0, 2, 3), unbiased=False) + 0.5)",
    "F.instance_norm({0})", "F.group_norm({0}, 1)", "F.group_norm({0}, {0}.shape[1])", "F.unfold({0}, 2, padding=1)",
    "F.fold(F.unfold({0}, 2), {0}.shape[2:], 2)", "F.pixel_shuffle({0}.repeat(1, 4, 1, 1), 2)",
    "F.pixel_unshuffle(F.interpolate({0}, scale_factor=2.0), 2)", "F.channel_shuffle({0}.repeat(1, 2, 1, 1), 2)",
    "F.max_pool2d({0}, 2, ceil_mode=True)", "F.max_pool2d({0}, 2, 1, dilation=1, padding=1)",
    "F.avg_pool2d({0}, 2, ceil_mode=True, count_include_pad=False, padding=1)",
    "F.lp_pool2d({0}.abs() + 0.1, 2.0, 2)", "F.adaptive_max_pool2d({0}, (1, 2))", "F.adaptive_avg_pool2d({0}, 1)",
    "F.adaptive_avg_pool2d({0}, (3, 2))", "F.interpolate({0}, size=(3, 5), mode='bicubic', align_corners=False)",
    "F.interpolate({0}, size=(3, 5), mode='bilinear', align_corners=True)",
    "F.interpolate({0}, size=(4, 3), mode='nearest-exact')", "F.interpolate({0}, size=(2, 2), mode='area')",
    # Not to one column, of which torch 2.13 itself repeats the first result.
    "F.interpolate({0}, size=(2, 3), mode='bilinear', antialias=True)",
    "F.grid_sample({0}, torch.linspace(-0.9, 0.9, 8).to({0}.dtype).reshape(1, 2, 2, 2).expand({0}.shape[0], "
    "-1, -1, -1), align_corners=False)",
    "F.grid_sample({0}, torch.linspace(-1.4, 1.4, 8).to({0}.dtype).reshape(1, 2, 2, 2).expand({0}.shape[0], "
    "-1, -1, -1), padding_mode='reflection', mode='nearest', align_corners=True)",
    # No point lies at zero: there eager has what rounding leaves, which an op that asks for zeros tells from none.
    "F.affine_grid((torch.eye(2, 3, dtype={0}.dtype) + 0.37).expand({0}.shape[0], 2, 3) * {0}.mean(), "
    "list({0}.shape), align_corners=False)",
    "F.pad({0}, (1, 1, 1, 1), mode='reflect')", "F.pad({0}, (1, 2, 0, 1), mode='replicate')",
    "F.pad({0}, (1, 0, 1, 1), mode='circular')", "F.pad({0}, (1, 1), value=0.5)", "F.local_response_norm({0}, 3)",
    "F.conv2d({0}, {0}.flatten(0, 1)[:1, None].expand(-1, {0}.shape[1], -1, -1)[..., :2, :2])",
    "F.conv2d({0}, torch.ones({0}.shape[1], 1, 2, 3, dtype={0}.dtype) * 0.3, padding='same', groups={0}.shape[1])",
    "F.conv_transpose2d({0}, torch.ones({0}.shape[1], 2, 3, 2, dtype={0}.dtype) * 0.3, stride=2, padding=1, "
    "output_padding=1)",
    "F.conv_transpose2d({0}, torch.ones({0}.shape[1], 1, 2, 2, dtype={0}.dtype) * 0.3, groups={0}.shape[1], "
    "dilation=2)",
    "F.conv3d({0}[:, None], torch.ones(2, 1, 1, 2, 2, dtype={0}.dtype) * 0.3, padding=(0, 1, 0))",
    "F.max_pool3d({0}[:, None], (1, 2, 2))", "F.avg_pool3d({0}, (1, 2, 1))",
    "F.conv1d({0}.flatten(2), torch.ones(2, {0}.shape[1], 3, dtype={0}.dtype) * 0.3, torch.ones(2, "
    "dtype={0}.dtype), padding=1, stride=2)",
    "F.conv_transpose1d({0}.flatten(2), torch.ones({0}.shape[1], 2, 3, dtype={0}.dtype) * 0.3, stride=2)",
    "F.max_pool1d({0}.flatten(2), 2, 1)", "F.avg_pool1d({0}.flatten(2), 2, 2, ceil_mode=True)",
    "F.adaptive_avg_pool1d({0}.flatten(2), 3)", "F.interpolate({0}.flatten(2), size=5, mode='linear')",
    "F.max_pool2d({0}, 2, return_indices=True)[1]",
    "F.max_unpool2d(*F.max_pool2d({0}, 2, return_indices=True), 2, output_size={0}.shape)",
    "F.feature_alpha_dropout({0}, 0.3, False)",
    "F.scaled_dot_product_attention({0}, {0}, {0}, attn_mask=torch.ones({0}.shape[2], {0}.shape[2], "
    "dtype=torch.bool).tril())",
    "F.scaled_dot_product_attention({0}, {0} * 0.5, {0}, attn_mask={0}[..., :1] * torch.ones({0}.shape[2], "
    "dtype={0}.dtype), scale=0.4)",
)


@_drawn(3)
def _images(rng: random.Random, values: Sequence[Value]) -> Call | None:
    value = _one_of(rng, values, lambda one: one.is_floating and len(one.shape) == 4 and _filled(one, 4)
                    and min(one.shape[2:]) >= 2)
    return Call(rng.choice(IMAGES), (value,)) if value else None


WRITES = (
    "{r} = {0}.clone()\n{r}[..., 0] = 0.5", "{r} = {0}.clone()\n{r}[{r} > 0.4] = -0.2",
    "{r} = {0}.clone()\n{r}[:1] += 1.0",
    "{r} = {0} * 1.0\n{r}.index_add_(0, torch.tensor([0, 0]), {0}[:1].expand(2, *{0}.shape[1:]))",
    "{r} = {0} * 1.0\n{r}.masked_fill_({0} < 0, 0.1)", "{r} = {0} * 1.0\n{r}.sub_({0}, alpha=0.5).tanh_()",
    "{r} = {0} * 1.0\n{r}.T.mul_(2.0) if {r}.dim() == 2 else {r}.mul_(2.0)",
    "{r} = {0} * 1.0\n{r}.flatten()[0:1].add_(3.0)", "{r} = {0} * 1.0\n{r}.unsqueeze(0).select(1, 0).fill_(0.7)",
    "{r} = torch.zeros_like({0})\n{r}.copy_({0}).clamp_(-0.5, 0.5)",
    "{r} = {0} * 1.0\n{r}.index_fill_(0, torch.tensor([0]), 0.3)",
    "{r} = {0} * 1.0\n{r}.scatter_(0, torch.zeros_like({0}[:1], dtype=torch.long), {0}[:1] * 3)",
    "{r} = torch.zeros_like({0})\n{r}[..., ::2] = {0}[..., ::2]", "{r} = {0}.new_zeros(2, *{0}.shape)\n{r}[1] = {0}",
    "{r} = {0} * 1.0\nfor _ in range(3): {r}[0] = {r}[0] * 0.5 + 0.1", "{r} = {0} * 1.0\n{r}.exp_().log1p_()",
    "{r} = {0} * 1.0\n{r}.addcmul_({0}, {0}, value=0.3).lerp_({0}, 0.4)",
    "{r} = {0} * 1.0\n{r}.transpose(0, -1)[0].zero_()", "{r} = {0} * 1.0\n{r}.div_(2.0).pow_(2)",
)


@_drawn(2)
def _written(rng: random.Random, values: Sequence[Value]) -> Call | None:
    value = _dense(rng, values, 1)
    return Call(rng.choice(WRITES), (value,)) if value else None


ALL: dict[str, tuple[Draw, float]] = {
    **{name: (draw, weight * 0.5) for name, (draw, weight) in DRAWS.items()},
    **{f"wide {name}": drawn for name, drawn in WIDE.items()},
}
"""Both vocabularies, the wide one twice as often."""
