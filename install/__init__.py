"""What the Makefile installs with. Standard library only, because nothing is installed yet."""
