"""Sentence embeddings: vectors that are close to each other if the meanings of the texts are."""
