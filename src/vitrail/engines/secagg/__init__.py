"""Secure aggregation (Bonawitz et al., CCS 2017): the server learns a sum over clients and none of its terms.

A server that follows the protocol learns no more, even with fewer than `threshold` clients. One that sends clients
different lists of replies gets no shares, unless 2 threshold - n of n clients collude and sign both. One that replaces
clients' keys is refused by clients that know each other's (`peer-keys` of a node); others trust it to pass on keys.
"""
