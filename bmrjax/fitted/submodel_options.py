"""Which submodels a search goes through, and how probable each is before the data."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from bmrjax.fitted.given_groups import GivenGroups, units_of
from bmrjax.fitted.heredity import HeredityOption, heredity_of
from bmrjax.fitted.layout import ElementLayout
from bmrjax.fitted.model_prior import ModelPrior, model_prior


@dataclass(frozen=True)
class SubmodelOptions:
    """The options of a search; `bmrjax.reduce_fit` says what each of them means."""

    groups: GivenGroups = None
    forced: Sequence[str | int] = ()
    heredity: HeredityOption = False
    expected: float | None = None

    def submodels(
        self, layout: ElementLayout
    ) -> tuple[dict[str, Int[np.ndarray, " k"]], ModelPrior]:
        """Return the candidates with their elements, and the prior on submodels.

        Args:
            layout: The judged elements.

        Raises:
            TypeError: As `units_of` and `heredity_of` do.
            ValueError: As they do.
        """
        units = units_of(layout, self.groups, self.forced)
        free = {i for members in units.values() for i in members}
        in_all = [label for i, label in enumerate(layout.label) if i not in free]
        rule = heredity_of(list(units), self.heredity, forced=in_all)
        return units, model_prior(self.expected, len(units), rule)
