"""Secure aggregation (Bonawitz et al., CCS 2017): the server learns a sum over clients and none of its terms.

A server that follows the protocol learns only the sum, also together with fewer than `threshold` clients. A server that
sends clients different lists of whose replies arrived gets no shares, unless 2 threshold - n of the n clients collude
with it and sign both lists. A server that replaces clients' keys by its own is refused by clients that know each
other's keys (`peer-keys` of a node); other clients trust it to pass on keys unchanged.
"""
