"""Runs over Flower: the server's run, a node and its owner's config, and virtual nodes on one machine.

engines/flower/ carries the messages; this package connects it with settings, data and the runner.
"""
