"""Kernels of layer, group and batch normalisation.

An operand that is absent points anywhere: a flag says whether it is read. Statistics are a mean and the reciprocal of a
deviation.
"""

from typing import NamedTuple

from .convert import Stored
from .kernel import Kernel, Nothing

NORM_SPLIT = 16384
"""Elements of a channel or group, at most, that are summed in float before their moments are merged in double."""
BATCH_SPLIT = 4096
"""Likewise of a batch normalisation: those of a block of channels stay in a second-level cache from pass to pass."""


class NormScalars(NamedTuple):
    """Real numbers of all kernels here that read variances.

    Attributes:
        eps: What is added to a variance.
    """

    eps: float


class LayerNormInts(NamedTuple):
    """Integers of ``layer_norm``.

    Attributes:
        width: Elements of a row.
        has_weight: Whether there is a weight.
        has_bias: Whether there is a bias.
        stored: As what ``x`` lies in memory.
    """

    width: int
    has_weight: bool
    has_bias: bool
    stored: Stored = Stored.FLOATS


LAYER_NORM = Kernel(
    "layer_norm",
    {
        "y": "[rows][width]", "mean": "[rows]", "rstd": "[rows]", "x": "[rows][width]", "weight": "[width]",
        "bias": "[width]",
    },
    LayerNormInts,
    NormScalars,
    items="rows",
)


class LayerNormGradInts(NamedTuple):
    """Integers of ``layer_norm_grad``.

    Attributes:
        rows: Of the input.
        width: Elements of a row.
        chunk: Rows of an item.
        has_weight: Whether there is a weight.
        wants_partials: Whether the sums for weight and bias are wanted.
        stored: As what ``dy`` and ``x`` lie in memory.
    """

    rows: int
    width: int
    chunk: int
    has_weight: bool
    wants_partials: bool
    stored: Stored = Stored.FLOATS


LAYER_NORM_GRAD = Kernel(
    "layer_norm_grad",
    {
        "dx": "[rows][width]", "partials": "[chunks][2][width], of weight and bias", "dy": "[rows][width]",
        "x": "[rows][width]", "mean": "[rows]", "rstd": "[rows]", "weight": "[width]",
    },
    LayerNormGradInts,
    Nothing,
    items="chunks of rows",
)


class SumPartialsInts(NamedTuple):
    """Integers of ``sum_partials``.

    Attributes:
        chunks: Whose sums are added, in their order, in double.
        width: Columns of each.
    """

    chunks: int
    width: int


SUM_PARTIALS = Kernel(
    "sum_partials", {"first": "[width]", "second": "[width]", "partials": "[chunks][2][width]"}, SumPartialsInts,
    Nothing, items="columns",
)


class GroupNormInts(NamedTuple):
    """Integers of ``group_norm`` and ``group_norm_grad``.

    Attributes:
        depth: Channels of a group.
        positions: Of a channel.
        groups: Of a sample.
        has_weight: Whether there is a weight.
        has_bias: Whether there is a bias; the gradient does not ask.
    """

    depth: int
    positions: int
    groups: int
    has_weight: bool
    has_bias: bool = False


GROUP_NORM = Kernel(
    "group_norm",
    {
        "y": "as x", "mean": "[samples][groups]", "rstd": "[samples][groups]",
        "x": "[samples][groups][depth][positions]", "weight": "[channels]", "bias": "[channels]",
    },
    GroupNormInts,
    NormScalars,
    items="samples * groups",
)
GROUP_NORM_GRAD = Kernel(
    "group_norm_grad",
    {
        "dx": "as x", "partials": "[samples][2][channels], of weight and bias", "dy": "as x",
        "x": "[samples][groups][depth][positions]", "mean": "[samples][groups]", "rstd": "[samples][groups]",
        "weight": "[channels]",
    },
    GroupNormInts,
    Nothing,
    items="samples * groups",
)


class GroupRowsInts(NamedTuple):
    """Integers of the kernels of group normalisation of x ``[samples][positions][groups][depth]``, in chunks of rows.

    Attributes:
        depth: Channels of a group.
        positions: Of a channel.
        groups: Of a sample.
        rows: Positions of a chunk; the last one of a sample may have fewer.
        has_weight: Whether there is a weight.
        has_bias: Whether there is a bias; the gradient does not ask.
    """

    depth: int
    positions: int
    groups: int
    rows: int
    has_weight: bool = False
    has_bias: bool = False


GROUP_ROW_MOMENTS = Kernel(
    "group_row_moments", {"partials": "[samples][chunks][2][channels], mean and squares around it", "x": ""},
    GroupRowsInts, Nothing, items="samples * chunks",
)
GROUP_ROW_STATISTICS = Kernel(
    "group_row_statistics",
    {"mean": "[samples][groups]", "rstd": "[samples][groups]", "partials": "of group_row_moments"},
    GroupRowsInts, NormScalars, items="samples * groups",
)
GROUP_ROW_APPLY = Kernel(
    "group_row_apply",
    {
        "y": "as x", "x": "", "mean": "[samples][groups]", "rstd": "[samples][groups]", "weight": "[channels]",
        "bias": "[channels]",
    },
    GroupRowsInts, Nothing, items="samples * chunks",
)
GROUP_ROW_GRAD_SUMS = Kernel(
    "group_row_grad_sums",
    {
        "partials": "[samples][chunks][2][channels], of products of dy with x around the mean, and of dy", "dy": "as x",
        "x": "", "mean": "[samples][groups]",
    },
    GroupRowsInts, Nothing, items="samples * chunks",
)
GROUP_ROW_GRAD_STATISTICS = Kernel(
    "group_row_grad_statistics",
    {
        "factors": "[samples][groups][2]: of x around the mean, and what is added",
        "gradients": "[samples][2][channels], of weight and bias", "rstd": "[samples][groups]",
        "partials": "of group_row_grad_sums", "weight": "[channels]",
    },
    GroupRowsInts, Nothing, items="samples * groups",
)
GROUP_ROW_GRAD_APPLY = Kernel(
    "group_row_grad_apply",
    {
        "dx": "as x", "dy": "as x", "x": "", "mean": "[samples][groups]", "rstd": "[samples][groups]",
        "factors": "of group_row_grad_statistics", "weight": "[channels]",
    },
    GroupRowsInts, Nothing, items="samples * chunks",
)


class BatchInts(NamedTuple):
    """Integers of the kernels of batch normalisation, of x ``[samples][channels][positions]``.

    A channel is cut into splits of at most BATCH_SPLIT elements: all positions of several samples, or some of one.

    Attributes:
        samples: Of the batch.
        channels: Of a sample.
        positions: Of a channel.
        rows: Samples of a split.
        piece: Positions of a split.
        has_weight: Whether there is a weight.
        has_bias: Whether there is a bias.
        has_running: Whether running statistics are kept.
        from_running: Whether the statistics are the running ones: a variance stands where the reciprocal of a deviation
            would.
        has_addend: Whether something of the shape of x is added to the result.
        has_relu: Whether a ReLU follows, which passes NaN on.
        stored: As what ``x`` and ``dy`` lie in memory; ``batch_norm`` and ``batch_norm_grad`` take floats alone.
    """

    samples: int
    channels: int
    positions: int
    rows: int
    piece: int
    has_weight: bool = False
    has_bias: bool = False
    has_running: bool = False
    from_running: bool = False
    has_addend: bool = False
    has_relu: bool = False
    stored: Stored = Stored.FLOATS


class BatchScalars(NamedTuple):
    """Real numbers of the kernels that keep running statistics.

    Attributes:
        eps: What is added to a variance.
        momentum: Share of the batch in the running statistics.
    """

    eps: float
    momentum: float


BATCH_MOMENTS = Kernel(
    "batch_moments", {"partials": "[channels][splits][2], means and sums of squares around them", "x": "see BatchInts"},
    BatchInts, Nothing, items="channels * splits",
)
BATCH_STATISTICS = Kernel(
    "batch_statistics",
    {
        "save_mean": "[channels]", "save_rstd": "[channels]", "new_mean": "[channels], running",
        "new_variance": "[channels], running", "running_mean": "[channels]", "running_variance": "[channels]",
        "partials": "of `batch_moments`",
    },
    BatchInts,
    BatchScalars,
    items="channels",
)
BATCH_APPLY = Kernel(
    "batch_apply",
    {
        "y": "as x", "x": "see BatchInts", "mean": "[channels]", "spread": "[channels], rstd or variance",
        "weight": "[channels]", "bias": "[channels]", "addend?": "as x, where has_addend",
    },
    BatchInts,
    NormScalars,
    items="samples * channels, or samples where there is one position",
)
BATCH_NORM = Kernel(
    "batch_norm",
    {
        "y": "as x", "save_mean": "[channels]", "save_rstd": "[channels]", "new_mean": "[channels], running",
        "new_variance": "[channels], running", "running_mean": "[channels]", "running_variance": "[channels]",
        "x": "see BatchInts", "weight": "[channels]", "bias": "[channels]", "addend?": "as x, where has_addend",
    },
    BatchInts,
    BatchScalars,
    items="channels",
)
"""All of the above, a channel at a time while it lies in the cache."""
BATCH_ROW_MOMENTS = Kernel(
    "batch_row_moments",
    {
        "partials": "[chunks][2][channels], means and sums of squares around them", "x": "[samples][channels]",
    },
    BatchInts,
    Nothing,
    items="chunks of `rows` samples",
)
"""Where there is one position: a row of each sample."""
BATCH_ROW_STATISTICS = Kernel(
    "batch_row_statistics",
    {
        "save_mean": "[channels]", "save_rstd": "[channels]", "new_mean": "[channels], running",
        "new_variance": "[channels], running", "running_mean": "[channels]", "running_variance": "[channels]",
        "partials": "of `batch_row_moments`",
    },
    BatchInts,
    BatchScalars,
    items="channels",
)
BATCH_GRAD_SUMS = Kernel(
    "batch_grad_sums",
    {
        "partials": "[channels][splits][2], sums of dy (x - mean) and of dy", "dy": "as x", "x": "see BatchInts",
        "mean": "[channels]",
    },
    BatchInts,
    Nothing,
    items="channels * splits",
)
BATCH_GRAD_STATISTICS = Kernel(
    "batch_grad_statistics",
    {
        "dweight": "[channels]", "dbias": "[channels]", "spread": "[channels], rstd or variance",
        "partials": "of `batch_grad_sums`",
    },
    BatchInts,
    NormScalars,
    items="channels",
)
BATCH_ROW_GRAD_SUMS = Kernel(
    "batch_row_grad_sums",
    {
        "partials": "[chunks][2][channels], sums of dy (x - mean) and of dy", "dy": "[samples][channels]",
        "x": "[samples][channels]", "mean": "[channels]",
    },
    BatchInts,
    Nothing,
    items="chunks of `rows` samples",
)
"""The same sums where there is one position."""
BATCH_ROW_GRAD_STATISTICS = Kernel(
    "batch_row_grad_statistics",
    {
        "dweight": "[channels]", "dbias": "[channels]", "spread": "[channels], rstd or variance",
        "partials": "of `batch_row_grad_sums`",
    },
    BatchInts,
    NormScalars,
    items="channels",
)
BATCH_GRAD_APPLY = Kernel(
    "batch_grad_apply",
    {
        "dx": "as x", "dy": "as x", "x": "see BatchInts", "mean": "[channels]",
        "spread": "[channels], rstd or variance", "weight": "[channels]", "dweight": "[channels]",
        "dbias": "[channels]",
    },
    BatchInts,
    NormScalars,
    items="samples * channels, or samples where there is one position",
)
"""Running statistics are constants: dx is then dy weight rstd."""
BATCH_NORM_GRAD = Kernel(
    "batch_norm_grad",
    {
        "dx": "as x", "dweight": "[channels]", "dbias": "[channels]", "dy": "as x", "x": "see BatchInts",
        "mean": "[channels]", "spread": "[channels], rstd or variance", "weight": "[channels]",
    },
    BatchInts,
    NormScalars,
    items="channels",
)
"""All three of the gradient, a channel at a time."""
