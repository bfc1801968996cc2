"""Functions as models: `@shoal.model` on a function or class, served without a folder.

tensor, hints          inputs and outputs of a model, from types or declared explicitly
declaration            the decorator: a function and everything known about it
code                   a Python file with such functions
ports                  between tensors and the function's arguments and results
execution, backend     running it
"""
