"""Classes of texts: labels for whole texts, scores of pairs, labels for words."""
