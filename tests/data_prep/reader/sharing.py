"""`python -m tests.data_prep.reader.sharing ROOT`: the samples of a dataset, read by one thread and then by four at once; JSON out.

`alone`: label and bytes of each; `open`: how many shards were open then; `wrong`: what the four read that was not the same.
"""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

from data_prep.reader import open_dataset, shards


def main(root: str) -> None:
    split = open_dataset(root).split("train")

    def sample(index: int) -> tuple[int, str]:
        image, label = split.read(index)
        return label, image.tobytes().hex()

    alone = [sample(index) for index in range(len(split))]
    num_open = len(shards._open)

    def read(offset: int) -> list[int]:
        indices = [(offset + 7 * step) % len(split) for step in range(300)]
        return [index for index in indices if sample(index) != alone[index]]

    with ThreadPoolExecutor(4) as pool:
        wrong = list(chain.from_iterable(pool.map(read, range(4))))
    sys.stdout.write(json.dumps({"alone": alone, "open": num_open, "wrong": wrong}))


if __name__ == "__main__":
    main(sys.argv[1])
