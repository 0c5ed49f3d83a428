"""Well-formed messages of clients that mean harm: each costs that client, at worst its round, and never the run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.artifacts.tiny_artifact import make_tiny_artifact
from helpers.federations.tiny_federation import TinyFederation, state_bytes, tiny_plan

from fedss.commands.inspect import command as inspect
from fedss.commands.simulate import _round_progress
from fedss.console import log
from ondevice.client.client import Client
from ondevice.contract import safetensors_file, wire
from ondevice.contract.artifact import ArtifactError, rewrite_manifest
from ondevice.contract.link import Answer, Ask, ClientFailure
from ondevice.contract.messages.plain_text import plain_text
from ondevice.contract.vocabulary import COLUMNS, ClientUpdate, RoundPlan, Rows
from ondevice.contract.wire import Envelope, UpdateLimits, WireError
from server_sim.engines.in_process import InProcessLink
from server_sim.experiment import load_experiment
from server_sim.one_round import RoundAbandoned, RoundRules, run_round
from server_sim.runs.records import round_record
from server_sim.server.aggregation import Aggregator, Denominator, MeanUnusable
from server_sim.server.optimizers import FedAdam, FedAvg, FedAvgM, ServerOptimizer

PLAN = tiny_plan()
OPTIMIZERS: dict[str, ServerOptimizer] = {"fedavg": FedAvg(), "fedavgm": FedAvgM(), "fedadam": FedAdam()}
UNLIMITED = UpdateLimits(2**62, 3.4e38)


class Liar:
    """Trains honestly, and then says something else."""

    def __init__(self, honest: Client, change: float | None = None, num_examples: int | None = None) -> None:
        self._honest, self._change, self._num_examples = honest, change, num_examples

    def converse(self, plan: RoundPlan, ask: Ask) -> bytes:
        tensors, metadata = safetensors_file.from_bytes(self._honest.converse(plan, ask))
        told = dict(tensors)
        for name, tensor in tensors.items():
            if self._change is not None and name.startswith(("table.", "dense.")):
                assert isinstance(tensor, np.ndarray)
                told[name] = np.full_like(tensor, self._change)
        if self._num_examples is not None:
            told["num_examples"] = np.array([self._num_examples], np.int64)
        return safetensors_file.to_bytes(told, metadata)


def federation(optimizer: ServerOptimizer, denominator: Denominator) -> tuple[TinyFederation, Aggregator]:
    tiny = TinyFederation(optimizer=optimizer)
    shapes = {COLUMNS: (tiny.num_classes, tiny.spec.column_dim)}
    return tiny, Aggregator(tiny.backend.signature.dense_shapes, shapes, denominator)


def link_with_liar(tiny: TinyFederation, **lie: float | int) -> InProcessLink:
    def open_client(client_id: int) -> Client | Liar:
        honest = tiny.client(client_id)
        return Liar(honest, **lie) if client_id == 1 else honest  # type: ignore[arg-type]  # as the lie says

    return InProcessLink(open_client)


@pytest.mark.parametrize("change", [3e38, 1e30, -1e20])
@pytest.mark.parametrize("denominator", ["selected", "holders"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_enormous_difference_costs_its_client_alone(
    optimizer: str, denominator: Denominator, change: float
) -> None:
    disturbed, aggregator = federation(OPTIMIZERS[optimizer], denominator)
    report = run_round(disturbed.state, PLAN, [0, 1, 2], link_with_liar(disturbed, change=change), aggregator)
    assert list(report.dropped) == [1]
    assert "server.max_change" in report.dropped[1]
    undisturbed, aggregator = federation(OPTIMIZERS[optimizer], denominator)
    run_round(undisturbed.state, PLAN, [0, 2], undisturbed.link(), aggregator)
    assert state_bytes(disturbed) == state_bytes(undisturbed)


def test_where_no_limits_are_set_an_update_beyond_float32_is_still_refused_and_no_mean_beyond_it_is_applied() -> (
    None
):
    tiny, aggregator = federation(FedAdam(), "selected")
    before = state_bytes(tiny)
    report = run_round(
        tiny.state, PLAN, [0, 1], link_with_liar(tiny, change=3e38), aggregator, RoundRules(limits=UNLIMITED)
    )
    assert "beyond float32" in report.dropped[1]
    again = TinyFederation(optimizer=FedAdam())
    with pytest.raises(RoundAbandoned, match="the mean of the updates reaches 1e\\+30"):
        run_round(
            again.state,
            PLAN,
            [1],
            link_with_liar(again, change=1e30),
            again.aggregator(),
            RoundRules(limits=UNLIMITED),
        )
    assert state_bytes(again) == before


@pytest.mark.parametrize("denominator", ["selected", "holders"])
def test_a_sum_that_overflows_has_no_mean(denominator: Denominator) -> None:
    aggregator = Aggregator({"w": (1,)}, {COLUMNS: (3, 2)}, denominator)
    delta = np.full((1, 2), 3e38, np.float32)
    with np.errstate(over="ignore"):
        for sign in (1, 1, -1):
            aggregator.add(
                ClientUpdate(
                    {"w": delta[0, :1] * np.float32(sign)}, {COLUMNS: Rows(np.array([1]), delta)}, 1, 0.5
                )
            )
    with pytest.raises(MeanUnusable, match=r"lower server\.max_change"):
        aggregator.mean()


@pytest.mark.parametrize("claimed", [2**62, 2**63 - 1, 31])
def test_more_examples_than_a_client_can_have_cost_it_its_place(tiny: TinyFederation, claimed: int) -> None:
    limits = UpdateLimits(max_examples=30)
    link = link_with_liar(tiny, num_examples=claimed)
    report = run_round(tiny.state, PLAN, [0, 1, 2], link, tiny.aggregator(), RoundRules(limits=limits))
    assert report.dropped == {
        1: f"num_examples is {claimed}; expected 1 to 30 (server.max_examples)",
    }
    undisturbed = TinyFederation()
    run_round(undisturbed.state, PLAN, [0, 2], undisturbed.link(), undisturbed.aggregator())
    assert state_bytes(tiny) == state_bytes(undisturbed)


def test_a_limit_that_is_met_exactly_is_kept(tiny: TinyFederation) -> None:
    held = len(tiny.clients[1])
    limits = UpdateLimits(max_examples=held)
    assert (
        run_round(
            tiny.state, PLAN, [1], tiny.link(), tiny.aggregator(), RoundRules(limits=limits)
        ).num_updates
        == 1
    )


def test_an_update_without_a_request_costs_its_client(tiny: TinyFederation) -> None:
    class Forgetful:
        """A link whose client 1 never asked."""

        def exchange(
            self, plan: RoundPlan, client_ids: Sequence[int], answer: Answer
        ) -> Iterator[tuple[int, bytes | ClientFailure]]:
            yield from tiny.link().exchange(plan, client_ids[:1], answer)
            yield 1, b"an update"

    report = run_round(tiny.state, PLAN, [0, 1], Forgetful(), tiny.aggregator())
    assert report.dropped == {1: "an update came without a request before it"}


NASTY = "[/evil] \x1b[31mred\x1b[0m \ud800 \x00 :warning: " + "x" * 1_000_000


def test_what_a_client_says_is_made_plain_where_it_enters() -> None:
    with pytest.raises(WireError) as caught:
        wire.request_from_bytes(
            safetensors_file.to_bytes(
                {NASTY[:200_000]: np.zeros(1, np.int64)},
                {"kind": "request", "version": "2", "round": "0", "client": "0"},
            ),
            Envelope(0, 0),
            {COLUMNS: 20},
        )
    for reason in (str(caught.value), str(ClientFailure(NASTY)), plain_text(NASTY)):
        assert len(reason) <= 200
        assert reason.isprintable()
        assert "[/evil]" in reason
    assert plain_text("short, and with ümläuts 漢字") == "short, and with ümläuts 漢字"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_prints_what_a_client_says_as_it_is(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = {"round": 0, "mean_loss": 1.0, "dropped": {"3": "[/evil] :warning:"}, "abandoned": ["[/x]"]}
    monkeypatch.setattr(log, "_force_terminal", is_terminal)
    experiment = load_experiment("glyphs-tiny", ["server.rounds=1"])
    with _round_progress(experiment) as on_round:
        on_round(round_record(line, experiment))
    printed = capsys.readouterr().err
    assert "dropped client 3: [/evil] :warning:" in printed
    assert "abandoned: [/x]" in printed


def test_an_artifact_with_markup_for_names_is_shown_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a long path would be broken in the middle of its name
    artifact = make_tiny_artifact(Path("[bold]artifact"))
    rewrite_manifest(
        artifact.directory, replace(artifact.manifest, operators={":warning:": {":warning:step": 1}})
    )
    inspect(artifact.directory, width=2)
    printed = capsys.readouterr().out
    for name in ("[bold]artifact", ":warning:", ":warning:step"):
        assert name in printed


@pytest.mark.parametrize("operators", [{"[/file]": {"gemm": 1}}, {"step.pte": {"[/operator]": 1}}])
def test_an_artifact_with_brackets_in_its_names_is_refused(
    operators: dict[str, dict[str, int]], tmp_path: Path
) -> None:
    artifact = make_tiny_artifact(tmp_path / "artifact")
    rewrite_manifest(artifact.directory, replace(artifact.manifest, operators=operators))
    with pytest.raises(
        ArtifactError, match=r"operators.* is '.*'; expected .*printable characters without brackets"
    ):
        inspect(artifact.directory, width=2)
