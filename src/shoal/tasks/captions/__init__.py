"""Captions: describe a photo in a sentence, token by token.

photo --preparation--> pixels --writer--> pieces of text --> caption
"""
