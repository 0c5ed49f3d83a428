"""One table, used twice: a word's row is read where the word stands and predicted from where it is next."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from helpers.data.tiny_texts import BAG, LENGTH, TIED, TOKEN, VOCABULARY, tiny_texts
from helpers.federations.tiny_federation import first_question
from torch import Tensor
from torch.nn import functional as F

from export.audit import check_examples_are_independent
from export.proof.golden import build_step
from ondevice.backends.eager import EagerBackend, initial_parameters
from ondevice.client.client import Client
from ondevice.client.local_training import positions_of
from ondevice.client.samplers import SAMPLERS, SamplingView
from ondevice.client.samplers.sampling import numbers_of
from ondevice.contract import wire
from ondevice.contract.choice import Choice, chosen
from ondevice.contract.step_signature import gradient_of
from ondevice.contract.tokens import NUM_SPECIAL, PADDING, TOKENS
from ondevice.contract.vocabulary import (
    COLUMNS,
    EXCLUDED,
    ExampleSet,
    FloatArray,
    LocalTraining,
    RoundPlan,
    RowSample,
    StepSpec,
)
from ondevice.contract.wire import Envelope
from ondevice.model.extractors import build_extractor
from ondevice.model.extractors.transformer import TiedTransformer
from ondevice.model.train_step import TrainStep
from server_sim.engines.in_process import InProcessLink
from server_sim.one_round import run_round
from server_sim.server.aggregation import Aggregator
from server_sim.server.optimizers import FedAvg
from server_sim.server.state import ServerState

RATE = 0.05
SAMPLER = Choice("word_negatives", {"num_negatives": 5})
DOT = dataclasses.replace(TIED, logits="dot")


def plan(sampler: Choice = SAMPLER) -> RoundPlan:
    training = LocalTraining(batch_size=32, learning_rate=RATE)
    return RoundPlan(0, {COLUMNS: VOCABULARY}, sampler, Choice("uniform"), local_training=training)


def drawn(examples: ExampleSet, seed: int = 7, sampler: Choice = SAMPLER) -> RowSample:
    everyone = np.arange(len(examples))
    view = SamplingView(plan(), examples.labels, seed, numbers_of(examples, everyone))
    return chosen(SAMPLERS, sampler, "sampler").draw(view)


def table(spec: StepSpec, seed: int = 0) -> FloatArray:
    return np.random.default_rng(seed).standard_normal((VOCABULARY, spec.column_dim), np.float32)


def reference(
    spec: StepSpec, examples: ExampleSet, sample: RowSample, read: Tensor, predicted: Tensor
) -> tuple[Tensor, TiedTransformer]:
    """The mean loss in float64, place by place in plain Python: nothing of the objective's code."""
    extractor = build_extractor(spec)
    assert isinstance(extractor, TiedTransformer)
    initial = initial_parameters(spec, 0)
    extractor.load_state_dict({name: torch.from_numpy(value) for name, value in initial.items()})
    extractor.double()
    ids = sample.ids[COLUMNS]
    tokens = torch.from_numpy(positions_of(examples.features[TOKENS], ids, TOKENS))
    outputs = extractor(tokens, read)
    adjust = torch.from_numpy(sample.sides["adjust"]).double()
    losses = []
    for text, label, places in zip(tokens.tolist(), examples.labels.tolist(), outputs, strict=True):
        words = [word for word in text if word != PADDING]
        targets = [*words[1:], int(np.searchsorted(ids, label))]
        counted = []
        for place, target in enumerate(targets):
            if target < NUM_SPECIAL:
                continue
            if spec.logits == "dot":
                logits = predicted[:, :-1] @ places[place] + predicted[:, -1]
            else:
                logits = 20 * F.cosine_similarity(predicted, places[place][None])
            counted.append(F.cross_entropy((logits + adjust)[None], torch.tensor([target])))
        losses.append(torch.stack(counted).mean())
    return torch.stack(losses).mean(), extractor


@pytest.mark.parametrize("spec", [TIED, DOT], ids=["cosine", "dot"])
def test_a_rows_gradient_is_the_sum_of_both_uses(spec: StepSpec) -> None:
    examples = tiny_texts(9, seed=1)
    sample = drawn(examples)
    ids = sample.ids[COLUMNS]
    rows = table(spec)[ids]
    # Two tables that hold the same numbers: each use has a gradient of its own.
    read, predicted = (torch.from_numpy(rows).double().requires_grad_() for _ in range(2))
    loss, extractor = reference(spec, examples, sample, read, predicted)
    loss.backward()
    assert read.grad is not None
    assert predicted.grad is not None
    assert min(float(use.grad.norm()) for use in (read, predicted) if use.grad is not None) > 1e-3

    initial = initial_parameters(spec, 0)
    step = EagerBackend(spec, initial).step(
        {
            **initial,
            COLUMNS: rows,
            "adjust": sample.sides["adjust"],
            TOKENS: positions_of(examples.features[TOKENS], ids, TOKENS),
            "labels": positions_of(examples.labels, ids, "labels"),
            "example_weight": np.full(9, np.float32(1 / 9)),
        }
    )
    assert float(step["loss"]) == pytest.approx(loss.item(), rel=1e-5)
    exact = {name: tensor.grad for name, tensor in extractor.named_parameters()}
    exact[COLUMNS] = read.grad + predicted.grad
    for name, gradient in exact.items():
        assert gradient is not None, name
        assert np.linalg.norm(step[gradient_of(name)] - gradient.numpy()) < 2e-5 * gradient.norm(), name


def test_a_client_asks_for_what_it_reads_and_predicts_and_others_each_row_once() -> None:
    examples = tiny_texts(9, seed=1)
    sample = drawn(examples)
    ids, adjust = sample.ids[COLUMNS], sample.sides["adjust"]
    held = {*range(NUM_SPECIAL), *examples.labels.tolist(), *examples.features[TOKENS].ravel().tolist()}
    assert len(set(ids.tolist())) == len(ids) == len(held) + 5
    assert held <= set(ids.tolist())
    assert (adjust[:NUM_SPECIAL] == EXCLUDED).all()
    others = np.array([row not in held for row in ids.tolist()])
    np.testing.assert_allclose(adjust[others], -np.log(5 / (VOCABULARY - len(held))), rtol=1e-6)
    assert not adjust[~others][NUM_SPECIAL:].any()
    client = Client(3, examples, 7, lambda: pytest.fail("asking needs no runtime"))
    asked = wire.request_from_bytes(first_question(client, plan()), Envelope(0, 3), plan().table_sizes)
    np.testing.assert_array_equal(asked[COLUMNS], ids)


def test_a_round_moves_the_asked_rows_by_both_uses_and_no_others() -> None:
    examples = tiny_texts(9, seed=1)
    sample = drawn(examples)
    ids, initial, before = sample.ids[COLUMNS], initial_parameters(TIED, 0), table(TIED)
    backend = EagerBackend(TIED, initial)
    state = ServerState.fresh(
        FedAvg(), {name: value.copy() for name, value in initial.items()}, {COLUMNS: before.copy()}
    )
    aggregator = Aggregator(backend.signature.dense_shapes, {COLUMNS: before.shape}, "selected")
    link = InProcessLink(lambda client_id: Client(client_id, examples, 7, lambda: backend))
    report = run_round(state, plan(), [0], link, aggregator)
    assert not report.dropped
    assert report.mean_width == len(ids)
    rows = torch.from_numpy(before[ids]).double().requires_grad_()
    loss, _ = reference(TIED, examples, sample, rows, rows)
    loss.backward()
    assert rows.grad is not None
    expected = before.copy()
    expected[ids] -= RATE * rows.grad.numpy()
    np.testing.assert_allclose(state.tables[COLUMNS].read_all(state.round_index), expected, atol=2e-6)


def test_a_place_knows_nothing_of_later_words_nor_of_padding() -> None:
    extractor = build_extractor(TIED)
    columns = torch.from_numpy(table(TIED))
    tokens = torch.tensor([[2, 9, 7, 0, 0, 0], [2, 9, 7, 30, 5, 0]])
    changed = columns.clone()
    changed[PADDING] += 1
    with torch.no_grad():
        outputs, others = (extractor(tokens, rows).numpy() for rows in (columns, changed))
        summary = extractor.summary(torch.from_numpy(outputs), tokens, columns).numpy()
    np.testing.assert_allclose(outputs[0, :3], outputs[1, :3], atol=1e-6)
    np.testing.assert_allclose(others[0, :3], outputs[0, :3], atol=1e-6)
    assert np.abs(outputs[0, 3] - outputs[1, 3]).max() > 1e-3
    # The last word's place first, which stands for the text, then the ones before it: all that predict a word.
    np.testing.assert_array_equal(summary[0, :3], outputs[0, 2::-1])
    np.testing.assert_array_equal(summary[1, :5], outputs[1, 4::-1])
    assert not summary[0, 3:].any()
    assert not summary[1, 5:].any()


def test_a_text_without_a_word_to_predict_loses_nothing() -> None:
    """Special tokens are no targets, and padding is no place."""
    initial = initial_parameters(TIED, 0)
    tokens = np.zeros((2, LENGTH), np.int64)
    tokens[0, :2] = 2, 1
    step = EagerBackend(TIED, initial).step(
        {
            **initial,
            COLUMNS: table(TIED),
            "adjust": np.zeros(VOCABULARY, np.float32),
            TOKENS: tokens,
            "labels": np.array([3, 9]),
            "example_weight": np.ones(2, np.float32),
        }
    )
    assert float(step["loss"]) == 0
    assert not any(step[gradient_of(name)].any() for name in (*initial, COLUMNS))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (dataclasses.replace(TIED, objective="sampled_softmax"), "sampled_softmax takes .b, d.: choose the"),
        (dataclasses.replace(TOKEN, objective="next_word"), "next_word takes an output per place"),
    ],
    ids=["one", "per place"],
)
def test_an_objective_that_does_not_fit_its_extractor_is_named(spec: StepSpec, message: str) -> None:
    initial = initial_parameters(spec, 0)
    backend = EagerBackend(spec, initial)
    sizes = {"b": 2, "rows:columns": 5}
    data = {each.name: np.zeros(each.sizes(sizes), each.dtype) for each in backend.signature.data}
    with pytest.raises(ValueError, match=message):
        backend.step({**initial, **data})


def test_a_client_without_texts_is_told_what_its_sampler_reads() -> None:
    examples = ExampleSet({"images": np.zeros((1, 1, 8, 8), np.uint8)}, np.array([5]))
    with pytest.raises(ValueError, match="no feature 'tokens' of whole numbers, which its sampler reads"):
        first_question(Client(0, examples, 7, lambda: pytest.fail("no runtime")), plan())


def test_texts_of_another_length_are_refused_before_they_are_trained_on() -> None:
    texts = tiny_texts(3, seed=1)
    longer = ExampleSet({TOKENS: np.pad(texts.features[TOKENS], ((0, 0), (0, 2)))}, texts.labels)
    client = Client(0, longer, 7, lambda: EagerBackend(TIED, initial_parameters(TIED, 0)))
    with pytest.raises(
        ValueError, match=r"tokens are int64 \[3, 8\]; the step takes int64 \[b, 6\]: export for"
    ):
        client.converse(plan(), lambda question: question)


def test_a_word_that_no_table_has_is_refused() -> None:
    texts = tiny_texts(3, seed=1)
    texts.features[TOKENS][1, 1] = VOCABULARY
    with pytest.raises(ValueError, match="tokens reach from 0 to 40; expected 0 to 39"):
        drawn(texts)


@pytest.mark.parametrize(
    "spec", [TIED, DOT, TOKEN, BAG], ids=lambda spec: f"{spec.architecture} {spec.logits}"
)
def test_every_text_is_treated_by_itself(spec: StepSpec) -> None:
    check_examples_are_independent(build_step(spec, initial_parameters(spec, 0)), seed=0)


def test_a_gradient_that_is_rounding_alone_is_no_dependence() -> None:
    """A bias of attention's keys changes no softmax: what autograd gives for it adds up to nothing."""
    extractor = build_extractor(TOKEN)
    extractor.get_submodule("layers.blocks.0").key = torch.nn.Linear(16, 16)
    check_examples_are_independent(TrainStep(TOKEN, extractor), seed=0)
