"""The shapes of the benchmark's tensors, without the batch dimension; needs no library."""

from __future__ import annotations

ROW = (16,)
PICTURE = (3, 224, 224)
CLASSES = (1000,)
TOKENS = (128,)
HIDDEN = (768,)
LARGE = (150_528,)  # 602,112 bytes of FP32: as many numbers as a PICTURE has
SUMS = (16,)
FEATURES = (512,)
