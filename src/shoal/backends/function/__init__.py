"""Functions as models: `@shoal.model` on a function or class, served without a folder.

tensor, hints          what a model takes and gives, from types or said outright
declaration            the decorator: a function and all that is known about it
code                   a Python file with such functions
ports                  between tensors and what the function sees
execution, backend     running it
"""
