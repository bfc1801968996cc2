"""From a checkpoint on disk to a model folder that Shoal serves.

Imported by `shoal export` alone. Captions and texts need torch, transformers and onnx; sentence
embeddings need onnx.
"""
