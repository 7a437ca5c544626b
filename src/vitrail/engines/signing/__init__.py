"""Signed messages on any engine: each message is followed by its sender's signature.

The server signs each request for one client, with the specification of the run; a client signs each reply with the
request it answers. Run, round, exchange and sender are in the message itself, so the signature covers them.
A reply that is not signed by its client's key is excluded; a request that is not signed by the server that a node's
owner named is refused. Methods see the same bytes as without signatures.
"""
