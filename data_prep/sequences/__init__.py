"""Datasets of token sequences: text, or files of token ids, as rows of equal length in sharded LMDB."""
