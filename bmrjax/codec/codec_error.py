"""The error of the codec."""


class CodecError(ValueError):
    """A network that cannot be encoded, or bytes that are no network."""
