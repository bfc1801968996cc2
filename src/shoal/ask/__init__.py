"""`shoal ask`: questions about a text, their answers and latencies.

    Reader --text, question--> Conversation --Asker--> server
                                    '--> Screen

It supports plain TCP and HTTP and knows nothing else about the server.
"""
