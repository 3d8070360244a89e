"""Add commands beside the core (doctor, session, remote, export): they import the core, and nothing in the core imports them."""
