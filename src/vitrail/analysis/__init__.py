"""Analysis of a run whose method separates content and style: probes, routing, re-styling, anonymity, new clients.

It reads a run's folder with its clients' private files, so it runs where the training was simulated.
"""
