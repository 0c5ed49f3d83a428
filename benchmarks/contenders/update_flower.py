"""Flower's path of an update: its objects made from their bytes, then its FedAvg's weighted mean of the round."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from benchmarks.contenders.turns import turns
from benchmarks.contenders.update import UPDATES, update_arrays


def main() -> None:
    dense, _, rows = update_arrays()
    messages = []
    for client_id in range(UPDATES):
        # Another number in every array, or objects of the same content would be sent and kept once.
        arrays = {name: Array(value + client_id) for name, value in {**dense, "columns": rows}.items()}
        metrics = MetricRecord({"num-examples": 100})
        record = RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics})
        contents = {name: part.deflate() for name, part in get_all_nested_objects(record).items()}
        messages.append((record.object_id, contents))
    for _ in turns():
        records = [
            inflate_object_from_contents(name, contents, keep_object_contents=True)
            for name, contents in messages
        ]
        aggregate_arrayrecords(records, "num-examples")


if __name__ == "__main__":
    main()
