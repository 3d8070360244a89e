"""Datasets that are a tree of files as it is (`source: files`): listed, hashed and named where it lies; nothing is copied on storage."""
