"""What a file takes, and where it goes."""

from dataclasses import dataclass, field

from bmrjax.codec.array_records import ArrayRow


@dataclass(frozen=True)
class FileReport:
    """What a file of the codec takes.

    Attributes:
        size: Bytes of the file.
        original: Bytes of the original network's floating-point numbers, in float32.
        coder: The entropy coder.
        description: Bytes for magic number, version, checksum, and the description of the network.
        rows: What each array takes.
        extra: What else is in the file, such as how inputs are standardised; counted in `description`.
        names: Classes and functions in it that are of no library: their modules must be allowed on loading.

    Example:
        >>> import jax
        >>> from bmrjax import codec, zoo
        >>> found = codec.inspect_file(codec.encode(zoo.MLP(64, (32,), 10, key=jax.random.key(0))))
        >>> found.original, found.entries, found.ratio > 3, found.coder
        (9640, 2335, True, 'range')
    """

    size: int
    original: int
    coder: str
    description: int
    rows: list[ArrayRow] = field(repr=False)
    extra: object = field(default=None, repr=False)
    names: tuple[str, ...] = field(default=(), repr=False)

    @property
    def ratio(self) -> float:
        """`original` over `size`: all of the file, nothing left out."""
        return self.original / self.size

    @property
    def entries(self) -> int:
        """Numbers of all arrays that are not zero."""
        return sum(row.entries for row in self.rows)

    def __str__(self) -> str:
        """Return a table, a line an array."""
        header = ("array", "shape", "not zero", "how", "places, bytes", "values, bytes")
        lines = [
            (
                row.name,
                "x".join(map(str, row.shape)) or "scalar",
                f"{row.entries:,}",
                f"{row.kind} {row.layout}".strip(),
                f"{row.place_bits / 8:,.1f}",
                f"{row.value_bits / 8:,.1f}",
            )
            for row in self.rows
        ]
        lines.append(("description", "", "", self.coder, "", f"{self.description:,}"))
        widths = [max(map(len, column)) for column in zip(header, *lines, strict=True)]
        table = [
            "  ".join(
                cell.ljust(w) if i in (0, 3) else cell.rjust(w)
                for i, (cell, w) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in (header, *lines)
        ]
        total = f"{self.size:,} bytes instead of {self.original:,}: {self.ratio:,.1f}x smaller"
        needed = [f"to load, allow: {', '.join(self.names)}"] if self.names else []
        return "\n".join([*table, *needed, total])
