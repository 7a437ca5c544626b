"""What goes wrong and what to do about it."""


class VitrailError(Exception):
    """A refusal that says what was given, what was expected and what to do."""


class Malformed(VitrailError):
    """Bytes or a file that are not what they claim to be; nothing of them was used."""
