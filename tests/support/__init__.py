"""Fakes, tiny models and helpers that several test folders share.

The package is empty: each module is imported for itself, because some need optional libraries.
"""
