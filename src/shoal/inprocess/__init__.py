"""A server inside a program, a notebook or a test: `shoal.Server`."""
