"""The nodes' half: any client of the population, opened by its id where the node runs.

In Flower's deployment every message starts a new process on the node, so nothing is remembered: a conversation is held anew,
with the answers that were given so far, up to the client's next question.  Everything random in a client is a function of
its seed and the round, so it asks the same again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedss_flower.envelopes import Conversation, Reply, Said, pack_replies, unpack_conversations
from fedss_flower.settings import cache_of, experiment_of
from ondevice.client.client import Client
from ondevice.contract import wire
from ondevice.model.kept_memory import keep_freed_memory
from server_sim.data.population import open_population
from server_sim.engines.worker_process import failure_to_bytes
from server_sim.experiment import Experiment
from server_sim.preparation import ClientsRecipe, initial_weights, population_path, step_spec


class _Unanswered(Exception):
    """The client has asked what it has no answer to yet."""


def converse(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    keep_freed_memory()
    experiment = experiment_of(context.run_config)
    clients = _clients(experiment.model_dump_json(), str(cache_of(context.node_config)))
    conversations = unpack_conversations(message.content)
    replies = {conversation.client_id: _go_on(clients, conversation) for conversation in conversations}
    return Message(pack_replies(replies), reply_to=message)


def _go_on(clients: Callable[[int], Client], conversation: Conversation) -> Reply:
    asked: list[bytes] = []

    def ask(question: bytes) -> bytes:
        if len(asked) == len(conversation.answers):
            asked.append(question)
            raise _Unanswered
        asked.append(question)
        return conversation.answers[len(asked) - 1]

    try:
        _, plan = wire.plan_from_bytes(conversation.plan)
        return Reply(Said.UPDATE, clients(conversation.client_id).converse(plan, ask))
    except _Unanswered:
        return Reply(Said.QUESTION, asked[-1])
    except Exception as error:  # whatever goes wrong on a client must cost that client only
        return Reply(Said.FAILURE, failure_to_bytes(error))


@lru_cache(maxsize=1)
def _clients(experiment_json: str, cache: str) -> Callable[[int], Client]:
    experiment = Experiment.model_validate_json(experiment_json)
    path = population_path(experiment.data, cache_of({"cache": cache}))
    spec = step_spec(experiment, open_population(path))
    return ClientsRecipe(path, spec, initial_weights(experiment, spec), experiment.seed, None)()


app = ClientApp()
app.train("conversations")(converse)
