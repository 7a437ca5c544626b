"""Metrics of generated images, each with its interval, sample counts and feature network."""
