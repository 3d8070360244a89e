"""Images: built, pinned to what they are, archived once on storage, loaded on each node, and removed again where they are ours."""
