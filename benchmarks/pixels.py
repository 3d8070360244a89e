"""Images per second of the reader from memory, one process: raw and JPEG, whole, cropped and flipped; compiled, by numpy, and the limits.

    python -m benchmarks.pixels [--samples 4000] [--side 256] [--crop 224] [--repeats 5] [--dir DIR]

All of a kind are measured in turns, by the time of the processor; beside it the median of the ratios to the limit of the same turn. The
limits: the same pixels copied by numpy from a mapped file, whole, or the window without flip; or files decoded in a loop, each to the same
memory.
"""

from __future__ import annotations

import argparse
import mmap
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import simplejpeg

from benchmarks.reader import BATCH, make_dataset, picture
from data_prep.reader import Augmentation, batch_indices, open_dataset, pixels


def processor_time(function: Callable[[np.ndarray], object], samples: int) -> float:
    """The microseconds of the processor for an image of one shuffled epoch."""
    start, steps = time.process_time(), samples // BATCH
    for indices in batch_indices(0, 0, steps, samples, BATCH, 0, 1):
        function(indices)
    return (time.process_time() - start) * 1e6 / (steps * BATCH)


def copies(path: Path, samples: int, side: int, crop: int | None) -> Callable[[np.ndarray], None]:
    """Copies of windows out of a plain file that is mapped, as numpy makes them."""
    image = picture(np.random.default_rng(1), side)
    path.write_bytes(image.tobytes() * samples)
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    stored = np.frombuffer(mapped, np.uint8).reshape(samples, side, side, 3)
    first, kept = (0, side) if crop is None else ((side - crop) // 2, crop)
    out = np.empty((BATCH, kept, kept, 3), np.uint8)

    def copy(indices: np.ndarray) -> None:
        for row, index in enumerate(indices):
            np.copyto(out[row], stored[index, first : first + kept, first : first + kept])

    return copy


def decodes(side: int) -> Callable[[np.ndarray], None]:
    """Decodes of one file after the other."""
    random = np.random.default_rng(0)
    files = [simplejpeg.encode_jpeg(picture(random, side), quality=90) for _ in range(16)]
    out = np.empty((side, side, 3), np.uint8)

    def decode(indices: np.ndarray) -> None:
        for index in indices:
            simplejpeg.decode_jpeg(files[index % 16], buffer=out)

    return decode


def reads(root: Path, crop: int | None, library: object) -> Callable[[np.ndarray], None]:
    """Batches of the reader, cropped and flipped where there is a crop."""
    dataset = open_dataset(str(root), crop)
    split = dataset.split("train")
    out = np.empty((BATCH, *dataset.size, 3), np.uint8)
    augment = None if crop is None else Augmentation("crop-flip", 0, 0)

    def read(indices: np.ndarray) -> None:
        pixels.library = library
        split.read_many(indices, out, augment)

    return read


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--side", type=int, default=256)
    parser.add_argument("--crop", type=int, default=224)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--dir", type=Path, help="a directory on the disk to measure (default: the temporary one)")
    arguments = parser.parse_args()
    samples, side = arguments.samples, arguments.side
    print(f"pixels are copied by: {pixels.copies_by()}")
    parts = {"numpy": "left out"} if isinstance(pixels.library, str) else {"compiled": pixels.library, "numpy": "left out"}
    with tempfile.TemporaryDirectory(dir=arguments.dir) as directory:
        for kind, crop in (("raw", None), ("raw", arguments.crop), ("jpeg", None), ("jpeg", arguments.crop)):
            root = Path(directory, kind)
            if not root.exists():
                make_dataset(root, samples, side, kind == "jpeg")
            limit = decodes(side) if kind == "jpeg" else copies(Path(directory, "plain"), samples, side, crop)
            rows = {"limit": limit, **{name: reads(root, crop, library) for name, library in parts.items()}}
            turns = [{name: processor_time(row, samples) for name, row in rows.items()} for _ in range(arguments.repeats + 1)][1:]
            print(f"{kind} {side}x{side}{'' if crop is None else f', crop of {crop} and flip'}:")
            for name in rows:
                found = statistics.median(turn[name] for turn in turns)
                of_limit = statistics.median(turn["limit"] / turn[name] for turn in turns)
                print(f"  {name:9} {found:7.1f} us  {1e6 / found:8,.0f} images/s  {of_limit:.2f} of the limit")
    batches = batch_indices(0, 0, None, 100_000_000, 256, 0, 1)
    print(f"order of a batch of 256 in 10^8 samples: {processor_time(lambda _: next(batches), 6400) * BATCH / 1e3:.3f} ms")


if __name__ == "__main__":
    main()
