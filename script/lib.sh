# shellcheck shell=bash
# script/lib.sh: what script/test and script/prove share: groups, cases, counting.
#
# A *case* is one thing that passes or fails; a *group* is a function group_NAME that runs cases.
# Every case has a time limit, no standard input and a log of its own. A program that counts cases
# itself (ctest, the mutants, the laboratory) ends with a line "N passed, N failed", which is added
# up; its exit code counts too, so that a crash before that line is a failure. Something that is not
# there is a failure, never a skip.

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$top" || exit 1

jobs=${JOBS:-$(nproc 2>/dev/null || echo 2)}
logs=$top/build/test
passed=0 failed=0      # of everything
declare -A built=()    # presets that are built already in this run: ok or bad
declare -a broken=()   # names of failed cases
group=''               # the one that runs

# How much: script/test runs about a tenth of what script/prove runs.
sim_seeds=10000 mutant_seeds=1000 kills=20 unpaced=3 followers=10000 others=20000

export CONSIGN_TEST_BUILD=$top/build/release # where scenarios find consign and consign-sim
export LC_ALL=C.UTF-8
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:abort_on_error=0}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
unset CONSIGN_CONFIG CONSIGN_FAILPOINTS CONSIGN_FAILPOINT_HITS

# Databases of tests live in memory where there is room (a killed process loses nothing of a tmpfs),
# so that a thousand commits do not wait for a disk; in any case all in one folder that goes away.
shm_free=$(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 { print $4 + 0 }')
if [ -w /dev/shm ] && [ "${shm_free:-0}" -gt 2000000 ]; then
    TMPDIR=$(mktemp -d /dev/shm/consign-test.XXXXXX)
else
    TMPDIR=$(mktemp -d)
fi
export TMPDIR
scratch_gone() {
    rm -rf "$TMPDIR"
}
trap scratch_gone EXIT
trap 'exit 130' INT TERM

now() {
    date +%s
}

pass() {
    passed=$((passed + $1))
}

# fail N NAME [LOG]: says so at once, with the end of the log.
fail() {
    failed=$((failed + $1))
    broken+=("$group: $2")
    printf '  FAILED  %s\n' "$2"
    if [ -n "${3:-}" ]; then
        tail -n 25 "$3" | sed 's/^/      | /'
        printf '      | log: %s\n' "${3#"$top"/}"
    fi
}

# run LIMIT LOG COMMAND…: with a time limit in seconds; the exit code is the command's (124: out of
# time).
run() {
    local limit=$1 log=$2
    shift 2
    mkdir -p "$(dirname "$log")"
    timeout --kill-after=10 "$limit" "$@" </dev/null >"$log" 2>&1
}

# one NAME LIMIT COMMAND…: a case that passes when its command exits 0.
one() {
    local name=$1 limit=$2 began code log
    shift 2
    log=$logs/$group/$(tr -c 'A-Za-z0-9.\n-' '_' <<<"$name").log
    began=$(now)
    run "$limit" "$log" "$@"
    code=$?
    if [ "$code" -eq 0 ]; then
        pass 1
        printf '  ok      %s (%s s)\n' "$name" "$(($(now) - began))"
        return 0
    fi
    [ "$code" -eq 124 ] && echo "out of time: $limit s" >>"$log"
    fail 1 "$name (exit $code)" "$log"
    return 1
}

# many NAME LIMIT COMMAND…: a command that counts its cases and says so in lines "N passed, N
# failed".
many() {
    local name=$1 limit=$2 began code log p f
    shift 2
    log=$logs/$group/$(tr -c 'A-Za-z0-9.\n-' '_' <<<"$name").log
    began=$(now)
    run "$limit" "$log" "$@"
    code=$?
    read -r p f < <(awk '/^([a-z-]+: )?[0-9]+ passed, [0-9]+ failed/ {
        sub(/^[a-z-]+: /, ""); p += $1; f += $3 } END { print p + 0, f + 0 }' "$log")
    if [ "$code" -ne 0 ] && [ "$f" -eq 0 ]; then
        [ "$code" -eq 124 ] && echo "out of time: $limit s" >>"$log"
        f=1
    fi
    if [ "$code" -eq 0 ] && [ "$((p + f))" -eq 0 ]; then
        p=1 # it does not count; its exit code is the case
    fi
    pass "$p"
    if [ "$f" -gt 0 ]; then
        fail "$f" "$name ($p passed, $f failed, exit $code)" "$log"
        return 1
    fi
    printf '  ok      %s: %s passed (%s s)\n' "$name" "$p" "$(($(now) - began))"
}

# suite PRESET FOLDER LIMIT: all that ctest knows below test/FOLDER of a build; each test is a case,
# none at all is a failure.
suite() {
    local preset=$1 folder=$2 limit=$3 log dir code p f total began
    build "$preset" || return 1
    dir=build/$preset/test/$folder
    log=$logs/$group/ctest.log
    began=$(now)
    if [ ! -f "$dir/CTestTestfile.cmake" ]; then
        fail 1 "test/$folder is not there"
        return 1
    fi
    run "$limit" "$log" ctest --test-dir "$dir" -j "$jobs" --timeout "$limit" \
        --output-on-failure --no-tests=error
    code=$?
    read -r total f < <(awk '/^[0-9]+% tests passed, / { f = $4; t = $NF }
        END { print t + 0, f + 0 }' "$log")
    p=$((total - f))
    if [ "$code" -ne 0 ] && [ "$f" -eq 0 ]; then
        f=1
    fi
    pass "$p"
    if [ "$f" -gt 0 ]; then
        sed -n '/The following tests FAILED/,$p' "$log" | sed 's/^/      | /' | head -n 40
        fail "$f" "test/$folder ($p passed, $f failed)" "$log"
        return 1
    fi
    printf '  ok      test/%s: %s passed (%s s)\n' "$folder" "$p" "$(($(now) - began))"
}

# build PRESET: once a run; the first time it counts as a case.
build() {
    local preset=$1
    [ -n "${built[$preset]:-}" ] && { [ "${built[$preset]}" = ok ]; return; }
    built[$preset]=bad
    one "configure $preset" 120 cmake --preset "$preset" || return 1
    one "build $preset" 900 cmake --build "build/$preset" -j "$jobs" || return 1
    built[$preset]=ok
}

# program PATH: true when the file can be run, else a failed case.
program() {
    [ -x "$1" ] && return 0
    fail 1 "$1 is not there"
    return 1
}

# ---- groups, cheapest first ----------------------------------------------------------------------

group_lint() {
    one 'tools/lint' 120 tools/lint
    one 'tools/lint --self-test' 120 tools/lint --self-test
}

group_unit() { suite dev unit 240; }
group_contract() { suite dev contract 300; }
group_fuzz() { suite dev fuzz 300; }

group_release() {
    build release || return 1
    one 'core objects import only what they may' 60 tools/lint --objects build/release
    one 'every command that is named exists' 60 tools/lint --program build/release/consign
}

group_tsan() {
    suite tsan unit 300
}

group_clang() {
    one 'configure clang' 120 \
        cmake -S . -B build/clang -G Ninja -DCMAKE_C_COMPILER=clang -DCMAKE_BUILD_TYPE=Debug || return 1
    one 'build clang' 600 cmake --build build/clang -j "$jobs"
}

group_sim() {
    suite dev sim 300
    build release || return 1
    program build/release/consign-sim || return 1
    one "consign-sim --seeds $sim_seeds" $((120 + sim_seeds / 40)) \
        build/release/consign-sim --seeds "$sim_seeds"
}

group_mutants() {
    build release || return 1
    program tools/mutants || return 1
    many "tools/mutants --seeds $mutant_seeds" 3600 tools/mutants --seeds "$mutant_seeds"
}

group_failpoints() {
    build release || return 1
    program test/crash/failpoints || return 1
    many 'test/crash/failpoints' 1200 test/crash/failpoints
}

group_crash() {
    build release || return 1
    program test/crash/kill || return 1
    many "test/crash/kill --kills $kills --unpaced $unpaced" $((300 + kills * 20 + unpaced * 20)) \
        test/crash/kill --kills "$kills" --unpaced "$unpaced"
    program test/crash/head || return 1
    many "test/crash/head --followers $followers" 900 \
        test/crash/head --followers "$followers" --others "$others"
}

group_accept() {
    local scenario none=1
    build release || return 1
    for scenario in test/accept/*.sh; do
        case $(basename "$scenario") in lib.sh) continue ;; esac
        none=0
        many "$scenario" 300 "$scenario"
    done
    [ "$none" = 0 ] || fail 1 'test/accept has no scenario'
}

group_lab() {
    build release || return 1
    program build/release/consign || return 1
    many 'consign lab run all' 1200 build/release/consign lab run all
}

# ---- the run -------------------------------------------------------------------------------------

# run_groups TITLE NAME:SECONDS…: all groups in order, with a budget of time each, and the one line
# at the end.
run_groups() {
    local title=$1 entry budget began start p f spent
    shift
    start=$(now)
    rm -rf "$logs"
    mkdir -p "$logs"
    for entry in "$@"; do
        group=${entry%%:*} budget=${entry##*:}
        printf '== %s (budget %s s)\n' "$group" "$budget"
        began=$(now) p=$passed f=$failed
        "group_$group"
        [ "$((passed + failed))" -gt "$((p + f))" ] || fail 1 "$group ran nothing"
        spent=$(($(now) - began))
        printf '== %s: %s passed, %s failed in %s s of %s s%s\n\n' "$group" "$((passed - p))" \
            "$((failed - f))" "$spent" "$budget" \
            "$([ "$spent" -gt "$budget" ] && echo ' (over its budget)')"
    done
    if [ "${#broken[@]}" -gt 0 ]; then
        printf 'failed:\n'
        printf '  %s\n' "${broken[@]}"
    fi
    printf '%s: %s s, logs in build/test\n' "$title" "$(($(now) - start))"
    printf '%s passed, %s failed\n' "$passed" "$failed"
    [ "$failed" -eq 0 ]
}

# pick GROUP… from the list in all_groups (array of NAME:SECONDS); without names all of them. Leaves
# them in picked.
pick() {
    local name entry found
    picked=()
    [ $# -eq 0 ] && picked=("${all_groups[@]}")
    for name in "$@"; do
        found=''
        for entry in "${all_groups[@]}"; do
            [ "${entry%%:*}" = "$name" ] && found=$entry
        done
        if [ -z "$found" ]; then
            printf 'no group "%s"; there are: %s\n' "$name" "${all_groups[*]%%:*}" >&2
            exit 64
        fi
        picked+=("$found")
    done
}
