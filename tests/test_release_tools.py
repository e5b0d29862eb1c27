"""The scripts of a release: what stops it before anything is built, and how the matrix reports a step."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOOLS = ROOT / "tools"
pytestmark = pytest.mark.skipif(not TOOLS.is_dir(), reason="the tools are not installed")


@pytest.fixture
def project(tmp_path):
    """A repository of version 1.2.3 that is ready for its release."""
    if shutil.which("git") is None or shutil.which("bash") is None:
        pytest.skip("git and bash are needed")
    files = {
        "bmrjax/__init__.py": '__version__ = "1.2.3"\n',
        "CHANGELOG.md": "## [Unreleased]\n\n## [1.2.3] - 2026-01-02\n\n- A change.\n",
        "CITATION.cff": "version: 1.2.3\n",
        "recipe/meta.yaml": 'version = "1.2.3"\n',
        "tools/release.sh": (TOOLS / "release.sh").read_text(),
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    git(tmp_path, "init", "-q")
    commit(tmp_path)
    return tmp_path


def git(folder, *words):
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


def commit(folder):
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "a")


def release(folder):
    """Run the script with a Python that builds nothing, and return its exit code and what it said."""
    python = folder.parent / "python"
    python.write_text(
        f'#!/bin/sh\nif [ "$1" = -c ]; then exec {sys.executable} "$@"; fi\necho "would run: $*"; exit 9\n'
    )
    python.chmod(0o755)
    done = subprocess.run(
        ["bash", "tools/release.sh"],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "PYTHON": str(python), "HOME": str(folder)},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


def test_a_release_that_is_ready_is_built(project):
    code, said = release(project)
    assert (code, said) == (9, "would run: -m build --outdir dist\n")


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("CHANGELOG.md", "## [1.2.2] - 2026-01-02\n", r"no section [1.2.3] with a date"),
        (
            "CHANGELOG.md",
            "## [Unreleased]\n- b\n- c\n## [1.2.3] - 2026-01-02\n- a\n",
            "2 entries under [Unreleased]; move them to [1.2.3]",
        ),
        ("CITATION.cff", "version: 1.2.2\n", "CITATION.cff is not of version 1.2.3"),
        ("recipe/meta.yaml", 'version = "1.2.2"\n', "recipe/meta.yaml is not of version 1.2.3"),
    ],
)
def test_files_that_disagree_stop_a_release(project, name, text, reason):
    (project / name).write_text(text)
    code, said = release(project)
    assert code == 1
    assert "changes that are not committed" in said
    commit(project)
    code, said = release(project)
    assert code == 1
    assert reason in said


def test_a_version_that_has_a_tag_is_not_released_again(project):
    git(project, "tag", "v1.2.3")
    code, said = release(project)
    assert code == 1
    assert "there is a tag v1.2.3 already" in said


def test_the_matrix_says_how_a_step_ended(tmp_path):
    spec = importlib.util.spec_from_file_location("matrix", TOOLS / "matrix.py")
    matrix = importlib.util.module_from_spec(spec)
    sys.modules["matrix"] = matrix  # for its dataclass
    try:
        spec.loader.exec_module(matrix)
    finally:
        del sys.modules["matrix"]
    log = tmp_path / "log.txt"

    def ended(code, **limit):
        return matrix._run([sys.executable, "-c", code], log=log, **limit)

    assert ended("print('fine')") == ""
    assert ended("print('one\\ntwo'); exit(3)") == "two (exit code 3)"
    assert ended("import time; time.sleep(60)", seconds=0.2) == "stopped after 0 s"
    assert "fine" in log.read_text()
    for name in matrix.TESTS:
        assert (ROOT / name).exists(), name
