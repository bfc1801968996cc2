"""Token selection: what happens between two runs of a decoder, with numpy alone.

It depends on no runtime and no protocol, so a decoder made of arrays is enough to test it.
"""
