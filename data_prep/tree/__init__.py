"""Hash and name datasets that are a tree of files as it is (`source: files`). Nothing is copied on storage."""
