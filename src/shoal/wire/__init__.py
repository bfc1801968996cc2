"""Bytes to core types and back: pure codecs, used by the frontends and by the client. No I/O."""
