"""Which glyph each image shows and who owns it: the split of a data set of characters, before any pixel is rendered.

A client is an author with one face, and holds some characters of it.  The FedSS paper's data sets say how many
(section 4): authors of about 130 photographs of about 90 landmarks, or clients of 100 pictures of 20 products.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class ByClient:
    """Many clients, each with some characters of one face."""

    num_clients: int
    images_per_client: int  # on average
    classes_per_client: int  # on average
    spread: float = 0.0  # standard deviation of the logarithm of a client's size


@dataclass(frozen=True)
class ByFace:
    """One client per face, with all its characters: data to train on centrally, in the same format."""

    images_per_class: int


@dataclass(frozen=True)
class Deal:
    """One entry per image."""

    characters: NDArray[np.int64]  # [N] numbers in the alphabet
    faces: NDArray[np.int64]  # [N] numbers of the faces
    users: list[str]  # a user's name ends with its face's


def deal_train(
    rule: ByClient | ByFace,
    classes: NDArray[np.int64],
    covered: NDArray[np.bool_],
    face_names: Sequence[str],
    rng: np.random.Generator,
) -> Deal:
    """The clients' images of these characters; `covered` [faces, characters] says which faces draw which."""
    if isinstance(rule, ByFace):
        characters, faces = _through_the_faces(classes, rule.images_per_class, covered, rng)
        return Deal(characters, faces, [face_names[face] for face in faces])
    return _deal_to_clients(rule, classes, covered, face_names, rng)


def deal_test(
    images_per_class: int,
    classes: NDArray[np.int64],
    covered: NDArray[np.bool_],
    rng: np.random.Generator,
) -> Deal:
    """Images that belong to nobody, each class in as many different faces as it has images, if it has the faces."""
    characters, faces = _through_the_faces(classes, images_per_class, covered, rng)
    return Deal(characters, faces, [""] * len(characters))


def _deal_to_clients(
    rule: ByClient,
    classes: NDArray[np.int64],
    covered: NDArray[np.bool_],
    face_names: Sequence[str],
    rng: np.random.Generator,
) -> Deal:
    # A face gets clients in proportion to its characters, so that none has to deal the same few again and again.
    share = np.cumsum(covered[:, classes].sum(axis=1) / covered[:, classes].sum())
    client_faces = np.searchsorted(share, (np.arange(rule.num_clients) + 0.5) / rule.num_clients)
    rng.shuffle(client_faces)
    # Log-normal, and of mean 1: the logarithm's mean makes up for its spread.
    relative_sizes = rng.lognormal(-(rule.spread**2) / 2, rule.spread, rule.num_clients)
    times_dealt = np.zeros(covered.shape[1])  # to how many clients each character went
    hands = []  # of each client, the characters its images show
    for face, relative_size in zip(client_faces, relative_sizes, strict=True):
        num_images = max(1, round(rule.images_per_client * relative_size))
        num_classes = min(num_images, max(1, round(rule.classes_per_client * relative_size)))
        available = rng.permutation(classes[covered[face, classes]])
        # The least dealt first, at random among equals: pure chance would leave classes out when there are few clients.
        held = available[np.argsort(times_dealt[available], kind="stable")][:num_classes]
        times_dealt[held] += 1
        hands.append(np.concatenate([held, rng.choice(held, num_images - len(held))]))
    sizes = [len(hand) for hand in hands]
    names = [f"{client:04d} {face_names[face]}" for client, face in enumerate(client_faces)]
    return Deal(
        characters=np.concatenate(hands),
        faces=np.repeat(client_faces, sizes),
        users=[name for name, size in zip(names, sizes, strict=True) for _ in range(size)],
    )


def _through_the_faces(
    classes: NDArray[np.int64], images_per_class: int, covered: NDArray[np.bool_], rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Characters and faces of images that take every class through its faces in random order, again and again."""
    orders = (rng.permutation(np.flatnonzero(covered[:, number])) for number in classes)
    faces = [np.resize(order, images_per_class) for order in orders]
    return np.repeat(classes, images_per_class), np.concatenate(faces)
