"""What `bmrjax inspect` prints, of a table and of a program."""

import numpy as np
import pytest
from failing import fails

from bmrjax import cli

PROGRAM = """
import numpyro
import numpyro.distributions as dist
from beside import WIDTH


def program(x, y=None):
    intercept = numpyro.sample("intercept", dist.Normal(0, 5))
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([WIDTH]).to_event(1))
    numpyro.sample("y", dist.Normal(intercept + x @ beta, 1.0), obs=y)


number = 3
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "model.py").write_text(PROGRAM)
    (tmp_path / "beside.py").write_text("WIDTH = 3\n")
    rows = np.random.default_rng(0).normal(size=(40, 3))
    np.savez(tmp_path / "data.npz", x=rows, y=rows[:, 0])
    lines = ["a,b,c,target", *(f"{a},{b},{c},{a}" for a, b, c in rows)]
    (tmp_path / "data.csv").write_text("\n".join(lines))
    return tmp_path


def test_a_program_is_inspected_on_arrays_by_name_or_on_a_table(folder, capsys):
    for name in ("data.npz", "data.csv"):
        words = ["--program", f"{folder / 'model.py'}:program", "--data", str(folder / name)]
        cli.main(["inspect", *words])
        printed = capsys.readouterr().out.splitlines()
        assert printed[0].startswith("intercept  ()     not judged")
        assert printed[2].startswith("beta       (3,)   judged")
        assert printed[-1] == "1 of 2 latent sites would be judged"
    cli.main(["inspect", *words, "--sites", "intercept", "beta"])
    assert capsys.readouterr().out.splitlines()[-1] == "2 of 2 latent sites would be judged"


def test_a_table_is_inspected_with_the_program_that_a_run_would_fit(folder, capsys):
    cli.main(["inspect", "--data", str(folder / "data.csv"), "--hidden", "4"])
    printed = capsys.readouterr().out
    assert "net.layers.0.weight" in printed
    assert "(4, 3)" in printed
    assert printed.splitlines()[-1].startswith("4 of ")


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("model.py", "takes FILE.py:NAME or package.module:NAME"),
        ("none.py:program", "there is no file none.py"),
        ("no_such_module:program", "No module named 'no_such_module'"),
    ],
)
def test_places_without_a_program_are_refused(folder, capsys, program, message):
    data = folder / "data.csv"
    assert message in fails(capsys, "inspect", "--program", program, "--data", data)
    place = f"{folder / 'model.py'}:nothing"
    line = fails(capsys, "inspect", "--program", place, "--data", data)
    assert "has no function nothing" in line
    line = fails(capsys, "inspect", "--program", place, "--data", data, "--net", "gru")
    assert "--net makes a program, and --program is one" in line
