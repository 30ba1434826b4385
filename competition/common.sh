# What the three scripts share; sourced, not run. bash 4 or newer, Linux.
# shellcheck shell=bash

# VERTEX_PYTHON: the interpreter that has the package; by default that of install_tool.sh.
python="${VERTEX_PYTHON:-$here/.venv/bin/python}"
# VERTEX_STATE: a folder that says which processes run_instance.sh has started.
state="${VERTEX_STATE:-${TMPDIR:-/tmp}/vertex-competition-$(id -u)}"

say() {
    printf '%s: %s\n' "$(basename "$0")" "$*" >&2
}

refuse() {
    say "$*"
    exit 1
}

# want_version GIVEN: the competition calls every script with the version of its rules first.
want_version() {
    [[ "$1" == v1 ]] || refuse "the first argument is '$1'; this is for version v1 of the competition's scripts"
}

# one_network GIVEN: the path of the model, on stdout. Where a property of VNNLIB 2.0 names its networks, the competition
# writes [('f', 'model.onnx')]; fails if these are several, which are not supported.
one_network() {
    local quote="['\"]" other="[^'\"]*"
    local pair="^\[ *\( *$quote$other$quote *, *$quote($other)$quote *\) *,? *\]\$"
    if [[ "$1" != "["* || -f "$1" ]]; then
        printf '%s\n' "$1"
    elif [[ "$1" =~ $pair ]]; then
        printf '%s\n' "${BASH_REMATCH[1]}"
    else
        return 1
    fi
}

# existing PATH: the file, or the compressed one beside it, on stdout; fails if neither is there.
existing() {
    local file
    for file in "$1" "$1.gz"; do
        if [[ -f "$file" ]]; then
            printf '%s\n' "$file"
            return 0
        fi
    done
    return 1
}

# own_state: the folder, made if need be; fails if it is somebody else's.
own_state() {
    mkdir -p -m 700 -- "$state" && [[ -d "$state" && -O "$state" && ! -L "$state" ]]
}

# started PID: when the process began, in the kernel's ticks; fails if there is none. An id alone may have been given
# to another process since.
started() {
    local line
    { read -r line <"/proc/$1/stat"; } 2>/dev/null || return 1
    line="${line##*) }"
    # shellcheck disable=SC2086 # the fields are numbers
    set -- $line
    printf '%s\n' "${20}"
}

# end_group PID: the process and all it has started, at once; never that of this script.
end_group() {
    kill -KILL -- "-$1" 2>/dev/null || kill -KILL "$1" 2>/dev/null || true
}
