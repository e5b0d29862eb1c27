"""Priors of a model that was written as a formula, read from the model itself."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from bmrjax.fitted.layout import shortened
from bmrjax.reduction import Normal


def is_formula_model(prior: Any) -> bool:
    """Return whether this has components with terms, as a `bambi.Model` does.

    Args:
        prior: What was given as `prior`.
    """
    return isinstance(getattr(prior, "components", None), Mapping)


def formula_priors(model: Any) -> dict[str, Normal]:
    """Return the normal priors of the common terms of a formula, by the names that its draws have.

    Bambi is not imported: a model has ``components``, by name, whose ``common_terms`` have a ``prior`` with
    a name and arguments. The intercept is no common term, and terms that vary by group have a prior with a
    latent scale; neither is here.

    Args:
        model: A `bambi.Model` that was built or fitted.

    Raises:
        ValueError: If it was not built, or no term has a normal prior with constant parameters.
    """
    found, others = {}, []
    for component in model.components.values():
        terms = getattr(component, "common_terms", None)
        if not isinstance(terms, Mapping):
            continue
        for key, term in terms.items():
            prior = getattr(term, "prior", None)
            if prior is None:
                raise ValueError(
                    f"reduce_fit: the term '{key}' has no prior yet; call the model's build() or fit() first."
                )
            name = str(getattr(term, "alias", None) or getattr(term, "name", key))
            normal = _normal(prior)
            if normal is None:
                others.append(f"{name} ({getattr(prior, 'name', type(prior).__name__)})")
            else:
                found[name] = normal
    if not found:
        listed = f"; there are {shortened(others)}" if others else ""
        raise ValueError(
            f"reduce_fit: no common term of this model has a normal prior with constant parameters{listed}."
        )
    return found


def _normal(prior: Any) -> Normal | None:
    """Return a prior as a normal, or None if it is none."""
    args = getattr(prior, "args", {})
    if getattr(prior, "name", "") != "Normal" or set(args) != {"mu", "sigma"}:
        return None
    try:
        loc, scale = (np.asarray(args[name], np.float64) for name in ("mu", "sigma"))
    except (TypeError, ValueError):
        return None  # the parameters are priors themselves
    return Normal(loc, scale)  # type: ignore[arg-type]
