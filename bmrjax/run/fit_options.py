"""How a fit computes: what is set less often than what it computes."""

import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from bmrjax.infer.estimate import Estimator
from bmrjax.infer.kl_growth import as_growth
from bmrjax.infer.loop import LoopMode
from bmrjax.infer.mixed_precision import MatmulDtype
from bmrjax.run.parameters_at_start import as_start


@dataclass(frozen=True, eq=False, kw_only=True)
class FitOptions:
    """Options of a fit that are set less often: the ELBO, the start, numerics, devices.

    `sparsify`, `ensemble` and `Fit` take them as ``options=``.

    Attributes:
        estimator: Of the expected log likelihood: ``"global"``, one sample of the weights per step (Bayes by
            backprop); ``"local"``, a sample of the pre-activations per data point; or ``"moments"``, without
            sampling. See `infer.PropagatedELBO`.
        loss: A NumPyro ELBO; by default the one that `estimator` names.
        temperature: Below 1, the likelihood counts 1 / temperature times: in training, in the criterion and
            in the free energies that judge rounds, so that all speak of one program (`handlers.temper`).
            The optimum of a factorised posterior of a network underfits, and its evidence removes too much;
            .25 to .5 predicts better at more weights. Choose it on data kept out. Linear models are
            calibrated at 1, the default. VFEs of the run are those of the tempered program;
            `Result.free_energy` is that of the program itself.
        kl_weight: Factor on the KL term while training, and in training alone: rounds are judged by the whole
            free energy.
        kl_warmup: Steps over which that factor grows linearly from zero, or pairs of a step and the factor
            there, the last of which is 1. By default, `sparsify` and `ensemble` hold it at a tenth (at 0.1 /
            `temperature`) and then let it rise to 1, for a network of several layers or a recurrent one from
            scratch, whose posterior may else fall back to the prior before it has learned anything. That
            takes 2,500 steps, 15 % of a long run, or half of a short one. 0 for other programs, with
            `infer.NaturalGradient`, and in a loop of your own over `Fit`.
        start: What to go on from. An earlier result: parameters of the same names are taken over (a
            `FitWarning` names those that fit nothing), and what it removed stays removed. A dict of such
            parameters, as of ``result.params`` or ``svi.get_params(state)``. Or a network of the program's
            layers, trained in any way: its weights are the means. Where means come without scales, from a
            network or from the point estimates of `numpyro.infer.autoguide.AutoDelta`, the scales are those
            of the curvature at these means, measured on the data (`infer.Curvature`). The prior, the
            criterion and all settings may be others.
        static: Arguments that reach the program as they are although they have rows, by keyword or position:
            an index array, say, that the program passes to `numpy.unique`. With all data in every step, an
            argument whose values the program reads is found without.
        max_bad_steps: Steps in a row that may be skipped for a loss or gradient that is not finite. In a loop
            of your own over `Fit`, ``state.svi.worst_in_row`` is the number to compare with.
        loop: ``"fused"``, ``"dispatch"`` or ``"auto"``; see `infer.loop.Loop`.
        mesh: Devices to spread the run over: each takes a part of every batch along an axis ``"data"``, and
            keeps a part of the posterior, the optimiser's state and the masks along an axis ``"model"``. The
            result is that of one device, up to the order of sums.
        matmul_dtype: ``"bfloat16"`` rounds the operands of the program's float32 matrix products and
            convolutions to bfloat16 while training, forward and backward, with sums in float32. Parameters,
            posterior, divergence, noise, optimiser and likelihood stay in float32, and so does all that is
            measured. Made for GPUs and TPUs. A product that asks for ``precision="highest"`` stays as it is.

    Raises:
        TypeError: For a `start` that is none of these, or `static` that is not a list.
        ValueError: For a `loss` together with an `estimator`, or a temperature that is not positive, or a
            `kl_warmup` that does not rise to 1.

    Example:
        >>> import bmrjax as bmr
        >>> options = bmr.FitOptions(estimator="local", kl_warmup=1000)
        >>> options.kl_weight, options.loop
        (1.0, 'auto')
    """

    estimator: Estimator = "global"
    loss: Any = None
    temperature: float = 1.0
    kl_weight: float = 1.0
    kl_warmup: int | Sequence[tuple[float, float]] | None = None
    start: Any = None
    static: Sequence[str | int] = ()
    max_bad_steps: int = 20
    loop: LoopMode = "auto"
    mesh: jax.sharding.Mesh | None = None
    matmul_dtype: MatmulDtype | None = None

    def __post_init__(self) -> None:
        if self.loss is not None and self.estimator != "global":
            raise ValueError(
                "FitOptions: the estimator is a part of the loss; give one of the two, such as "
                f"loss=infer.PropagatedELBO({self.estimator!r})."
            )
        if not 0 < self.temperature < math.inf:
            raise ValueError(
                f"FitOptions: temperature must be positive and finite, got {self.temperature}; 1 is the "
                "posterior itself, less is colder."
            )
        if not isinstance(self.kl_warmup, numbers.Real | None):
            object.__setattr__(self, "kl_warmup", as_growth(self.kl_warmup))
        as_growth(self.kl_warmup)
        as_start(self.start)
        if isinstance(self.static, str):
            raise TypeError(
                f"FitOptions: static must be a list of arguments; write static=[{self.static!r}]."
            )
