"""The client of Flower's simulation, in a module of its own: Ray pickles its functions by name then, and `opened` is kept.

Functions of the program that was started would be pickled by value, and everything opened anew for every client."""

from __future__ import annotations

from functools import lru_cache

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from benchmarks.contenders.problem import FULL_SOFTMAX, LEARNING_RATE, ClientData, Network, Problem


@lru_cache(maxsize=1)
def opened(scheme: str) -> tuple[Network, list[ClientData]]:
    """Kept by the actor from client to client."""
    torch.set_num_threads(1)
    problem = Problem(scheme)
    return Network(problem), problem.client_data()


def train(message: Message, context: Context) -> Message:
    scheme = str(message.content["config"]["scheme"])
    network, clients = opened(scheme)
    network.load_state_dict(message.content["arrays"].to_torch_state_dict())
    client = clients[int(context.node_config["partition-id"])]
    ids = None if scheme == FULL_SOFTMAX else torch.from_numpy(client.ids)
    optimizer = torch.optim.SGD(network.parameters(), lr=LEARNING_RATE)
    for images, labels in client.batches():
        optimizer.zero_grad()
        network.loss(images, labels, ids, client.adjust).backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": len(client.labels)})
    arrays = ArrayRecord(network.state_dict())
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


app = ClientApp()
app.train()(train)
