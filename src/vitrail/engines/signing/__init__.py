"""Signed messages on any engine: each message is followed by its sender's signature.

The server signs each request for one client, with the specification of the run; a client signs each reply with the
request it answers, so run, round, exchange and sender are covered. A reply without its client's signature is excluded;
a request without that of the server that a node's owner named is refused. Methods see the same bytes as without.
"""
