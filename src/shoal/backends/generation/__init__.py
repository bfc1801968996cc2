"""Models that write texts token by token: an ONNX decoder with past states, and maybe an encoder.

request --asked--> job --executor: continuous batching--> responses, token by token
"""
