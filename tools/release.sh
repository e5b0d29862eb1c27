#!/usr/bin/env bash
# Build a release and check it; upload nothing.
#
#   tools/release.sh [FOLDER]
#
# Needs the extras "dev" and "release". At the end, FOLDER (dist by default) holds a wheel and an sdist that have passed,
# and the two commands that are left are printed. MATRIX_OPTIONS are those of tools/matrix.py; without them, every Python
# is tried with the oldest and the newest dependencies.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-dist}
python=${PYTHON:-python}

version=$("$python" -c 'import re, pathlib
print(re.search(r"__version__ = \"(.+)\"", pathlib.Path("bmrjax/__init__.py").read_text())[1])')
stop() { echo "release: $1" >&2; exit 1; }
test -z "$(git status --porcelain)" || stop "there are changes that are not committed."
grep -q "^## \[$version\] - " CHANGELOG.md || stop "CHANGELOG.md has no section [$version] with a date."
unreleased=$(sed -n '/^## \[Unreleased\]/,/^## \[[0-9]/p' CHANGELOG.md | grep -c "^- " || true)
test "$unreleased" = 0 || stop "CHANGELOG.md has $unreleased entries under [Unreleased]; move them to [$version]."
grep -q "^version: $version$" CITATION.cff || stop "CITATION.cff is not of version $version."
grep -q "version = \"$version\"" recipe/meta.yaml || stop "recipe/meta.yaml is not of version $version."
test -z "$(git tag --list "v$version")" || stop "there is a tag v$version already."

rm -rf "$folder"
"$python" -m build --outdir "$folder"
"$python" -m twine check --strict "$folder"/*
"$python" -m check_wheel_contents "$folder"/*.whl
"$python" tools/type_completeness.py --wheel "$folder"/*.whl
read -ra options <<< "${MATRIX_OPTIONS:-}"
"$python" tools/matrix.py --wheel "$folder"/*.whl "${options[@]}"
(cd "$folder" && sha256sum ./*)

cat <<END
release: bmrjax $version is in $folder and has passed (matrix: ${MATRIX_OPTIONS:-all}); nothing is uploaded. What is left, by hand:
  git tag -s v$version && git push origin v$version
  $python -m twine upload $folder/*
Then put the digest of the sdist into recipe/meta.yaml.
END
