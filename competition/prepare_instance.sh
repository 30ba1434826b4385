#!/bin/bash
# prepare_instance.sh v1 CATEGORY ONNX VNNLIB: end what an earlier instance left running, and see that all is there.
# Nothing is analysed. Exit code 0: the instance can be run. VERTEX_PYTHON, VERTEX_STATE: see common.sh.
set -euo pipefail
here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)"
# shellcheck source=competition/common.sh
source "$here/common.sh"

want_version "${1-}"
[[ $# -eq 4 ]] || refuse "four arguments are needed, v1 CATEGORY ONNX VNNLIB; got $#"

# Only processes that run_instance.sh has noted, and only if the id still means the same process.
own_state || refuse "$state cannot be used; set VERTEX_STATE to a folder of your own"
for note in "$state"/*; do
    [[ -f "$note" ]] || continue
    pid="${note##*/}"
    if [[ "$pid" =~ ^[0-9]+$ ]]; then
        if now="$(started "$pid")" && [[ "$now" == "$(<"$note")" ]]; then
            say "process $pid of an earlier instance still runs: ended"
            end_group "$pid"
        fi
        rm -f -- "$note"
    fi
done

model="$(one_network "$3")" || refuse "$3 are several networks; properties of one are supported"
existing "$model" >/dev/null || refuse "there is no model $model"
existing "$4" >/dev/null || refuse "there is no property $4"
[[ -x "$python" ]] || refuse "$python is not there; run install_tool.sh v1 first, or set VERTEX_PYTHON"
# Says that the tool starts, and has all files of it in memory when the time is taken: starting counts.
"$python" -P -m vertex_softmax --version
"$python" -P -c 'import vnnlib, vertex_softmax.cli.verify, vertex_softmax.search.verify_files
from vertex_softmax.graph.from_onnx.file import packages
packages()'
