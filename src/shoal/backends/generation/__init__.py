"""Models that generate text token by token: an ONNX decoder with past states, and maybe an encoder.

request --> job --executor: continuous batching--> responses, token by token
"""
