"""The image client: photos in, classes out, for any image classifier that a server has.

    files --pixels--> arrays --batches--> requests --sending--> answers --report--> lines

`classifier` reads from a model's metadata and config what its input wants; nothing about the model
need be said on the command line but its name and how its pixels were scaled in training.
"""
