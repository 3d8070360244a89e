"""What the Makefile installs with: pip, but never silent. Standard library only, because nothing is installed yet."""
