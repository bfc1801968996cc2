"""Extractive question answering: finds the words of a text that answer a question.

    windows --> the model --> spans

`windows` divides the text into pieces that fit into the model's input, `spans` finds the answer in
the model's output, `task` is the task itself.
"""
