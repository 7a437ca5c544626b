"""Engines carry a method's messages between server and clients.

rounds.py and async_rounds.py run rounds on any engine; client.py answers requests; simulation.py and flower/ are the
engines. Secure aggregation (secagg/) and signatures (signing/) work on top of either.
"""
