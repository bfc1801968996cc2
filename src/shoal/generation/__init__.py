"""Choosing token after token: what happens between two runs of a decoder, with numpy alone.

No runtime and no protocol in here, so that all of it can be tested with a decoder made of arrays.
"""
