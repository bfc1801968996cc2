"""`shoal quantize`: a smaller, mostly quicker version of an ONNX model, compared with the original.

    model.onnx --conversion--> another one --comparison on samples--> a table --> a new version

Needs onnx, which the conversions of ONNX Runtime use.
"""
