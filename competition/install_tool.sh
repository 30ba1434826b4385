#!/bin/bash
# install_tool.sh v1: an environment in .venv beside this script, with the package and the versions CI uses.
# Python 3.11 or newer is needed: VERTEX_BASE_PYTHON if it is set, else python3.11, python3.12, python3.13 or python3.
set -euo pipefail
here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)"
# shellcheck source=competition/common.sh
source "$here/common.sh"

[[ $# -eq 1 ]] || refuse "one argument is needed, v1; got $#"
want_version "$1"

root="$(dirname -- "$here")"
for file in pyproject.toml constraints.txt; do
    [[ -f "$root/$file" ]] || refuse "$root/$file is not there; run the script from a whole checkout"
done

base=""
names=(python3.11 python3.12 python3.13 python3)
if [[ -n "${VERTEX_BASE_PYTHON-}" ]]; then names=("$VERTEX_BASE_PYTHON"); fi
for name in "${names[@]}"; do
    if "$name" -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        base="$name"
        break
    fi
done
[[ -n "$base" ]] || refuse "there is no Python 3.11 or newer with venv (tried ${names[*]}); install python3.11 and python3.11-venv, \
or set VERTEX_BASE_PYTHON"
command -v cc >/dev/null || say "there is no C compiler; the package works without, but slower on the CPU"

say "installing into $here/.venv with $base"
"$base" -m venv --clear "$here/.venv"
cd -- "$root" # paths in the constraints file and extras need no quoting then
"$here/.venv/bin/python" -m pip --disable-pip-version-check install --constraint constraints.txt '.[onnx,vnnlib]'
"$here/.venv/bin/python" -P -m vertex_softmax --version
