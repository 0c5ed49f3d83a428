"""Our server's path of an update: decode, check everything, add to the sums; then the mean of the round."""

from __future__ import annotations

from benchmarks.contenders.turns import turns
from benchmarks.contenders.update import CLASSES, DIM, UPDATES, update_arrays
from ondevice.contract import wire
from ondevice.contract.vocabulary import COLUMNS, ClientUpdate, Rows
from ondevice.contract.wire import Envelope, Expected
from ondevice.model.kept_memory import keep_freed_memory
from server_sim.server.aggregation import Aggregator


def main() -> None:
    keep_freed_memory()  # as every engine does
    dense, ids, rows = update_arrays()
    update = ClientUpdate(dense, {COLUMNS: Rows(ids, rows)}, num_examples=100, mean_loss=1.0)
    messages = [wire.update_to_bytes(Envelope(0, client_id), update) for client_id in range(UPDATES)]
    shapes = {name: value.shape for name, value in dense.items()}
    expected = Expected(shapes, {COLUMNS: CLASSES}, {COLUMNS: DIM})
    aggregator = Aggregator(shapes, {COLUMNS: (CLASSES, DIM)}, "selected")
    for _ in turns():
        aggregator.start()
        for client_id, message in enumerate(messages):
            envelope = Envelope(0, client_id)
            aggregator.add(wire.update_from_bytes(message, envelope, {COLUMNS: ids}, expected))
        aggregator.mean()


if __name__ == "__main__":
    main()
