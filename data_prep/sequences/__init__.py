"""Build datasets of token sequences: text, or files of token ids, become rows of equal length in sharded LMDB."""
