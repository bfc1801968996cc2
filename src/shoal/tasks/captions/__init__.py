"""Captions: from a photo to a sentence about it, token by token.

photo --preparation--> pixels --writer: the server's own loop--> pieces of text --> caption
"""
