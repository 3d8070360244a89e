"""Check the keys of a specification of token sequences against each other. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

KINDS: Final = ("text", "tokens")
"""Kinds of source that become sequences of token ids."""
OWN: Final = ("vocabulary", "sequence_length", "buckets")
OF_KIND: Final[dict[str, tuple[str, ...]]] = {"text": ("documents", "words"), "tokens": ("id_type", "end")}
ALL: Final = frozenset({*OWN, *OF_KIND["text"], *OF_KIND["tokens"]})
"""Keys that mean nothing for images."""
WORDS: Final = 10_000
"""The default size of a vocabulary of words, with the end of a document and the unknown word."""
DEFAULTS: Final[dict[str, dict[str, Any]]] = {"text": {"documents": "file", "vocabulary": "bytes"}, "tokens": {"id_type": "uint16"}}


def fault(spec: Any) -> str | None:
    """Return what is wrong with a specification whose defaults are filled in, or None."""
    problem = _text_fault(spec) if spec.source == "text" else _tokens_fault(spec)
    return problem or _length_fault(spec)


def _text_fault(spec: Any) -> str | None:
    if spec.vocabulary not in ("bytes", "words"):
        return f"vocabulary: found {spec.vocabulary!r}; with source: text valid: bytes, words (and words: how many)"
    if spec.words is not None and spec.vocabulary == "bytes":
        return "words is for vocabulary: words; leave it out"
    return None


def _tokens_fault(spec: Any) -> str | None:
    if not isinstance(spec.vocabulary, int):
        return "vocabulary: source: tokens needs the number of ids that its tokenizer has, such as vocabulary: 50257 for GPT-2's"
    if spec.end is not None and spec.end >= spec.vocabulary:
        return f"end: {spec.end} is not among the ids 0 to {spec.vocabulary - 1} of the vocabulary"
    if spec.buckets is not None and spec.end is None:
        return "buckets: which sequence is how long is told by the id that ends a document: give end, such as end: 50256 for GPT-2's"
    return None


def _length_fault(spec: Any) -> str | None:
    if (spec.sequence_length is None) == (spec.buckets is None):
        return "exactly one is needed of sequence_length (all rows equally long) and buckets (a document is a row, lengths of the buckets)"
    if spec.buckets is not None and list(spec.buckets) != sorted(set(spec.buckets)):
        return f"buckets: {list(spec.buckets)} are not in order, the shortest first, each once"
    return None


def keys_of(kind: str) -> tuple[str, ...]:
    """Return the keys that have a meaning with a source of this kind."""
    return ("source", "path", *OWN, "splits", "shards", "strict", *OF_KIND[kind])


def whose(key: str) -> str:
    """Return what a key is for."""
    kinds = [kind for kind, keys in OF_KIND.items() if key in keys]
    return f"source: {kinds[0]}" if kinds else "token sequences" if key in ALL else "images"


def row_words(sequence_length: int | None, buckets: Sequence[int] | None) -> str:
    """Describe the length of a row for messages."""
    return f"{sequence_length} tokens and one more" if buckets is None else f"2 to {buckets[-1] + 1} tokens"
