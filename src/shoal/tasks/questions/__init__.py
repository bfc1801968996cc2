"""Extractive question answering: a question and a text in, the words of the text that answer out.

    windows --> the model --> spans

`windows` cuts the text into pieces that the model can read, `spans` finds the answer in what it
says about them, and `task` puts them together for callers.
"""
