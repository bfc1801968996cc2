"""Functions as models: `@shoal.model` on a function or class, served without a folder.

tensor, hints          inputs and outputs of a model, from types or declared explicitly
elements, structured   files, images and JSON in the elements of BYTES tensors
validation, field_errors  sentences about values that do not fit
declaration            the decorator: a function and everything known about it
description, paths     what callers know of the function: fields, schemas, its own route
code                   a Python file with such functions
asgi                   an ASGI application in such a file
ports                  between tensors and the function's arguments and results
execution, backend     running it
"""
