"""READ THIS FIRST: one FedSS round, top to bottom (Algorithm 1, lines 4-13).

Where the clients run (in this process, in worker processes, on phones) is the link's business: it carries the same bytes.
A client that fails or answers with nonsense is dropped, with its reason, and the round goes on.  When too few are left the
round is abandoned before the state has changed, and may be tried again with other clients.  So it is when the updates
have no finite mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ondevice.contract import wire
from ondevice.contract.choice import Choice
from ondevice.contract.link import ClientFailure, Link, Pieces, Trace
from ondevice.contract.messages.envelope import kind_of
from ondevice.contract.messages.lookup import found_to_bytes
from ondevice.contract.vocabulary import COLUMNS, IntArray, RoundPlan
from ondevice.contract.wire import DEFAULT_LIMITS, Envelope, UpdateLimits, WireError
from server_sim.server.aggregation import AggregatedUpdate, Aggregator, MeanUnusable
from server_sim.server.row_index import RowIndex
from server_sim.server.slice_encoder import SliceEncoder
from server_sim.server.state import ServerState, SideTable

_REASONS_TOLD = 5
"""Of the clients that were dropped, when a round is abandoned: all of them are in the report."""


class RoundAbandoned(RuntimeError):
    """Too few clients were left, or no mean; the state is as it was."""

    def __init__(self, reason: str, traces: Sequence[Trace] = ()) -> None:
        super().__init__(reason)
        self.traces = traces


@dataclass
class RoundReport:
    """What a round cost and brought."""

    round_index: int
    num_updates: int = 0
    mean_loss: float = float("nan")
    mean_width: float = 0.0
    """Mean |S_k|: rows that a client asked for, over all tables."""
    most_examples: int = 0
    """Of the client that trained on most: it says how long the round takes where clients train side by side."""
    bytes_down: int = 0
    """Slices, and rows that were looked up, as encoded."""
    bytes_up: int = 0
    """Requests, look-ups and updates, as encoded."""
    dropped: dict[int, str] = field(default_factory=dict)
    """Client -> why it was dropped."""
    traces: list[Trace] = field(default_factory=list)
    """Where the programs of dropped clients raised, if they did."""


@dataclass(frozen=True)
class RoundRules:
    """What holds for every round of a run."""

    min_clients: int = 1
    """With fewer updates than this the round is abandoned."""
    limits: UpdateLimits = DEFAULT_LIMITS
    """What one client may do to it."""
    sides: Mapping[str, SideTable] = field(default_factory=dict)
    """What comes with every slice beside the model; the plan names them."""
    slice_transforms: tuple[Choice, ...] = ()
    """What is done to a slice before it is encoded."""
    before_apply: Callable[[AggregatedUpdate, ServerState], AggregatedUpdate] = lambda mean, _: mean
    """The server's say between the mean and the optimizer."""
    index: RowIndex | None = None
    """What finds the rows near a client's data, where clients ask for that first."""


def run_round(
    state: ServerState,
    plan: RoundPlan,
    client_ids: Sequence[int],
    link: Link,
    aggregator: Aggregator,
    rules: RoundRules = RoundRules(),
) -> RoundReport:
    """One round; on return the state has moved on by one."""
    report = RoundReport(plan.round_index)
    expected = state.expected_update()
    sampled: dict[int, Mapping[str, IntArray]] = {}
    slices = SliceEncoder(state.dense, rules.slice_transforms)
    aggregator.start()

    def answer(client_id: int, request: bytes) -> bytes | Pieces:
        """Lines 6-7: the client asks for the rows of S_k, the server sends φ and W_S."""
        report.bytes_up += len(request)
        envelope = Envelope(plan.round_index, client_id)
        kind = kind_of(request) if rules.index is not None else "request"
        message: bytes | Pieces
        if rules.index is not None and kind == "lookup":
            ids = rules.index.find(envelope, request)
            message = found_to_bytes(envelope, COLUMNS, state.rows(COLUMNS, ids))
        elif kind == "rows":
            sampled[client_id] = wire.request_from_bytes(request, envelope, plan.table_sizes, "rows")
            message = slices.encode_rows(envelope, state.slice_model(sampled[client_id], rules.sides))
        else:
            sampled[client_id] = wire.request_from_bytes(request, envelope, plan.table_sizes)
            message = slices.encode(envelope, state.slice_model(sampled[client_id], rules.sides))
        report.bytes_down += len(message)
        return message

    for client_id, outcome in link.exchange(plan, client_ids, answer):  # line 4: for each client
        try:
            if isinstance(outcome, ClientFailure):
                raise outcome
            report.bytes_up += len(outcome)
            if client_id not in sampled:
                raise WireError("an update came without a request before it")
            ids = sampled.pop(client_id)
            envelope = Envelope(plan.round_index, client_id)
            update = wire.update_from_bytes(outcome, envelope, ids, expected, rules.limits)
        except (ClientFailure, WireError) as error:
            report.dropped[client_id] = str(error)
            if isinstance(error, ClientFailure) and error.trace is not None:
                report.traces.append(error.trace)
            continue
        aggregator.add(update)  # line 12, streamed
        report.num_updates += 1
        report.most_examples = max(report.most_examples, update.num_examples)
        width = sum(map(len, ids.values()))
        report.mean_width += (width - report.mean_width) / report.num_updates

    if report.num_updates < rules.min_clients:
        raise RoundAbandoned(
            f"round {plan.round_index}: {report.num_updates} of {len(client_ids)} clients are left, "
            f"at least {rules.min_clients} are needed ({_first_reasons(report.dropped)})",
            report.traces,
        )
    try:
        aggregate = aggregator.mean()
    except MeanUnusable as error:
        raise RoundAbandoned(f"round {plan.round_index}: {error}", report.traces) from None
    report.mean_loss = aggregate.mean_loss
    state.apply(rules.before_apply(aggregate, state))  # line 13
    if rules.index is not None:
        rules.index.refresh(aggregate.tables[COLUMNS].ids)
    return report


def _first_reasons(dropped: Mapping[int, str]) -> str:
    told = [f"client {client_id}: {reason}" for client_id, reason in list(dropped.items())[:_REASONS_TOLD]]
    more = len(dropped) - len(told)
    return "; ".join([*told, f"and {more} more"] if more else told)
