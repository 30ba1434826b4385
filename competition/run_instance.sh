#!/bin/bash
# run_instance.sh v1 CATEGORY ONNX VNNLIB RESULTS_FILE TIMEOUT: the answer, whole, in RESULTS_FILE.
#
# Its first line is sat, unsat, unknown, timeout or error; after sat the counterexample follows. The file is there from
# the first moment (error) and is replaced in one step, so that it is whole however this script ends. Exit code 0: there
# is a results file; 1: the arguments were refused.
#
# By the rules of 2026 everything counts from the start of this script, and an answer that comes after TIMEOUT is void.
# So the tool is given TIMEOUT less VERTEX_MARGIN (seconds, 1.5 by default) and less what has passed; it ends by itself at
# most 0.8 s after that, and is killed when a third of the margin is left.
# VERTEX_DEVICE: cpu (default) or cuda. VERTEX_PYTHON, VERTEX_STATE: see common.sh.
set -uo pipefail
began="$(date +%s%N)"
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
if ! onnx="$(one_network "$onnx")"; then
    say "$3 are several networks; properties of one are supported"
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

# Times are whole milliseconds; the margin is half of TIMEOUT at most.
milliseconds() {
    LC_ALL=C awk -v seconds="$1" 'BEGIN { printf "%d", 1000 * seconds }'
}
limit="$(milliseconds "$seconds")" margin="$(milliseconds "${VERTEX_MARGIN:-1.5}")"
((margin <= limit / 2)) || margin=$((limit / 2))
# left KEPT: how much of TIMEOUT is left, less KEPT.
left() {
    printf '%d\n' $((limit - $1 - ($(date +%s%N) - began) / 1000000))
}
# in_seconds TIME: a decimal above 0.
in_seconds() {
    local time=$(($1 > 0 ? $1 : 1))
    printf '%d.%03d\n' $((time / 1000)) $((time % 1000))
}

# GNU timeout makes a process group of its own; KILL, as a computation may not listen to anything else.
timeout --signal=KILL "$(in_seconds "$(left $((margin / 3)))")" \
    "$python" -P -m vertex_softmax verify "--timeout=$(in_seconds "$(left "$margin")")" \
    "--device=${VERTEX_DEVICE:-cpu}" -- "$onnx" "$vnnlib" </dev/null >"$work/answer" &
child=$!
if own_state; then started "$child" >"$state/$child"; else say "$state cannot be used; set VERTEX_STATE"; fi
wait "$child"
code=$?
over=$(($(left 0) > 0 ? 0 : 1)) # an answer is void now

said=""
read -r said <"$work/answer" || true
case "$over:$code:$said" in
    1:*) write_results timeout ;;
    0:0:unsat | 0:3:unknown | 0:4:timeout) write_results "$said" ;;
    0:2:error) ;; # the file says so already, and stderr why
    0:10:sat)
        # ((X_0 0.5) … for VNNLIB 1.0; X float32 [1,5] and numbers for VNNLIB 2.0
        if [[ "$(sed -n 2p "$work/answer")" =~ ^\(|\ \[[0-9,]*\]$ ]]; then
            write_results sat "$work/answer"
        else
            say "sat was said without a counterexample"
        fi
        ;;
    0:137:*) if (($(left $((margin / 3))) > 0)); then say "the process was killed"; else write_results timeout; fi ;;
    *) say "exit code $code and answer '$said' do not belong together" ;;
esac || say "$results could not be written"
exit 0
