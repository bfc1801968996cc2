"""HTTP/1.1: the transport that moves bytes, and the routes that give them a meaning."""
