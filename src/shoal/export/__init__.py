"""From a checkpoint on disk to a model folder that Shoal serves.

Imported by `shoal export` and `shoal serve CHECKPOINT` alone. Most kinds need torch, transformers
and onnx; embeddings of the BERT family need onnx.
"""
