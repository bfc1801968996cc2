"""Photos on a GPU as one pipeline: from the bytes of JPEGs to the best labels of each.

    JPEGs --nvjpeg: decoder of the GPU--> pixels --kernel: resize, crop, scale--> rows of the input
          --network, scores, top labels: one CUDA graph--> index and score of each label

`executor` has the instance, which runs batches of tensors, too. The files that the decoder cannot
decode never come here; see `shoal.tasks.images.jpeg`.
"""
