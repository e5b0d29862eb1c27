"""What `sparsify` needs of a guide whose elements depend on each other."""

from collections.abc import Mapping

from jaxtyping import Array

from bmrjax.infer.arguments import Keep
from bmrjax.infer.readable_guide import ReadableGuide
from bmrjax.reduction import Normal


class CorrelatedGuide(ReadableGuide):
    """A guide in which a removal moves what stays. To be mixed into a NumPyro guide."""

    def marginals(self, params: Mapping[str, Array], keep: Keep) -> dict[str, Normal]:
        """Return the normal marginal posteriors of the sites whose elements are correlated.

        Args:
            params: Constrained parameters.
            keep: The masks in force.
        """
        raise NotImplementedError

    def condition(self, params: Mapping[str, Array], before: Keep, after: Keep) -> dict[str, Array]:
        """Return the parameters of the posterior given that what `after` drops is zero.

        Args:
            params: Constrained parameters.
            before: The masks under which they were fitted.
            after: The masks to be put in force.
        """
        raise NotImplementedError
