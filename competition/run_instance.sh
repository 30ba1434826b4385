#!/bin/bash
# run_instance.sh v1 CATEGORY ONNX VNNLIB RESULTS_FILE TIMEOUT: the answer, whole, in RESULTS_FILE.
#
# Its first line is sat, unsat, unknown, timeout or error; after sat the counterexample follows. The file is there from
# the first moment (error) and is replaced in one step, so that it is whole however this script ends. Exit code 0: there
# is a results file; 1: the arguments were refused.
# VERTEX_DEVICE: cpu (default) or cuda. VERTEX_GRACE: seconds after TIMEOUT until the tool is killed, 5 by default.
# VERTEX_PYTHON, VERTEX_STATE: see common.sh.
set -uo pipefail
here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)"
# shellcheck source=competition/common.sh
source "$here/common.sh"

want_version "${1-}"
[[ $# -eq 6 ]] || refuse "six arguments are needed, v1 CATEGORY ONNX VNNLIB RESULTS_FILE TIMEOUT; got $#"
onnx="$3" vnnlib="$4" results="$5" seconds="$6"
[[ "$results" == /* ]] || results="$PWD/$results" # a name may begin with -

# write_results STATUS [FILE]: STATUS, and what FILE has after its first line.
write_results() {
    {
        printf '%s\n' "$1"
        if [[ $# -gt 1 ]]; then tail -n +2 -- "$2" | sed '/^[[:space:]]*$/d'; fi
    } >"$results.$$.tmp" && mv -fT -- "$results.$$.tmp" "$results"
}

write_results error || refuse "$results cannot be written"
if ! [[ "$seconds" =~ ^([0-9]+\.?[0-9]*|\.[0-9]+)$ && "$seconds" =~ [1-9] ]]; then
    say "the timeout is '$seconds', not a number of seconds above 0"
    exit 0
fi
if ! onnx="$(existing "$onnx")" || ! vnnlib="$(existing "$vnnlib")"; then
    say "there is no model $3, or no property $4"
    exit 0
fi

child=""
work="$(mktemp -d)" || { say "there is no room for temporary files"; exit 0; }
clean() {
    if [[ -n "$child" ]]; then rm -f -- "$state/$child"; fi
    rm -rf -- "$work"
}
trap clean EXIT
# shellcheck disable=SC2317 # called by the trap
ended() { # whoever runs the competition has lost patience
    if [[ -n "$child" ]]; then end_group "$child"; fi
    write_results timeout
    exit "$1"
}
trap 'ended 143' TERM
trap 'ended 130' INT

# It ends by itself in time, and is killed if it does not; GNU timeout makes a process group of its own.
limit="$(LC_ALL=C awk -v seconds="$seconds" -v grace="${VERTEX_GRACE:-5}" 'BEGIN { printf "%.3f", seconds + grace }')"
SECONDS=0
timeout --signal=TERM --kill-after=2 "$limit" \
    "$python" -P -m vertex_softmax verify "--timeout=$seconds" "--device=${VERTEX_DEVICE:-cpu}" -- "$onnx" "$vnnlib" \
    </dev/null >"$work/answer" &
child=$!
if own_state; then started "$child" >"$state/$child"; else say "$state cannot be used; set VERTEX_STATE"; fi
wait "$child"
code=$?
elapsed=$SECONDS

said=""
read -r said <"$work/answer" || true
case "$code:$said" in
    0:unsat | 3:unknown | 4:timeout) write_results "$said" ;;
    2:error) ;; # the file says so already, and stderr why
    10:sat)
        if [[ "$(sed -n 2p "$work/answer")" == "("* ]]; then
            write_results sat "$work/answer"
        else
            say "sat was said without a counterexample"
        fi
        ;;
    124:*) write_results timeout ;;
    137:*) if ((elapsed >= ${limit%.*})); then write_results timeout; else say "the process was killed"; fi ;;
    *) say "exit code $code and answer '$said' do not belong together" ;;
esac || say "$results could not be written"
exit 0
