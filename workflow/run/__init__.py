"""Run one run inside its allocation: supervisor, node programs, the link between them, storage, images, record."""
