"""Bytes to core and back: pure codecs, used by the frontends and by the client. No I/O here."""
