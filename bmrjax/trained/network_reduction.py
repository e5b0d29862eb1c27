"""What the reduction of a trained network says."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from bmrjax.report import write_page
from bmrjax.run.diagnose import Finding
from bmrjax.trained.choice import PathPoint
from bmrjax.trained.eliminate import Removed
from bmrjax.trained.layers import TracedLayer
from bmrjax.trained.network_page import network_page
from bmrjax.trained.path import Packed
from bmrjax.trained.path_table import highest_evidence, path_lines, path_table
from bmrjax.trained.weight_scales import scales_of_kept

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, repr=False)
class NetworkReduction:
    """A trained network with fewer weights; `reduce_network` makes it, printing it shows the path.

    Attributes:
        network: The reduced network, of the class of the one that was given; removed weights are zero.
        masks: Which weights stay, True, by the path of the array in the network; judged arrays only.
        path: Points from the dense network to the sparsest.
        chosen: Number of the point that `network` is.
        temperature: What predicted losses are divided by to be those that were measured on rows that were
            kept out. Above one, removing costs less than the curvature says.
        prior_precision: Prior precision of each layer's weights, by largest marginal likelihood.
        not_judged: Every other array of the network, and why it was left as it is. Biases of judged layers
            move, though nobody judges them.
        findings: What is wrong with the data, or may be.

    Example:
        >>> import equinox as eqx, jax
        >>> import bmrjax as bmr
        >>> network = eqx.nn.MLP(3, 1, width_size=8, depth=1, key=jax.random.key(0))
        >>> x = jax.random.normal(jax.random.key(1), (400, 3))
        >>> y = jax.vmap(network)(x) + 0.1 * jax.random.normal(jax.random.key(2), (400, 1))
        >>> found = bmr.reduce_network(network, (x, y), keep=0.5)
        >>> found.kept, len(found.removals()), list(found.layers()["kept"].round(2))
        (0.5, 16, [0.46, 0.62])
        >>> smaller = found.network_at(found.evidence_point)  # another point of the path
    """

    network: Any
    masks: dict[str, Bool[np.ndarray, "..."]]
    path: tuple[PathPoint, ...]
    chosen: int
    temperature: float
    prior_precision: dict[str, float]
    not_judged: dict[str, str]
    findings: tuple[Finding, ...]
    _layers: tuple[TracedLayer, ...] = field(repr=False)
    _removed: tuple[Removed, ...] = field(repr=False)
    _packed: tuple[Packed, ...] = field(repr=False)
    _parts: Any = field(repr=False)
    _scales: dict[int, Float[np.ndarray, "..."]] = field(repr=False)

    @property
    def kept(self) -> float:
        """Share of the judged weights that stay."""
        return self.path[self.chosen].kept

    @property
    def evidence_point(self) -> int:
        """Number of the point of the path whose evidence is highest."""
        return highest_evidence(self.path)

    def network_at(self, point: int) -> Any:
        """Return the network at a point of the path.

        Args:
            point: Number of the point; 0 is the dense network.

        Raises:
            IndexError: If there is no such point.
        """
        if not 0 <= point < len(self.path):
            raise IndexError(
                f"network_at: the path has points 0 to {len(self.path) - 1}, got {point}."
            )
        return self._parts.build([jnp.asarray(x) for x in self._packed[point].arrays()])

    def posterior_scales(self) -> dict[str, Float[np.ndarray, "..."]]:
        """Return the posterior standard deviation of each weight, given all the others.

        By the curvature at the dense network, the temperature and the prior: what an error ε of each
        weight, independent of the errors of the others, costs is Σ ε² / 2σ² nats. `export.Int8` takes them
        to say which arrays can be rounded to eight bits.

        Returns:
            Path of a judged array to an array of its shape, float32; 0 for removed weights.

        Example:
            >>> import equinox as eqx, jax
            >>> import bmrjax as bmr
            >>> network = eqx.nn.MLP(3, 1, width_size=8, depth=1, key=jax.random.key(0))
            >>> x = jax.random.normal(jax.random.key(1), (400, 3))
            >>> y = jax.vmap(network)(x) + 0.1 * jax.random.normal(jax.random.key(2), (400, 1))
            >>> found = bmr.reduce_network(network, (x, y), keep=0.5)
            >>> scales = found.posterior_scales()
            >>> {name: scale.shape for name, scale in scales.items()}
            {'layers.0.weight': (8, 3), 'layers.1.weight': (1, 8)}
            >>> sum(int((scale > 0).sum()) for scale in scales.values())
            16
        """
        names = self._parts.names
        masks = {i: self.masks[names[i]] for i in self._scales}
        return scales_of_kept(self._scales, masks, names)

    def table(self) -> "DataFrame":
        """Return the path, one row per point.

        Returns:
            The columns ``"kept"``, ``"predicted"`` and ``"measured"`` (increase of the loss per row
            since the dense network, in nats), ``"standard_error"``, ``"delta_f"``, ``"as_good"``,
            ``"chosen"``, and one for the loss and each metric.
        """
        return path_table(self.path, self.chosen, ["kept"])

    def layers(self) -> "DataFrame":
        """Return one row per judged array.

        Returns:
            The columns ``"array"``, ``"weights"``, ``"kept"`` and ``"prior_precision"``.
        """
        import pandas as pd

        return pd.DataFrame(
            {
                "array": list(self.masks),
                "weights": [mask.size for mask in self.masks.values()],
                "kept": [float(mask.mean()) for mask in self.masks.values()],
                "prior_precision": [
                    next(
                        value
                        for layer, value in self.prior_precision.items()
                        if layer.split("[part")[0] == name
                    )
                    for name in self.masks
                ],
            }
        )

    def removals(self) -> "DataFrame":
        """Return a receipt for each weight that the chosen point has lost, in the order of removal.

        Returns:
            The columns ``"array"``; ``"index"``, where in the array, flattened; ``"saliency"``, what the
            log evidence lost by its removal, in nats; ``"delta_f"``, the change of the log evidence,
            positive in favour of removal; ``"point"``, the point of the path at which it is gone; and
            ``"measured"``, the increase of the loss per row that was measured there, for all that is
            gone by then.
        """
        import pandas as pd

        frames = []
        for number in range(1, self.chosen + 1):
            removed = self._removed[number - 1]
            group, output, into = removed.place.T
            index = np.zeros(len(group), int)
            for k in np.unique(removed.layer):
                mine = removed.layer == k
                index[mine] = self._layers[k].index[group[mine], output[mine], into[mine]]
            names = np.array([layer.name.split("[part")[0] for layer in self._layers])
            frames.append(
                pd.DataFrame(
                    {
                        "array": names[removed.layer],
                        "index": index,
                        "saliency": removed.saliency,
                        "delta_f": removed.log_occam - removed.saliency,
                        "point": number,
                        "measured": self.path[number].measured,
                    }
                )
            )
        columns = ["array", "index", "saliency", "delta_f", "point", "measured"]
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=columns)

    def report(
        self,
        path: str | Path,
        *,
        title: str = "The reduction of a trained network",
        command: str = "",
    ) -> Path:
        """Write a page that explains this reduction: one file of HTML that needs no network.

        It has a slider along the path, what each array lost, predicted against measured loss, and the
        findings.

        Args:
            path: Of the file, which ends in ``.html`` or ``.htm``; one that is there is replaced.
            title: Heading of the page.
            command: How it was made, a line of a shell or of Python.

        Returns:
            The path.

        Raises:
            ValueError: For a path that does not end in .html.
            ImportError: Without the extra ``report``.
        """
        return write_page(network_page(self, title=title, command=command), path)

    def __repr__(self) -> str:
        total = sum(mask.size for mask in self.masks.values())
        stay = sum(int(mask.sum()) for mask in self.masks.values())
        first = (
            f"NetworkReduction: {stay:,} of {total:,} judged weights stay "
            f"({self.path[self.chosen].kept:.1%})"
        )
        lines = path_lines(self.path, self.chosen, self.temperature, self.findings, self.table())
        return "\n".join([first, *lines])
