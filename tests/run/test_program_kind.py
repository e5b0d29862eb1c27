"""What is given in place of a program is named, with what to write."""

import equinox as eqx
import jax
import numpyro
import numpyro.distributions as dist
import pytest

from bmrjax.run.settings import check_program_kind


class Module(eqx.Module):
    scale: float = 1.0

    def model(self, x, y=None):
        numpyro.sample("y", dist.Normal(x, self.scale), obs=y)

    def __call__(self, x):
        return x


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (eqx.nn.Linear(2, 1, key=jax.random.key(0)), "is a network, Linear; .*programs.classifier"),
        (Module(), "is a network, Module"),
        (Module().model, r"is Module.model, a method .*module.model\(\*args, \*\*kwargs\)"),
        ("program", "is a str; give a NumPyro program"),
    ],
)
def test_other_things_than_programs_are_refused(given, message):
    with pytest.raises(TypeError, match=f"the first argument {message}"):
        check_program_kind(given)


def test_a_function_that_calls_a_method_is_a_program():
    check_program_kind(lambda *args, **kwargs: Module().model(*args, **kwargs))
