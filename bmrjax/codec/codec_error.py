"""The error of the codec."""


class CodecError(ValueError):
    """A network that cannot be encoded, or bytes that are no network.

    Example:
        >>> import jax
        >>> from bmrjax import codec, zoo
        >>> data = codec.encode(zoo.MLP(8, (4,), 2, key=jax.random.key(0)))
        >>> codec.decode(data[:-5])
        Traceback (most recent call last):
            ...
        bmrjax.codec.codec_error.CodecError: the file is damaged or cut short: its checksum does not fit.
    """
