"""The command line: a small file a verb, loaded when it is called."""
