"""What a trained run of PaDPaF is good for beside drawing: its features, its discriminators and its split of a picture.

Everything here is done on a run's folder that holds its clients' private files, so on the machine that simulated it.
"""
