"""Build images, pin them to their content, archive them once on storage, load them on each node, and remove them again."""
