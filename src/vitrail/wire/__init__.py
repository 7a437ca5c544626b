"""Messages between server and clients: their format, and codecs for arrays."""
