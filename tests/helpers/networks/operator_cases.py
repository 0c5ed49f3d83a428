"""What is asked of every family of operators: functions of tensors, each with tensors of odd shapes."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from helpers.networks.lowered_operators import Function


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def positive(*shape: int) -> Tensor:
    return 0.3 + draw(*shape).abs()


def ids(most: int, *shape: int) -> Tensor:
    return torch.randint(0, most, shape, generator=torch.Generator().manual_seed(most))


HEADS = [draw(2, 3, 4, 5, seed=seed) for seed in range(3)]
NOISE, TARGETS = draw(3, 4, seed=3), (draw(4, 6) > 0).float()
MEAN, VARIANCE = draw(3), positive(3)
BAG_WEIGHTS = draw(2, 5)

Case = tuple[Function, *tuple[Tensor, ...]]

ARITHMETIC: dict[str, Case] = {
    "broadcasting": (lambda a, b: a + b * 2 - a / 3, draw(2, 3, 4), draw(3, 1)),
    "alpha": (lambda a, b: torch.add(a, b, alpha=0.5) - torch.sub(b, a, alpha=2), draw(3, 4), draw(3, 4)),
    "rsub": (lambda a: torch.rsub(a, 1.0, alpha=2.0), draw(5)),
    "quotient": (lambda a, b: a / b, draw(3, 4), positive(4)),
    "powers": (lambda a: a**2 + a**3 + a**0.5 + a**-0.5 + a**1.7 + 2.0**a, positive(4, 5)),
    "power of tensors": (lambda a, b: a**b, positive(4, 5), draw(5)),
    "roots": (lambda a: a.sqrt() + a.rsqrt() + a.reciprocal() + a.square(), positive(7)),
    "exponentials": (lambda a: a.exp() + a.log() + a.log1p() + a.expm1() + a.log2(), positive(7)),
    "expm1 near 0": (lambda a: (1e-4 * a).expm1(), draw(9)),
    "log1p near 0": (lambda a: (1e-4 * a).log1p(), draw(9)),
    "trigonometry": (lambda a: a.sin() * a.cos() + a.tanh() + a.erf() + a.atan(), draw(7)),
    "signs": (lambda a: a.abs() * a.sign() + a.neg(), draw(9)),
    "rounding": (lambda a: a * (a.floor() + a.ceil() + a.trunc()), draw(9)),
    "extremes": (lambda a, b: torch.maximum(a, b) * torch.minimum(a, b), draw(5, 6), draw(6)),
    "clamped": (lambda a: a.clamp(-0.5, 0.7) + a.clamp(min=0.1) + a.clamp(max=0.2), draw(30)),
    "where": (lambda a, b: torch.where(a > 0.1, a, b) + torch.where(a <= b, 1.0, b), draw(5, 6), draw(6)),
    "comparisons": (
        lambda a: a * ((a > 0) | (a < -1)) + (a >= 0.5).float() * a + a * (a != 0) * (a == a),
        draw(20),
    ),
    "masks": (lambda a: a.masked_fill(a > 1, -2.0).masked_fill(~(a < 2), 0), draw(20)),
    "addcmul": (
        lambda a, b: torch.addcmul(a, b, b, value=0.5) + torch.addcdiv(a, b, a),
        positive(6),
        draw(6),
    ),
    "lerp": (lambda a, b: torch.lerp(a, b, 0.3) + torch.lerp(a, b, a), draw(6), draw(6)),
    "integers": (lambda a, i: a * ((i // 3) + (i % 4) - (-i) // 2), draw(12), ids(50, 12)),
    "floored": (lambda a: a * torch.div(a, 0.3, rounding_mode="floor") + a.remainder(0.4), draw(12)),
    "xlogy": (lambda a, b: torch.xlogy(a, b), positive(6), positive(6)),
}

ACTIVATIONS: dict[str, nn.Module] = {
    str(layer): layer
    for layer in (
        nn.ReLU(),
        nn.ReLU6(),
        nn.Hardtanh(-0.5, 0.7),
        nn.LeakyReLU(0.1),
        nn.ELU(0.7),
        nn.SELU(),
        nn.CELU(1.3),
        nn.Sigmoid(),
        nn.Tanh(),
        nn.SiLU(),
        nn.Mish(),
        nn.GELU(),
        nn.GELU("tanh"),
        nn.Hardswish(),
        nn.Hardsigmoid(),
        nn.Softplus(),
        nn.Softplus(2.0),
        nn.LogSigmoid(),
        nn.GLU(1),
        nn.Softsign(),
        nn.Tanhshrink(),
        nn.Threshold(0.4, -1.0),
        nn.Softshrink(0.2),
        nn.Hardshrink(0.2),
    )
}

SHAPES: dict[str, Case] = {
    "views": (lambda a: a.reshape(6, 4).unsqueeze(0).squeeze(0).flatten().view(2, 12), draw(2, 3, 4)),
    "orders": (
        lambda a: a.permute(2, 0, 1).transpose(-1, -2) * a.movedim(0, 1).transpose(0, 2),
        draw(3, 3, 3),
    ),
    "a matrix": (lambda a: a.t() @ a, draw(4, 3)),
    "expanded": (lambda a: (a[:, None].expand(-1, 5, -1) * NOISE[:, None]).cumsum(1), draw(3, 4)),
    "repeated": (lambda a: a.repeat(2, 1, 3) + a.repeat_interleave(2, 0)[:3].repeat(1, 3), draw(3, 4)),
    "joined": (lambda a, b: torch.cat([a, b, a], 1), draw(2, 3), draw(2, 4)),
    "stacked": (lambda a, b: torch.stack([a, b, a * b], -1), draw(2, 3), draw(2, 3)),
    "split": (lambda a: torch.cat([part * at for at, part in enumerate(a.split(3, -1), 1)], -1), draw(2, 8)),
    "chunked": (lambda a: a.chunk(2, 1)[0] * a.chunk(2, 1)[1], draw(2, 8)),
    "uneven": (lambda a: a.split([1, 3, 2], 0)[1] * 2, draw(6, 2)),
    "unbound": (lambda a: a.unbind(1)[0] * a.unbind(1)[2], draw(2, 3, 4)),
    "selected": (lambda a: a[:, -1] * a.select(1, 0), draw(2, 3, 4)),
    "sliced": (lambda a: a[:, 1:-1] * a[:, 2:], draw(2, 7)),
    "sliced by steps": (lambda a: a[:, 1::2, ::3] ** 2, draw(2, 7, 8)),
    "padded": (lambda a: F.pad(a, (1, 2, 0, 3), value=0.5) ** 2, draw(2, 3, 4)),
    "cropped": (lambda a: F.pad(a, (-1, 2)) ** 2, draw(2, 3, 4)),
    "padded by reflection": (lambda a: F.pad(a, (1, 2, 2, 1), mode="reflect") ** 2, draw(1, 2, 4, 5)),
    "padded by repetition": (lambda a: F.pad(a, (1, 2, 2, 1), mode="replicate") ** 2, draw(1, 2, 4, 5)),
    "padded circularly": (lambda a: F.pad(a, (1, 2, 2, 1), mode="circular") ** 2, draw(1, 2, 4, 5)),
    "rolled": (lambda a: a.roll((1, -2), (1, 2)) * a, draw(2, 5, 6)),
    "flipped": (lambda a: a.flip(0, 2) * a, draw(2, 5, 6)),
    "unfolded": (lambda a: a.unfold(1, 3, 2) ** 2, draw(2, 9)),
    "windows as columns": (lambda a: F.unfold(a, 3, padding=1, stride=2) ** 2, draw(2, 3, 5, 6)),
    "columns as windows": (lambda a: F.fold(a, (4, 5), 2) ** 2, draw(2, 12, 12)),
    "pixels shuffled": (lambda a: F.pixel_shuffle(a, 2) ** 2, draw(2, 8, 3, 2)),
    "pixels unshuffled": (lambda a: F.pixel_unshuffle(a, 2) ** 2, draw(2, 2, 4, 6)),
    "channels shuffled": (lambda a: F.channel_shuffle(a, 2) * a, draw(2, 6, 3, 3)),
    "triangles": (lambda a: a.tril() * 2 + a.triu(1), draw(2, 4, 5)),
    "a diagonal": (lambda a: a.diagonal(0, 1, 2) ** 2, draw(2, 4, 4)),
    "written in place": (lambda a: _written_in_place(a), draw(3, 6)),
    "counted": (lambda a: a * torch.arange(4) + torch.ones(3, 4) - torch.full((4,), 0.5), draw(3, 4)),
}


def _written_in_place(a: Tensor) -> Tensor:
    b = a.clone()
    b[:, 1:3] = 2 * a[:, :2]
    b[0] += 1
    b[:, ::2].mul_(3)
    return b


INDICES: dict[str, Case] = {
    "embedding": (lambda i, w: F.embedding(i, w), ids(7, 2, 5), draw(7, 4)),
    "padded embedding": (lambda i, w: F.embedding(i, w, padding_idx=3), ids(7, 2, 5), draw(7, 4)),
    "bag of means": (lambda i, w: F.embedding_bag(i, w, mode="mean"), ids(7, 2, 5), draw(7, 4)),
    "padded bag of means": (
        lambda i, w: F.embedding_bag(i, w, mode="mean", padding_idx=3),
        ids(5, 3, 4),
        draw(7, 4),
    ),
    "bag of sums": (lambda i, w: F.embedding_bag(i, w, mode="sum"), ids(7, 2, 5), draw(7, 4)),
    "bag whose weights learn": (
        lambda i, w, s: F.embedding_bag(i, w, mode="sum", per_sample_weights=s, padding_idx=2),
        ids(7, 2, 5),
        draw(7, 4),
        draw(2, 5),
    ),
    "weighted bag": (
        lambda i, w: F.embedding_bag(i, w, mode="sum", per_sample_weights=BAG_WEIGHTS.to(w), padding_idx=2),
        ids(7, 2, 5),
        draw(7, 4),
    ),
    "index": (lambda a, i: a[i] ** 2, draw(5, 3), ids(5, 2, 4)),
    "index of a later axis": (lambda a, i: a[:, i] ** 2, draw(2, 5, 3), ids(5, 4)),
    "two indices": (lambda a, i, j: a[i, j] ** 2, draw(5, 5, 3), ids(5, 4), ids(5, 4)),
    "two indices in the middle": (lambda a, i, j: a[:, i, j] ** 2, draw(2, 5, 5, 3), ids(5, 4, 1), ids(4, 2)),
    "two indices apart": (lambda a, i, j: a[i, :, j] ** 2, draw(5, 2, 5, 3), ids(5, 4), ids(4, 4)),
    "negative indices": (lambda a, i: a[i - 5, -i - 1], draw(5, 5), ids(5, 4)),
    "selected": (lambda a, i: a.index_select(1, i) ** 2, draw(2, 5, 3), ids(5, 4)),
    "gathered": (lambda a, i: a.gather(1, i) ** 2, draw(3, 5), ids(5, 3, 7)),
    "taken along an axis": (lambda a, i: a.take_along_dim(i, 1) ** 2, draw(3, 5), ids(5, 3, 7)),
    "scattered": (lambda a, b, i: a.scatter_add(1, i, b) ** 2, draw(3, 5), draw(3, 7), ids(5, 3, 7)),
    "put": (lambda a, b: _put(a, b), draw(5, 4), draw(2, 4)),
    "added by index": (lambda a, b, i: a.index_add(0, i, b) ** 2, draw(5, 4), draw(6, 4), ids(5, 6)),
    "one hot": (lambda a, i: a * F.one_hot(i, 6), draw(3, 6), ids(6, 3)),
    "cross-entropy": (lambda a, i: F.cross_entropy(a, i), draw(4, 6), ids(6, 4)),
    "masked cross-entropy": (
        lambda a, i: F.cross_entropy(a, i, ignore_index=2, reduction="sum"),
        draw(4, 6),
        ids(6, 4),
    ),
    "binary cross-entropy": (lambda a: F.binary_cross_entropy_with_logits(a, TARGETS), draw(4, 6)),
    "squares": (
        lambda a, b: F.mse_loss(a, b) + F.smooth_l1_loss(a, b) + F.huber_loss(a, b),
        draw(4, 6),
        draw(4, 6),
    ),
    "divergence": (
        lambda a, b: F.kl_div(a.log_softmax(-1), b.softmax(-1), reduction="batchmean"),
        draw(4, 6),
        draw(4, 6),
    ),
    "cosine": (lambda a, b: F.cosine_similarity(a, b), draw(4, 6), draw(4, 6)),
}


def _put(a: Tensor, b: Tensor) -> Tensor:
    c = a.clone()
    c[torch.tensor([1, 3])] = b
    return c * a


REDUCTIONS: dict[str, Case] = {
    "sums": (lambda a: a.sum() * a.sum(1, keepdim=True) + a.sum((0, -1), keepdim=True), draw(2, 3, 4)),
    "means": (lambda a: a.mean() * a.mean(1, keepdim=True) + a.mean((0, -1), keepdim=True), draw(2, 3, 4)),
    "extremes": (
        lambda a: a.amax(1) * a.amin(1) + a.max(1).values * a.min(1).values + a.max(),
        draw(2, 3, 4),
    ),
    "variance": (lambda a: a.var(1) + a.std((0, 1)) + a.var(0, correction=0).sum(0), draw(3, 4, 5)),
    "variance and mean": (lambda a: torch.var_mean(a, 1)[0] * torch.var_mean(a, 1)[1], draw(3, 4)),
    "norms": (lambda a: a.norm(dim=1) + a.norm(p=1, dim=1) + a.norm(p=float("inf"), dim=1), draw(3, 4)),
    "normalised": (lambda a: F.normalize(a, dim=1), draw(3, 4)),
    "logsumexp": (lambda a: a.logsumexp(1), draw(3, 4)),
    "softmax": (lambda a: a.softmax(-1) * a.softmax(1), draw(3, 4, 5)),
    "log-softmax": (lambda a: a.log_softmax(-1) * a.log_softmax(0), draw(3, 4, 5)),
    "running sums": (lambda a: a.cumsum(1) * a, draw(3, 4)),
    "any and all": (lambda a: a * (a > 1).any(1, keepdim=True) + a * (a > -2).all(), draw(3, 4)),
    "largest": (lambda a: a.topk(2, 1).values * a.sort(1).values[:, :2], draw(3, 6)),
    "positions": (lambda a: a * a.argmax(1, keepdim=True) + a * a.argmin(), draw(3, 6)),
}

PRODUCTS: dict[str, Case] = {
    "matrices": (lambda a, b: a @ b, draw(3, 4), draw(4, 5)),
    "transposed": (lambda a, b: a.t() @ b.transpose(0, 1), draw(4, 3), draw(5, 4)),
    "linear": (lambda a, w, b: F.linear(a, w, b), draw(2, 6, 4), draw(5, 4), draw(5)),
    "batches": (lambda a, b: a @ b, draw(2, 3, 4, 5), draw(2, 3, 5, 2)),
    "broadcast batches": (lambda a, b: a @ b, draw(2, 3, 4, 5), draw(5, 2)),
    "vectors": (lambda a, b: (a @ b) * (b @ b), draw(4, 5), draw(5)),
    "addmm": (lambda a, b, c: torch.addmm(c, a, b, beta=0.5, alpha=2), draw(3, 4), draw(4, 5), draw(5)),
    "baddbmm": (
        lambda a, b, c: torch.baddbmm(c, a, b, beta=0.5, alpha=2),
        draw(2, 3, 4),
        draw(2, 4, 5),
        draw(2, 3, 5),
    ),
    "einsum": (lambda a, b: torch.einsum("bhid,bhjd->bhij", a, b), draw(2, 3, 4, 5), draw(2, 3, 6, 5)),
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
        *HEADS,
    ),
    "causal attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        *HEADS,
    ),
    "masked attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, _mask()),
        *HEADS,
    ),
    "outer": (lambda a, b: torch.outer(a, b), draw(4), draw(5)),
}


def _mask() -> Tensor:
    """One row is masked altogether."""
    mask = torch.ones(4, 4, dtype=torch.bool).tril()
    mask[2] = False
    return mask


def frozen_batch_norm(a: Tensor, scale: Tensor | None = None, shift: Tensor | None = None) -> Tensor:
    return F.batch_norm(a, MEAN.to(a), VARIANCE.to(a), scale, shift)


def standardised(w: Tensor, scale: Tensor) -> Tensor:
    return F.batch_norm(w.reshape(1, 4, -1), None, None, scale, training=True)


NORMS: dict[str, Case] = {
    "layer": (lambda a, w, b: F.layer_norm(a, (6,), w, b), draw(2, 5, 6), draw(6), draw(6)),
    "layer over two axes": (lambda a, w: F.layer_norm(a, (5, 6), w), draw(2, 5, 6), draw(5, 6)),
    "layer, alone": (lambda a: F.layer_norm(a, (6,)), draw(2, 5, 6)),
    "layer, off centre": (lambda a: F.layer_norm(a + 30, (32,)), draw(4, 32)),
    "group": (lambda a, w, b: F.group_norm(a, 2, w, b), draw(2, 6, 3, 4), draw(6), draw(6)),
    "group, alone": (lambda a: F.group_norm(a, 2), draw(2, 6, 3, 4)),
    "group over lines": (lambda a, w, b: F.group_norm(a, 3, w, b), draw(2, 6, 7), draw(6), draw(6)),
    "group over vectors": (lambda a, w: F.group_norm(a, 3, w), draw(2, 6), draw(6)),
    "instance": (lambda a: F.instance_norm(a), draw(2, 3, 4, 5)),
    "frozen batch": (
        frozen_batch_norm,
        draw(2, 3, 4, 5),
        draw(3),
        draw(3),
    ),
    "frozen batch over vectors": (
        frozen_batch_norm,
        draw(4, 3),
        draw(3),
        draw(3),
    ),
    "frozen batch over lines": (frozen_batch_norm, draw(4, 3, 5)),
    "standardised weights": (
        standardised,
        draw(4, 3, 3, 3),
        draw(4),
    ),
    "root mean square": (lambda a, w: F.rms_norm(a, (6,), w, 1e-6), draw(2, 5, 6), draw(6)),
}

AVERAGES = [
    (image, kernel, stride, padding, ceiling, counted)
    for image, kernel, stride, padding, ceiling, counted in itertools.product(
        ((7, 8), (9, 6)), (2, (3, 2)), (1, 2, 3), (0, 1), (False, True), (False, True)
    )
][::5]

POOLS: dict[str, Case] = {
    **{
        f"average {window}": (lambda a, window=window: F.avg_pool2d(a, *window[1:]), draw(2, 3, *window[0]))
        for window in AVERAGES
    },
    "average by a divisor": (lambda a: F.avg_pool2d(a, 2, 2, divisor_override=3), draw(2, 3, 6, 6)),
    "average of lines": (lambda a: F.avg_pool1d(a, 3, 2, 1), draw(2, 3, 9)),
    "adaptive": (lambda a: F.adaptive_avg_pool2d(a, (3, 4)), draw(2, 3, 7, 9)),
    "adaptive, of lines": (lambda a: F.adaptive_avg_pool1d(a, 4), draw(2, 3, 9)),
    "adaptive to one": (lambda a: F.adaptive_avg_pool2d(a, 1), draw(2, 3, 7, 9)),
    "adaptive max": (lambda a: F.adaptive_max_pool2d(a, (2, 3)), draw(2, 3, 6, 9)),
    "max of lines": (lambda a: F.max_pool1d(a, 3, 2, 1), draw(2, 3, 9)),
    "nearest": (lambda a: F.interpolate(a, scale_factor=2.0), draw(2, 3, 4, 5)),
    "nearest to a size": (lambda a: F.interpolate(a, (7, 3)), draw(2, 3, 4, 5)),
    "nearest exact": (lambda a: F.interpolate(a, (7, 3), mode="nearest-exact"), draw(2, 3, 4, 5)),
    "nearest, of lines": (lambda a: F.interpolate(a, 7), draw(2, 3, 4)),
    "linear, of lines": (lambda a: F.interpolate(a, 7, mode="linear"), draw(2, 3, 4)),
    "bilinear": (lambda a: F.interpolate(a, (7, 3), mode="bilinear"), draw(2, 3, 4, 5)),
    "bilinear, aligned": (
        lambda a: F.interpolate(a, (7, 3), mode="bilinear", align_corners=True),
        draw(2, 3, 4, 5),
    ),
    "bilinear by a factor": (lambda a: F.interpolate(a, scale_factor=1.7, mode="bilinear"), draw(2, 3, 4, 5)),
    "bicubic": (lambda a: F.interpolate(a, (7, 9), mode="bicubic"), draw(2, 3, 4, 5)),
}

FAMILIES = {
    "arithmetic": ARITHMETIC,
    "shapes": SHAPES,
    "indices": INDICES,
    "reductions": REDUCTIONS,
    "products": PRODUCTS,
    "norms": NORMS,
    "pools": POOLS,
}
