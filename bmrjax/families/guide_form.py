"""How a mean-field guide writes the posterior of a site."""

import abc
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpyro.distributions as dist
from jaxtyping import Array


def no_other_site(name: str) -> tuple[Any, Any, Any]:
    """Raise ValueError: the guide has no other site."""
    raise ValueError(f"There is no site '{name}' beside this one.")


@dataclass(frozen=True)
class GuideSite:
    """A site of a guide, and what the guide was given for it.

    Attributes:
        name: Of the site.
        prior: The NumPyro distribution of the site in the model.
        prefix: Of the guide's parameters.
        init_inclusion: Probability that an indicator starts with.
        temperature: Of relaxed indicators: a number, or a function of the training step.
        training_step: Returns the training step that a fit says; None outside of one.
        noise_draws: Returns how multiplicative noise is to be drawn.
        infer: What the program says in ``infer=``.
        normal_of: Returns the parameters ``loc`` and ``scale`` of another site of the guide, by its name, and
            the mask that says which elements are kept.

    Example:
        >>> import numpyro.distributions as dist
        >>> from bmrjax import families
        >>> families.GuideSite("w", dist.Normal(0, 1)).parameter("scale")
        'w_auto_scale'
    """

    name: str
    prior: Any
    prefix: str = "auto"
    init_inclusion: float = 0.9
    temperature: Any = 0.5
    training_step: Callable[[], Any] = field(default=lambda: None)
    noise_draws: Callable[[], Any] | None = None
    infer: Mapping[str, Any] = field(default_factory=dict)
    normal_of: Callable[[str], tuple[Any, Any, Any]] = field(default=no_other_site)

    def parameter(self, part: str) -> str:
        """Return the name of one of its parameters."""
        return f"{self.name}_{self.prefix}_{part}"


class GuideForm(abc.ABC):
    """How a mean-field guide writes the posterior of a site.

    The guide has two parameters per element, ``loc`` and ``scale`` (positive); a form may have more. See the
    package's docstring about adding one.

    Attributes:
        starting_scale: What `scale` starts with; None for the guide's `init_scale`.

    Example:
        A posterior that is never narrower than 0.1:

        >>> import jax.numpy as jnp, numpyro.distributions as dist
        >>> from bmrjax import families
        >>> class Wide(families.GuideForm):
        ...     def distribution(self, site, normal):
        ...         return dist.Normal(normal.loc, 0.1 + normal.scale)
        ...
        ...     def unconstrained(self, site, parameter):
        ...         return dist.Normal(parameter("loc"), 0.1 + parameter("scale"))
        >>> site = families.GuideSite("w", dist.Normal(0, 1))
        >>> round(Wide().distribution(site, dist.Normal(0.0, 0.01)).scale, 2)
        0.11
    """

    starting_scale: float | None = None

    def check(self, site: GuideSite) -> None:
        """Raise ValueError if the site cannot have this posterior; by default every site can.

        Args:
            site: The site.
        """
        del site

    @abc.abstractmethod
    def distribution(self, site: GuideSite, normal: Any) -> dist.Distribution:
        """Return the posterior, inside the guide.

        Args:
            site: The site; `numpyro.param` may be called under `GuideSite.parameter`.
            normal: Independent normals of the parameters ``loc`` and ``scale``, in the space of the site.
        """

    @abc.abstractmethod
    def unconstrained(
        self, site: GuideSite, parameter: Callable[[str], Array]
    ) -> dist.Distribution:
        """Return the posterior on the real line, with draws and quantiles, from fitted parameters.

        Args:
            site: The site.
            parameter: Returns a fitted parameter: ``parameter("loc")``.
        """


# Name that a program gives in ``infer={"posterior": ...}`` to its form.
_ASKED: dict[str, tuple[GuideForm, str]] = {}


def offer(name: str, form: GuideForm, *, where: str = "") -> None:
    """Let programs ask for a form by ``infer={"posterior": name}``.

    Args:
        name: The name.
        form: The form.
        where: Sites that may ask for it, for messages, such as ``"for positive sites"``.

    Example:
        >>> import jax, numpyro, numpyro.distributions as dist
        >>> from bmrjax import families
        >>> from bmrjax.infer import AutoMeanField
        >>> class Shifted(families.GuideForm):
        ...     def distribution(self, site, normal):
        ...         return dist.Normal(normal.loc + 1.0, normal.scale)
        ...
        ...     def unconstrained(self, site, parameter):
        ...         return dist.Normal(parameter("loc") + 1.0, parameter("scale"))
        >>> families.offer("shifted", Shifted())
        >>> def program():
        ...     numpyro.sample("w", dist.Normal(0, 1), infer={"posterior": "shifted"})
        >>> guide = AutoMeanField(program)
        >>> _ = numpyro.handlers.seed(guide, jax.random.key(0))()
        >>> guide.median({"w_auto_loc": 0.5, "w_auto_scale": 0.1})["w"].round(2)
        Array(1.5, dtype=float32)
    """
    _ASKED[name] = form, where


def asked_form(name: str, site: GuideSite) -> GuideForm:
    """Return the form that a site asks for.

    Args:
        name: From ``infer={"posterior": name}``.
        site: The site.

    Raises:
        ValueError: For an unknown name, or a site that cannot have that posterior.
    """
    if name not in _ASKED:
        offers = [f"'{known}'" + (f", {w}" if w else "") for known, (_, w) in _ASKED.items()]
        offers[-1] = f"and {offers[-1]}"
        raise ValueError(
            f"AutoMeanField: site '{site.name}' asks for a posterior {name!r}; there is "
            f"{', '.join(offers)}. Without infer={{'posterior': ...}} it is normal on the real line."
        )
    form = _ASKED[name][0]
    form.check(site)
    return form


@functools.singledispatch
def default_form(prior: Any, site: GuideSite) -> GuideForm:
    """Return the form of a site that asks for none.

    It dispatches on the family of the site's prior, as `families.read` returns it; by default it is normal
    on the real line.

    Args:
        prior: A class of `bmrjax.reduction`, or None.
        site: The site.

    Example:
        >>> import numpyro.distributions as dist
        >>> from bmrjax import families
        >>> for prior in (dist.Normal(0, 1), dist.Gamma(2, 1)):
        ...     site = families.GuideSite("w", prior)
        ...     print(type(families.default_form(families.read(prior), site)).__name__)
        NormalForm
        NormalForm
    """
    del prior, site
    return NormalForm()


class NormalForm(GuideForm):
    """A normal posterior on the real line."""

    def distribution(self, site: GuideSite, normal: Any) -> dist.Distribution:
        """See `GuideForm`."""
        del site
        return normal

    def unconstrained(
        self, site: GuideSite, parameter: Callable[[str], Array]
    ) -> dist.Distribution:
        """See `GuideForm`."""
        del site
        return dist.Normal(parameter("loc"), parameter("scale"))
