"""The command line: words in, exit code out; nothing heavy is imported before it is needed."""
