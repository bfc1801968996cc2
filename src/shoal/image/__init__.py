"""The image client: classifies images with any image classifier of a server.

    files --pixels--> arrays --batches--> requests --sending--> answers --report--> lines

`classifier` reads the input format from the model's metadata and config; the command line only
needs the model's name and the scaling of pixels used in training.
"""
