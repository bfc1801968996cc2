"""`shoal ask`: a text and a question in, the answer and how long it took out.

    Reader --text, question--> Conversation --Asker--> server
                                    '--> Screen

It knows the two ways to ask (plain TCP, HTTP) and nothing of the server behind them.
"""
