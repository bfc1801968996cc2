"""Photos: from the bytes of a file to a model's tensor, and to labels with scores.

cat.jpg --decode--> upright pixels --preparation--> tensor --model, ranking--> labels
"""
