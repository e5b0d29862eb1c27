"""The sites of a program as a table: which are judged, and why."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_WIDTH = 38


@dataclass(frozen=True)
class SiteReport:
    """One sample site of a program, as `bmrjax.inspect` reports it.

    Attributes:
        name: Name of the site.
        shape: Its shape, plates included.
        prior: Its prior in words, such as ``"Normal(0, latent scale)"``; the likelihood of an observed site.
        posterior: Family of its posterior: ``"normal"``, ``"spike-and-slab"``, ``"log-normal"`` or another
            word for what cannot be read; empty for an observed site.
        judged: Whether its elements can be removed.
        why: One clause that gives the reason.
        advice: What to write instead, as one sentence; empty where nothing needs to change.
        observed: Whether the site is observed.
        auxiliary: Whether it is a part of a prior of `bmrjax.priors`, such as the scale of a layer.

    Example:
        >>> import jax.numpy as jnp, numpyro, numpyro.distributions as dist
        >>> import bmrjax as bmr
        >>> def program(y=None):
        ...     scale = numpyro.sample("scale", dist.HalfCauchy(1.0).expand([3]).to_event(1))
        ...     numpyro.sample("y", dist.Normal(0.0, scale), obs=y)
        >>> scale = bmr.inspect(program, (jnp.ones((5, 3)),)).sites[0]
        >>> scale.judged, scale.posterior, scale.why
        (False, 'not readable', 'it is positive (HalfCauchy), so no element can be zero')
    """

    name: str
    shape: tuple[int, ...]
    prior: str
    posterior: str
    judged: bool
    why: str
    advice: str = ""
    observed: bool = False
    auxiliary: bool = False


@dataclass(frozen=True, repr=False)
class Inspection:
    """The sample sites of a program, in the order of the program; printing it shows a table.

    Attributes:
        sites: One report per site.

    Example:
        >>> import jax.numpy as jnp, numpyro, numpyro.distributions as dist
        >>> import bmrjax as bmr
        >>> def program(x, y=None):
        ...     intercept = numpyro.sample("intercept", dist.Normal(0, 5))
        ...     beta = numpyro.sample("beta", dist.Normal(0, 1).expand([3]).to_event(1))
        ...     numpyro.sample("y", dist.Normal(intercept + x @ beta, 1.0), obs=y)
        >>> found = bmr.inspect(program, (jnp.ones((10, 3)), jnp.ones(10)))
        >>> found.names, found.judged, [site.name for site in found.not_judged]
        (['intercept', 'beta', 'y'], ['beta'], ['intercept'])
    """

    sites: tuple[SiteReport, ...] = ()

    def __iter__(self) -> Iterator[SiteReport]:
        """Iterate over the reports."""
        return iter(self.sites)

    def __len__(self) -> int:
        """Return the number of sites."""
        return len(self.sites)

    def __getitem__(self, name: str) -> SiteReport:
        """Return the report of the site `name`."""
        for site in self.sites:
            if site.name == name:
                return site
        raise KeyError(f"The program has no sample site '{name}'; it has {self.names}.")

    @property
    def names(self) -> list[str]:
        """Names of all sites."""
        return [site.name for site in self.sites]

    @property
    def judged(self) -> list[str]:
        """Names of the sites whose elements can be removed."""
        return [site.name for site in self.sites if site.judged]

    @property
    def not_judged(self) -> list[SiteReport]:
        """The reports of the latent sites that are left as they are, without the auxiliary ones."""
        return [s for s in self.sites if not (s.judged or s.observed or s.auxiliary)]

    def __repr__(self) -> str:
        """Return the table, each line followed by what to write instead."""
        if not self.sites:
            return "Inspection: no sites"
        names = [_shortened(site.name) for site in self.sites]
        shapes = [str(site.shape) for site in self.sites]
        kinds = [_kind(site) for site in self.sites]
        priors = [_shortened(site.prior) for site in self.sites]
        wide = [max(map(len, column)) for column in (names, shapes, kinds, priors)]
        lines = []
        for site, *cells in zip(self.sites, names, shapes, kinds, priors, strict=True):
            padded = "  ".join(cell.ljust(n) for cell, n in zip(cells, wide, strict=True))
            lines.append(f"{padded}  {site.why}")
            if site.advice:
                lines.append(f"    {site.advice}")
        return "\n".join(lines)

    def rows(self) -> list[dict[str, Any]]:
        """Return the reports as plain dicts, for JSON."""
        return [{**dataclasses.asdict(site), "shape": list(site.shape)} for site in self.sites]

    @classmethod
    def from_rows(cls, rows: Iterable[Mapping[str, Any]]) -> "Inspection":
        """Undo `rows`."""
        return cls(tuple(SiteReport(**{**row, "shape": tuple(row["shape"])}) for row in rows))

    def reasons(self, names: Sequence[str] | None = None, *, most: int = 6) -> str:
        """Return why sites are not judged, one line per site, for an error message.

        Args:
            names: Sites to speak of; by default every latent site that is not judged.
            most: The largest number of lines.
        """
        shown = [s for s in self.not_judged if names is None or s.name in names]
        lines = [f"  '{s.name}': {s.why}.{' ' + s.advice if s.advice else ''}" for s in shown]
        if len(lines) > most:
            lines[most:] = [f"  ... and {len(lines) - most} more; bmr.inspect(...) lists all."]
        return "\n".join(lines)


def _kind(site: SiteReport) -> str:
    if site.observed:
        return "observed"
    return "judged" if site.judged else "not judged"


def _shortened(text: str) -> str:
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"
