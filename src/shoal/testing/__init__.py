"""The fakes and models Shoal is tested with, shipped so that others can test with them too.

Nothing is imported here: `shoal.testing.onnx_models` needs the `onnx` package, the rest does not.
"""
