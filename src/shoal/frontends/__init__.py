"""Sockets in, engine calls out: one folder or file per protocol."""
