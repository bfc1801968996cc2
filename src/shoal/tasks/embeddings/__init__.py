"""Sentence embeddings: texts to vectors that are near each other where their meanings are."""
