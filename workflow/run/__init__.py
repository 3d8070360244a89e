"""One run inside its allocation, in rooms: supervisor, node, link, storage, images, record."""
