"""Names that become directory names, and the closest word to a mistyped one."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Final

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


def is_name(text: str) -> bool:
    """Return True if `text` may name a study, a dataset, a model or a cell: `[a-z0-9][a-z0-9._-]{0,63}`, so no separator, no shell
    character."""
    return NAME.fullmatch(text) is not None and ".." not in text


def slug(*words: object, length: int = 40) -> str:
    """Make a short readable name from some words, valid by `is_name` unless there is nothing to take."""
    text = "-".join(re.sub(r"[^a-z0-9.]+", "-", str(word).lower()).strip("-.") for word in words)
    return re.sub(r"-{2,}", "-", re.sub(r"\.{2,}", ".", text))[:length].strip("-.")


def closest(word: str, valid: Iterable[str]) -> str | None:
    """Return the valid word that a user most likely meant, or None: the word of another tool, another case, a similar spelling."""
    small = {other.lower(): other for other in valid}
    meant = OTHER_WORDS.get(word.lower())
    if meant in small.values():
        return meant
    letters = sorted(word.lower())
    turned = [other for other in small if sorted(other) == letters]  # `modle` is `model`, not `mode`, which has more of it in a row
    found = difflib.get_close_matches(word.lower(), turned or list(small), n=1, cutoff=0.6)
    return small[found[0]] if found else None


OTHER_WORDS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("gpu", "gpus", "nvidia"), "cuda"),
    **dict.fromkeys(("float16", "half", "f16"), "fp16"),
    **dict.fromkeys(("bfloat16", "bfloat"), "bf16"),
    **dict.fromkeys(("float32", "float", "single", "f32"), "fp32"),
    **dict.fromkeys(("tensorfloat32", "tensorfloat"), "tf32"),
    **dict.fromkeys(("channels_last", "channels-last", "hwc"), "nhwc"),
    **dict.fromkeys(("channels_first", "channels-first", "chw"), "nchw"),
    **dict.fromkeys(("inference", "eval", "forward", "predict", "test"), "infer"),
    **dict.fromkeys(("singularity", "sif"), "apptainer"),
    **dict.fromkeys(("sqsh", "squashfs"), "enroot"),
    **dict.fromkeys(("no", "none", "native", "venv", "host"), "bare"),
    **dict.fromkeys(("torque", "openpbs", "pbspro"), "pbs"),
    **dict.fromkeys(("gridengine", "uge", "sungridengine"), "sge"),
    "torch": "pytorch",
    "tf": "tensorflow",
    "sbatch": "slurm",
    "bsub": "lsf",
}
"""What other tools call it. Taken where the word that is meant is a valid one."""


def choices(word: str, valid: Iterable[str]) -> str:
    """Return the end of an error message about an unknown word: the valid words, and the closest."""
    known = sorted(valid)
    near = closest(word, known)
    return f"valid: {', '.join(known)}" + (f"; did you mean {near!r}?" if near else "")
