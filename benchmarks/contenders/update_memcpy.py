"""The least that can be done with an update's bytes: copy them."""

from __future__ import annotations

import numpy as np

from benchmarks.contenders.turns import turns
from benchmarks.contenders.update import UPDATES, update_arrays


def main() -> None:
    dense, _, rows = update_arrays()
    flat = np.concatenate([value.reshape(-1) for value in (*dense.values(), rows)])
    sources = [flat.copy() for _ in range(UPDATES)]
    target = flat.copy()
    for _ in turns():
        for source in sources:
            np.copyto(target, source)


if __name__ == "__main__":
    main()
