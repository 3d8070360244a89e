"""The container images of a study: pinned once, kept on storage."""
