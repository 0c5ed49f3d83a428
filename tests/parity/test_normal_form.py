"""Any module's training step as a graph in normal form: the same numbers as autograd's, in operators that lowerings know."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional as F

from export.decompositions import WHOLE
from export.layers import label_of
from export.refusal import place_of, unsupported
from export.trace import trace_embed, trace_loss, trace_step
from export.unsupported_operator import UnsupportedOperator
from ondevice.contract.step_signature import ArraySpec
from ondevice.contract.vocabulary import StepSpec
from ondevice.model.extractors.extractor import Extractor
from ondevice.model.train_step import TrainStep, step_outputs

EXAMPLES, DIM, ROWS = 2, 6, 5
aten = torch.ops.aten


class Own(Extractor):
    """Somebody's module over an array of its own."""

    def __init__(self, body: nn.Module, *inputs: ArraySpec) -> None:
        super().__init__()
        self.inputs = inputs
        self.body = body

    def forward(self, *features: Tensor) -> Tensor:
        embeddings: Tensor = self.body(*features)
        return embeddings


class Written(nn.Module):
    """Activations and sums in place, writes into slices, and a copy that is written to while the original is read."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, DIM, 3, padding=1), nn.Conv2d(DIM, DIM, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x).relu_()
        copied = y.clone()
        copied[:, 1:3].mul_(2.0)
        copied[:, 0] = y[:, 5]
        z = self.second(copied)
        z += y
        return F.hardswish(z, inplace=True).mean((2, 3))


class Tokens(nn.Module):
    """Integer buffers, tensors made on the way, a plain attribute, and a table that is used at both ends."""

    order: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.scores = nn.Linear(8, 11, bias=False)
        self.scores.weight = self.table.weight
        self.register_buffer("order", torch.tensor([3, 2, 1, 0]))
        self.factors = torch.tensor([1.0, 0.5, 0.25, 2.0])
        self.embedding = nn.Linear(19, DIM)

    def forward(self, tokens: Tensor) -> Tensor:
        steps = torch.arange(tokens.shape[1]).float() / torch.tensor(4.0)
        hidden = self.table(tokens)[:, self.order] * (self.factors + steps)[:, None]
        mask = torch.ones(4, 4, dtype=torch.bool).tril()
        hidden = F.scaled_dot_product_attention(hidden, hidden, hidden, attn_mask=mask)
        both = torch.cat([hidden, self.scores(hidden)], -1)
        out: Tensor = self.embedding(both.mean(1))
        return out


class Heads(nn.Module):
    """Attention of two heads: permutes, copies and views of what does not lie in order."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, DIM)

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, 8)
        out: Tensor = self.out(y).mean(1)
        return out


class ChannelsLast(nn.Module):
    """LayerNorm over channels and an adaptive pooling of what then lies in another order."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, DIM, 3, stride=2), nn.LayerNorm(DIM)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return F.adaptive_avg_pool2d(F.gelu(y), 1).flatten(1)


class FrozenNorm(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Conv2d(3, DIM, 3), nn.BatchNorm2d(DIM), nn.ReLU6(True), nn.AdaptiveAvgPool2d(1))
        self.append(nn.Flatten())
        norm = self[1]
        assert isinstance(norm, nn.BatchNorm2d)
        nn.init.normal_(norm.running_mean, std=0.1)  # type: ignore[arg-type]
        nn.init.uniform_(norm.running_var, 0.5, 1.5)  # type: ignore[arg-type]
        norm.eval()


class Standardised(nn.Module):
    """BatchNorm over the weights of a convolution, and an activation of the rare tail."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.slope = nn.Parameter(torch.randn(DIM, 3, 3, 3)), nn.PReLU()

    def forward(self, x: Tensor) -> Tensor:
        rows = self.weight.reshape(1, DIM, -1)
        weight = F.batch_norm(rows, None, None, training=True).reshape(self.weight.shape)
        out: Tensor = self.slope(F.conv2d(x, weight, groups=1)).var((2, 3))
        return out


class Holder(nn.Module):
    b_c: Tensor
    c: Tensor

    def __init__(self, name: str, *shape: int) -> None:
        super().__init__()
        setattr(self, name, nn.Parameter(torch.randn(shape)))


class SameNames(nn.Module):
    """`a.b_c` and `a_b.c` are one name without their dots; `add` and `images` are names of the graph's."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.a_b = Holder("b_c", 8, DIM), Holder("c", DIM)
        self.add, self.images = nn.Parameter(torch.randn(DIM)), nn.Parameter(torch.randn(DIM))

    def forward(self, x: Tensor) -> Tensor:
        return (x.mean(1) @ self.a.b_c + self.a_b.c) * self.images + self.add


class Recurrent(nn.Module):
    """An LSTM over numbers that need no gradient, which oneDNN has an operator for."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(8, DIM, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        last: Tensor = self.recurrent(x)[0][:, -1]
        return last


class Shared(nn.Module):
    """One layer under two names, as CoaT's blocks share their position encodings."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.Linear(8, 8)
        self.first, self.second = layer, nn.Sequential(layer, nn.Linear(8, DIM))

    def forward(self, x: Tensor) -> Tensor:
        embeddings: Tensor = self.second(self.first(x).tanh()).mean(1)
        return embeddings


PIXELS = ArraySpec("x", "feature", ("b", 3, 7, 9))
SEQUENCE = ArraySpec("x", "feature", ("b", 4, 8))
TOKENS = ArraySpec("x", "feature", ("b", 4), "int64")
MODULES: dict[str, tuple[Callable[[], nn.Module], ArraySpec]] = {
    "in place": (Written, PIXELS),
    "own tensors": (Tokens, TOKENS),
    "heads": (Heads, SEQUENCE),
    "channels last": (ChannelsLast, PIXELS),
    "frozen norm": (FrozenNorm, PIXELS),
    "standardised weights": (Standardised, PIXELS),
    "same names": (SameNames, SEQUENCE),
    "recurrent": (Recurrent, SEQUENCE),
    "shared": (Shared, SEQUENCE),
    "bag": (lambda: nn.EmbeddingBag(11, DIM, mode="mean", padding_idx=1), TOKENS),
}


def step_of(name: str) -> TrainStep:
    build, feature = MODULES[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return TrainStep(StepSpec("own", DIM), Own(build(), feature))


def data_of(step: TrainStep) -> list[Tensor]:
    random = torch.Generator().manual_seed(2)
    (feature,) = step.signature.features
    shape = feature.sizes({"b": EXAMPLES})
    given = {
        "columns": torch.randn(ROWS, DIM, generator=random),
        "adjust": torch.rand(ROWS, generator=random),
        "labels": torch.tensor([1, 3]),
        "example_weight": torch.tensor([0.25, 0.75]),
        "x": torch.randint(0, 11, shape, generator=random)
        if feature.dtype == "int64"
        else torch.randn(shape, generator=random),
    }
    return [given[spec.name] for spec in step.signature.data]


@pytest.mark.parametrize("name", MODULES)
def test_the_graph_gives_autograds_numbers_in_operators_that_are_core_or_whole(name: str) -> None:
    step = step_of(name)
    columns, *others = data_of(step)
    leaf = columns.clone().requires_grad_()
    expected = step_outputs(step(leaf, *others), [*step.trainable_tensors(), leaf])
    traced = trace_step(step, EXAMPLES)
    found = traced(*(tensor.detach() for tensor in step.trainable_tensors()), columns, *others)
    for output, of_graph, of_autograd in zip(step.signature.outputs, found, expected, strict=True):
        torch.testing.assert_close(of_graph, of_autograd, rtol=1e-4, atol=1e-6, msg=f"{name}: {output}")
    assert not any(isinstance(tensor, FakeTensor) for tensor in step.parameters()), "tracing changed the step"
    for graph in (traced, trace_loss(step, EXAMPLES), trace_embed(step, EXAMPLES)):
        for node in graph.graph.nodes:
            if isinstance(node.target, OpOverload):
                assert not node.target._schema.is_mutable, node.target
                plain = str(node.target._schema.name).removeprefix("aten::")
                whole = torch.Tag.core in node.target.tags or plain in WHOLE or plain == "reshape"
                assert whole, f"{node.target} is neither core nor whole"
                assert not plain.startswith(("as_strided", "clone", "alias", "copy", "detach")), plain
                assert label_of(node) is not None, node


def test_frozen_batch_norm_has_one_name_and_no_saved_moments() -> None:
    nodes = trace_step(step_of("frozen norm"), EXAMPLES).graph.nodes
    (forward,) = [n for n in nodes if n.target is aten._native_batch_norm_legit_no_training.default]
    (backward,) = [n for n in nodes if n.target is aten.native_batch_norm_backward.default]
    assert [user.args[1] for user in forward.users] == [0]
    assert backward.args[5:8] == (None, None, False)
    assert not any("native_batch_norm.default" in str(node.target) for node in nodes)


def test_what_depends_on_no_input_is_computed_at_export() -> None:
    nodes = trace_step(step_of("own tensors"), EXAMPLES).graph.nodes
    targets = {str(node.target) for node in nodes}
    assert not targets & {"aten.tril.default", "aten.ones.default", "aten.index_select.default"}
    # The one that is left counts the rows of the table, whose number is not known.
    assert sum(str(node.target).startswith("aten.arange") for node in nodes) == 1


def test_tied_tables_are_one_input_with_one_gradient() -> None:
    step = step_of("own tensors")
    assert [name for name in step.trainable if "weight" in name] == [
        "body.table.weight",
        "body.embedding.weight",
    ]


def test_an_operators_place_is_its_layer_its_pass_and_its_line() -> None:
    nodes = trace_step(step_of("channels last"), EXAMPLES).graph.nodes
    (forward,) = [node for node in nodes if node.target is aten.native_layer_norm.default]
    (backward,) = [node for node in nodes if node.target is aten.native_layer_norm_backward.default]
    line = r"test_normal_form\.py line \d+: y = self\.norm\("
    assert re.fullmatch(rf"body\.norm, {line}.*", place_of(forward))
    assert re.fullmatch(rf"body\.norm, in its gradient, {line}.*", place_of(backward))
    message = str(unsupported(forward, "no", "write it by hand"))
    assert message.startswith("the model uses aten.native_layer_norm.default (at body.norm, ")
    assert message.endswith(": no; write it by hand")


def test_attention_without_a_mask_needs_no_guard() -> None:
    targets = {str(node.target) for node in trace_step(step_of("heads"), EXAMPLES).graph.nodes}
    assert "aten._softmax.default" in targets
    assert not targets & {"aten.any.dim", "aten.where.self"}


class UnequalBags(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.EmbeddingBag(11, DIM, mode="sum")

    def forward(self, tokens: Tensor) -> Tensor:
        bags: Tensor = self.bags(tokens.reshape(-1), torch.tensor([0, 3]))
        return bags


@pytest.mark.parametrize("build", [UnequalBags, lambda: nn.EmbeddingBag(11, DIM, mode="max")])
def test_bags_of_other_kinds_are_refused_with_what_to_do(build: Callable[[], nn.Module]) -> None:
    step = TrainStep(StepSpec("own", DIM), Own(build(), TOKENS))
    with pytest.raises(UnsupportedOperator, match=r"_embedding_bag.*bags are formulated for.*nn\.Embedding"):
        trace_step(step, EXAMPLES)
