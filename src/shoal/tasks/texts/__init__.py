"""Texts for models that read tokens: shared by embeddings, classification, ranking and tagging.

    texts --tokens: threads--> rows --groups by length--> requests to the model

`rows` is what tasks use, `tensors` knows the model's inputs, `grouping` divides rows by length.
"""
