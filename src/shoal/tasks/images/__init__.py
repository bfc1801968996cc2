"""Image classification: from the bytes of a photo to a tensor, and to labels with scores.

cat.jpg --decode--> upright pixels --preparation--> tensor --model, ranking--> labels
"""
