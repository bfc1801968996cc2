"""The command line. Heavy modules are imported only by the commands that need them."""
