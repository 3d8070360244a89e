"""Install what the Makefile asks for. Standard library only, because nothing is installed yet."""
