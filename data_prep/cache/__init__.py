"""Manage the node's cache: datasets, their users, eviction, and results that wait for storage."""
