"""What the reduction of a trained network by units says."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from bmrjax.run.diagnose import Finding
from bmrjax.structure.compact import Compact, compact
from bmrjax.trained.choice import PathPoint
from bmrjax.trained.path import Packed
from bmrjax.trained.path_table import highest_evidence, path_lines, path_table
from bmrjax.trained.remove_units import RemovedUnits
from bmrjax.trained.unit_graph import UnitGraph
from bmrjax.trained.weight_scales import scales_of_kept

if TYPE_CHECKING:
    from pandas import DataFrame


@final
@dataclass(frozen=True, repr=False)
class UnitReduction:
    """A trained network with fewer units; `reduce_network` makes it with ``units=True``.

    Attributes:
        compact: The network at the chosen point without the units that are gone, and what that saves as
            `bmrjax.compact` counts it.
        path: Points from the dense network to the smallest. Shares are of all trained parameters, and of the
            operations in matrix products and convolutions.
        chosen: Number of the point that `network` is.
        temperature: What predicted losses are divided by to be those that were measured on rows that were
            kept out.
        prior_precision: Prior precision of each layer's weights, by largest marginal likelihood.
        not_judged: Axes that layers sum over whose units stay, and why.
        findings: What is wrong with the data, or may be.

    Example:
        >>> import equinox as eqx, jax
        >>> import bmrjax as bmr
        >>> network = eqx.nn.MLP(3, 1, width_size=8, depth=1, key=jax.random.key(0))
        >>> x = jax.random.normal(jax.random.key(1), (400, 3))
        >>> y = jax.vmap(network)(x) + 0.1 * jax.random.normal(jax.random.key(2), (400, 1))
        >>> found = bmr.reduce_network(network, (x, y), units=True, keep=0.5)
        >>> found.network.layers[0].weight.shape, found.compact.after.parameters
        ((3, 3), 16)
        >>> found.layers()[["units", "before", "after"]].values.tolist()
        [['layers.0.weight', 8, 3]]
    """

    compact: Compact = field(repr=False)
    path: tuple[PathPoint, ...]
    chosen: int
    temperature: float
    prior_precision: dict[str, float]
    not_judged: dict[str, str]
    findings: tuple[Finding, ...]
    _graph: UnitGraph = field(repr=False)
    _rounds: tuple[RemovedUnits, ...] = field(repr=False)
    _packed: tuple[Packed, ...] = field(repr=False)
    _parts: Any = field(repr=False)
    _scales: dict[int, Float[np.ndarray, "..."]] = field(repr=False)
    _example: tuple[Any, ...] = field(repr=False)

    @property
    def network(self) -> Any:
        """The smaller network, of the class of the one that was given."""
        return self.compact.network

    @property
    def kept(self) -> float:
        """Share of the parameters that stay."""
        return self.path[self.chosen].kept

    @property
    def flops(self) -> float:
        """Share of the operations in matrix products and convolutions that stay."""
        return self.path[self.chosen].flops

    @property
    def evidence_point(self) -> int:
        """Number of the point of the path whose evidence is highest."""
        return highest_evidence(self.path)

    def network_at(self, point: int, *, smaller: bool = True) -> Any:
        """Return the network at a point of the path.

        Args:
            point: Number of the point; 0 is the dense network.
            smaller: Whether units that are gone are taken out of the arrays. Otherwise the arrays have
                their shapes, with zeros for the weights that read what is gone.

        Raises:
            IndexError: If there is no such point.
        """
        if not 0 <= point < len(self.path):
            raise IndexError(
                f"network_at: the path has points 0 to {len(self.path) - 1}, got {point}."
            )
        if smaller and point == self.chosen:
            return self.network
        network = self._parts.build([jnp.asarray(x) for x in self._packed[point].arrays()])
        return compact(network, *self._example, drop_inputs=False).network if smaller else network

    def posterior_scales(self) -> dict[str, Float[np.ndarray, "..."]]:
        """Return the posterior standard deviation of each weight of the smaller network.

        See `NetworkReduction.posterior_scales`.

        Returns:
            Path of a judged array in the smaller network to an array of its shape, float32.

        Example:
            >>> import equinox as eqx, jax
            >>> import bmrjax as bmr
            >>> network = eqx.nn.MLP(3, 1, width_size=8, depth=1, key=jax.random.key(0))
            >>> x = jax.random.normal(jax.random.key(1), (400, 3))
            >>> y = jax.vmap(network)(x) + 0.1 * jax.random.normal(jax.random.key(2), (400, 1))
            >>> found = bmr.reduce_network(network, (x, y), held_out=(x, y), units=True, keep=0.5)
            >>> {name: scale.shape for name, scale in found.posterior_scales().items()}
            {'layers.0.weight': (3, 3), 'layers.1.weight': (1, 3)}
        """
        return self.compact.cut(scales_of_kept(self._scales, {}, self._parts.names))

    def table(self) -> "DataFrame":
        """Return the path, one row per point.

        Returns:
            The columns ``"kept"`` and ``"flops"`` (shares), ``"predicted"`` and ``"measured"`` (increase of
            the loss per row since the dense network, in nats), ``"standard_error"``, ``"delta_f"``,
            ``"as_good"``, ``"chosen"``, and one for the loss and each metric.
        """
        return path_table(self.path, self.chosen, ["kept", "flops"])

    def layers(self) -> "DataFrame":
        """Return one row per kind of units, such as the neurons of a layer.

        Returns:
            The columns ``"units"``, the arrays that make them; ``"before"``, how many there were; and
            ``"after"``, how many stay.
        """
        import pandas as pd

        graph = self._graph
        before = np.bincount(graph.kind, minlength=len(graph.kinds))
        gone = [graph.kind[some.unit] for some in self._rounds[: self.chosen]]
        lost = np.bincount(np.concatenate([*gone, np.zeros(0, int)]), minlength=len(graph.kinds))
        return pd.DataFrame({"units": graph.kinds, "before": before, "after": before - lost})

    def removals(self) -> "DataFrame":
        """Return a receipt for each unit that the chosen point has lost, in the order of removal.

        Returns:
            The columns ``"unit"``, its name; ``"saliency"``, what the log evidence lost by its removal,
            in nats; ``"delta_f"``, the change of the log evidence, positive in favour of removal;
            ``"parameters"`` and ``"flops"``, which were removed with it (operations in products per row);
            ``"point"``, the point of the path at which it is gone; ``"predicted"`` and ``"measured"``, the
            increase of the loss per row there, for all that is gone by then.
        """
        import pandas as pd

        columns = "unit saliency delta_f parameters flops point predicted measured".split()
        frames = [
            pd.DataFrame(
                {
                    "unit": [self._graph.names[u] for u in some.unit],
                    "saliency": some.saliency,
                    "delta_f": some.log_occam - some.saliency,
                    "parameters": some.parameters.astype(int),
                    "flops": some.flops.astype(int),
                    "point": number,
                    "predicted": self.path[number].predicted,
                    "measured": self.path[number].measured,
                }
            )
            for number, some in enumerate(self._rounds[: self.chosen], 1)
        ]
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=columns)

    def __repr__(self) -> str:
        point, layers = self.path[self.chosen], self.layers()
        lines = path_lines(
            self.path,
            self.chosen,
            self.temperature,
            self.findings,
            self.table(),
            of=" of the parameters",
        )
        return "\n".join(
            [
                f"UnitReduction: {layers['after'].sum():,} of {layers['before'].sum():,} units stay, "
                f"{point.kept:.1%} of the parameters, {point.flops:.1%} of the operations in products",
                *(
                    f"  {units}: {before} -> {after}"
                    for units, before, after in layers.itertuples(index=False, name=None)
                ),
                *lines,
            ]
        )
