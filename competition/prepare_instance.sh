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

existing "$3" >/dev/null || refuse "there is no model $3"
existing "$4" >/dev/null || refuse "there is no property $4"
[[ -x "$python" ]] || refuse "$python is not there; run install_tool.sh v1 first, or set VERTEX_PYTHON"
# Says that the tool starts, and has its files in memory when the time is taken.
"$python" -P -m vertex_softmax --version
