"""A fitted program without its removed elements: what it predicts, and what it draws."""

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpyro
from jaxtyping import Array, Bool

from bmrjax.checks import check_key
from bmrjax.handlers import prune, temper
from bmrjax.infer.arguments import Data, arguments, first_rows, length
from bmrjax.infer.check_call import check_call
from bmrjax.infer.draws import model_draws, posterior_draws
from bmrjax.infer.evaluate import Evaluator
from bmrjax.infer.free_energy import FreeEnergy
from bmrjax.infer.posterior import guide_posteriors
from bmrjax.infer.prediction import LEVELS, Prediction
from bmrjax.infer.prepare_guide import prepare_guide
from bmrjax.infer.program_data import program_data
from bmrjax.infer.pruned_guide import PrunedGuide
from bmrjax.infer.row_sites import row_sites
from bmrjax.reduction import LogNormal, Normal, ZeroOrNormal
from bmrjax.run.at_center import networks_at_center, values_at_center
from bmrjax.run.result_inputs import by_position_or_name, check_without_arguments, checked_data
from bmrjax.run.serial import one_at_a_time
from bmrjax.structure.compact import Compact, compact


class PrunedProgram(abc.ABC):
    """What a fitted program predicts and draws without its removed elements.

    The abstract half of `Result`, which has the attributes and says what they are.
    """

    params: dict[str, Any]
    keep: dict[str, Bool[Array, "..."]]
    row_arguments: tuple[str, ...] | None
    by_rows: bool
    unpruned_model: Callable | None
    unpruned_guide: Callable | None
    columns: tuple[str, ...] | None
    latent_sites: tuple[str, ...] | None
    _evaluators: dict[int | None, Evaluator]

    def _programs(self) -> tuple[Callable, Callable]:
        if self.unpruned_model is None or self.unpruned_guide is None:
            raise ValueError(
                "This result was loaded without its program. Give it: "
                "bmr.load(directory, model=..., guide=...)."
            )
        return self.unpruned_model, self.unpruned_guide

    def _evaluator(self, batch_size: int | None = None) -> Evaluator:
        """Return what predicts with this program, which is compiled once for inputs of one shape."""
        if batch_size is None and self.by_rows:
            batch_size = 1000
        if batch_size not in self._evaluators:
            self._evaluators[batch_size] = Evaluator(
                *self._programs(), batch_size=batch_size, latent_sites=self.latent_sites
            )
        return self._evaluators[batch_size]

    @property
    def model(self) -> Callable:
        """The program without the removed elements: ``handlers.prune(unpruned_model, keep)``.

        Raises:
            ValueError: For a result that was loaded without its program.
        """
        return prune(self._programs()[0], self.keep)

    @property
    def guide(self) -> PrunedGuide:
        """The guide without the removed elements, for NumPyro's `Predictive` and its own methods.

        ``Predictive(result.model, guide=result.guide, params=result.params, num_samples=100)`` works, and
        so do ``result.guide.sample_posterior(key, result.params)``, ``median`` and ``quantiles``.

        Raises:
            ValueError: For a result that was loaded without its program.
        """
        return PrunedGuide(self._programs()[1], self.keep)

    @one_at_a_time
    def predict(
        self,
        key: Array,
        *inputs: Any,
        num_samples: int = 100,
        levels: Sequence[float] = LEVELS,
        return_samples: bool = False,
        batch_size: int | None = None,
        **named: Any,
    ) -> Prediction:
        """Average the program's predictive over posterior samples.

        Of several observed sites, the first that has values by row is predicted; `predictive` draws all.

        Args:
            key: PRNG key.
            *inputs: The program's arguments without the targets, as in ``model(x)``; give the
                targets too for their log predictive density. Or one tuple or dict of them, in
                the form that the program was fitted on.
            num_samples: Posterior samples.
            levels: Of the quantiles that `Prediction.quantiles` and `Prediction.interval` have.
            return_samples: Whether to return the draws too; they take num_samples times the memory of
                the mean.
            batch_size: Rows computed at a time. By default 1,000 for a program that was fitted in
                minibatches, else all of them: its rows may depend on each other.
            **named: Keyword arguments, for a program fitted on a dict.

        Returns:
            Class probabilities or predictive means, with standard deviations and quantiles, one row per
            data point, in the unit of the targets; see `Prediction`.

        Raises:
            TypeError: If `key` is not a JAX PRNG key.
            ValueError: For inputs that are not finite, or levels that are not between 0 and 1.
        """
        check_key(key, "Result.predict", num_samples=num_samples, batch_size=batch_size)
        given = self._given(inputs, named, "predict")
        data = self._checked(given, "Result.predict: inputs")
        return self._evaluator(batch_size).predict(
            self.params,
            self.keep,
            data,
            key,
            num_samples=num_samples,
            levels=levels,
            return_samples=return_samples,
        )

    @one_at_a_time
    def evaluate(self, key: Array, data: Any, *, num_samples: int = 100) -> dict[str, float]:
        """Return accuracy, NLL and 20-bin ECE (classes) or RMSE and NLL on `data`.

        Of several observed sites, the NLL is that of all; the others are of the first with values by row.
        """
        check_key(key, "Result.evaluate", num_samples=num_samples)
        data = self._checked(data, "Result.evaluate: data")
        return self._evaluator().metrics(self.params, self.keep, data, key, num_samples=num_samples)

    @one_at_a_time
    def free_energy(
        self,
        key: Array,
        data: Any,
        *,
        num_samples: int = 100,
        batch_size: int | None = None,
        loss: Any = None,
        temperature: float = 1.0,
    ) -> float:
        """Measure the VFE of this state on `data`, in nats for all of them.

        Args:
            key: PRNG key.
            data: What the program was fitted on, or other data of the same form.
            num_samples: Posterior samples at least to average over.
            batch_size: Data at a time; each batch of each pass has a posterior sample of its own. By default
                128 for a program that was fitted in minibatches, else all of them.
            loss: A NumPyro ELBO; ``TraceMeanField_ELBO()`` by default.
            temperature: Of the likelihood, see `handlers.temper`: that of the fit gives what it minimised,
                1 for that of the program itself.

        Raises:
            TypeError: If `key` is not a JAX PRNG key.
            ValueError: For data that cannot be used, or parts of the data where the program needs all of
                them.
        """
        check_key(key, "Result.free_energy", num_samples=num_samples, batch_size=batch_size)
        model, guide = self._programs()
        arrays = self._checked(data, "Result.free_energy: data")
        arrays = program_data(model, arrays, batch_size=batch_size, name="Result.free_energy: data")
        rows = length(arrays)
        if batch_size is None:
            batch_size = min(128, rows) if self.by_rows else rows
        sites = None
        if batch_size < rows:
            sites = row_sites(model, arrays, jax.random.key(0), name="Result.free_energy")
        loss = numpyro.infer.TraceMeanField_ELBO() if loss is None else loss
        if temperature != 1:
            model = temper(model, temperature=temperature)
        measure = FreeEnergy(model, guide, loss=loss, batch_size=batch_size, row_sites=sites)
        self._prepare_guide(first_rows(arrays, batch_size))
        passes = -(-num_samples // -(-rows // batch_size))
        return measure(self.params, self.keep, arrays, key, num_passes=passes)

    @one_at_a_time
    def posterior(self, *inputs: Any, **named: Any) -> dict[str, Normal | ZeroOrNormal | LogNormal]:
        """Return the posterior of each latent site, element by element, without what was removed.

        Args:
            *inputs: Arguments of the program: one batch. A guide that is written by hand needs them if it
                has arguments, and an automatic guide of a result that was loaded.
            **named: Keyword arguments, for a program fitted on a dict.

        Returns:
            Site name to its posterior: of all sites with masks, and of the others whose posterior is normal,
            spike-and-slab or log-normal. Of removed elements loc and scale are 0; of removed noise, which is
            θ = 1 for certain, loc is -inf.

        Raises:
            ValueError: If a site with a mask has a posterior of another kind, or a point estimate.
        """
        _, guide = self._programs()
        data = self._inputs(inputs, named, "posterior")
        args, kwargs = arguments(data)
        return guide_posteriors(guide, self.params, args, kwargs, self.keep)

    @one_at_a_time
    def sample(
        self,
        key: Array,
        num_samples: int,
        *inputs: Any,
        deterministic: bool = False,
        **named: Any,
    ) -> dict[str, Array]:
        """Draw from the pruned posterior.

        Args:
            key: PRNG key.
            num_samples: Number of draws.
            *inputs: Arguments of the program: one batch. For `deterministic`, and for guides that need them.
            deterministic: Whether to return the program's deterministic sites too.
            **named: Keyword arguments, for a program fitted on a dict.

        Returns:
            Latent site to draws, with a leading axis of `num_samples`; removed elements are zero.

        Raises:
            TypeError: If `key` is not a JAX PRNG key.
        """
        check_key(key, "Result.sample", num_samples=num_samples)
        model, guide = self._programs()
        data = self._inputs(inputs, named, "sample", program=model if deterministic else guide)
        latent_key, model_key = jax.random.split(key)
        drawn = posterior_draws(guide, self.params, self.keep, latent_key, num_samples, data)
        if deterministic:
            _, fixed = model_draws(model, drawn, self.params, self.keep, model_key, data)
            drawn |= fixed
        return drawn

    @one_at_a_time
    def predictive(
        self,
        key: Array,
        *inputs: Any,
        num_samples: int = 100,
        sites: Sequence[str] | None = None,
        **named: Any,
    ) -> dict[str, Array]:
        """Draw from the posterior predictive, by name, as `numpyro.infer.Predictive` does.

        Removed elements are zero, and networks run as at test time. For means, intervals and densities of
        many rows, `predict` needs less memory.

        Args:
            key: PRNG key.
            *inputs: The program's arguments, without the targets. If the targets are given, they are drawn
                anew all the same.
            num_samples: Number of draws.
            sites: Names of the sites to return, latent ones too; by default the observed and the
                deterministic sites.
            **named: Keyword arguments, for a program fitted on a dict.

        Returns:
            Site name to draws, with a leading axis of `num_samples`.

        Raises:
            TypeError: If `key` is not a JAX PRNG key.
            ValueError: For names that are no sites of the program.
        """
        check_key(key, "Result.predictive", num_samples=num_samples)
        model, guide = self._programs()
        data = self._inputs(inputs, named, "predictive", program=model)
        latent_key, model_key = jax.random.split(key)
        latents = posterior_draws(guide, self.params, self.keep, latent_key, num_samples, data)
        drawn, fixed = model_draws(model, latents, self.params, self.keep, model_key, data)
        if sites is None:
            return {**drawn, **fixed}
        every = {**latents, **drawn, **fixed}
        unknown = sorted(set(sites) - set(every))
        if unknown:
            raise ValueError(
                f"predictive: the program has no sites {unknown}; there are {sorted(every)}."
            )
        return {name: every[name] for name in sites}

    @one_at_a_time
    def network(self, *inputs: Any) -> dict[str, Any]:
        """Return the random modules with their weights at the posterior mean, by name.

        Args:
            *inputs: Arguments of the program: one batch.

        Returns:
            Each as it was given: a module, or a pair of module and state with its running statistics.
        """
        return {name: network for name, (network, _) in self._networks(*inputs).items()}

    @one_at_a_time
    def compact(self, *inputs: Any, drop_inputs: bool = False) -> dict[str, Compact]:
        """Return the random modules at the posterior mean without what they do not use, by name.

        Args:
            *inputs: Arguments of the program: one batch.
            drop_inputs: See `bmrjax.compact`.

        Returns:
            A smaller network each, with a report; see `bmrjax.compact`.
        """
        return {
            name: compact(network, *args, drop_inputs=drop_inputs)
            for name, (network, args) in self._networks(*inputs).items()
        }

    @one_at_a_time
    def center(self, *inputs: Any) -> dict[str, Array]:
        """Return each latent site at the mean (or median) of its posterior, and what is deterministic there.

        Args:
            *inputs: Arguments of the program: one batch.

        Returns:
            Site name to value; removed elements are zero.
        """
        self._prepare_guide(inputs)
        return values_at_center(*self._programs(), self.params, self.keep, inputs)

    def _prepare_guide(self, batch: Data) -> None:
        """Make automatic guides of a loaded result ready for use; see `bmrjax.infer.prepare_guide`."""
        prepare_guide(*self._programs(), self.params, batch, latent_sites=self.latent_sites)

    def _given(self, inputs: tuple[Any, ...], named: Mapping[str, Any], name: str) -> Any:
        return by_position_or_name(inputs, named, name, self.row_arguments, self.unpruned_model)

    def _checked(self, data: Any, name: str, *, of_program: bool = True) -> Data:
        """Return arguments as the program takes them; `of_program`: whether it is called with them."""
        if of_program and self.unpruned_model is not None:
            check_call(self.unpruned_model, data, name)
        return checked_data(
            data,
            name,
            columns=self.columns,
            rows=self.row_arguments,
            program=self.unpruned_model,
        )

    def _inputs(
        self,
        inputs: tuple[Any, ...],
        named: Mapping[str, Any],
        name: str,
        *,
        program: Callable | None = None,
    ) -> Data:
        """Return the arguments of the program, checked, with automatic guides ready for use.

        Args:
            inputs: What was given by position.
            named: What was given by name.
            name: Of the method, for messages.
            program: What is called with them; the guide by default.
        """
        _, guide = self._programs()
        given = self._given(inputs, named, name)
        if not given:
            check_without_arguments(guide, program, name)
            return ()
        of_program = program is not None and program is not guide
        data = self._checked(given, f"Result.{name}: inputs", of_program=of_program)
        self._prepare_guide(data)
        return data

    def _networks(self, *inputs: Any) -> dict[str, tuple[Any, tuple[Any, ...]]]:
        if inputs:
            self._prepare_guide(inputs)
        return networks_at_center(*self._programs(), self.params, self.keep, inputs)
