# Part of ./check, which sources it: stages, their bounds, and the tables at the end.
#
# A stage is one command line with a bound on its time. Several may run side by side: `begin` starts one, `finish`
# waits for it. One that exceeds its bound is ended by scripts/watch-stage, which first prints its stacks.
# Uses header, complain, lead, end_session, and the variables work, services and bounds of ./check.
# shellcheck shell=bash
# shellcheck disable=SC2154 # those variables

readonly slow_seconds=20 # a test that takes longer is listed with a reason in .config/slow-tests
readonly slowest=10      # tests in the last table

declare -A stage_pid=() stage_watcher=() stage_start=() stage_rerun=() stage_is_quiet=()
rows=() failures=()

milliseconds() { echo $((${EPOCHREALTIME/[.,]/} / 1000)); }

# Arguments: the log, the file for the times, the command line. The command's output goes through tee: it is seen as
# it comes and counted afterwards. `times` covers all descendants that were waited for.
# shellcheck disable=SC2016 # the variables are for the inner shell
readonly stage_program='bash -o pipefail -c "$3" 2>&1 | tee "$1"; code=${PIPESTATUS[0]}
    { times; echo "$EPOCHREALTIME"; } >"$2"
    exit "$code"'

begin() { # begin NAME LINE [RERUN]: RERUN is what to type to run this stage alone, LINE itself if not given
    local name=$1
    [[ -n ${bounds[$name]:-} ]] || die "the stage $name has no bound"
    stage_rerun[$name]=${3:-$2} stage_start[$name]=$(milliseconds)
    [[ -n ${stage_is_quiet[$name]:-} ]] || header "$name: ${stage_rerun[$name]}"
    local command=(bash -c "$stage_program" "$name" "$work/stages/$name.log" "$work/stages/$name.times" "$2") out=1
    if [[ -n ${stage_is_quiet[$name]:-} ]]; then exec {out}>/dev/null; fi
    lead env TMPDIR="$work/tmp" "${command[@]}" </dev/null >&"$out" &
    stage_pid[$name]=$!
    if ((out != 1)); then exec {out}>&-; fi
    lead scripts/watch-stage "$!" "${bounds[$name]}" "$work/stages/$name.overdue" </dev/null &
    stage_watcher[$name]=$!
}

begin_quietly() { # likewise; its output is shown by `finish`, not between the lines of another stage
    stage_is_quiet[$1]=yes
    begin "$@"
}

finish() { # finish NAME: succeeds if the stage did
    local name=$1 code=0 wall cpu=- end result=passed
    wait "${stage_pid[$name]}" || code=$?
    end=$(milliseconds)
    end_session "${stage_pid[$name]}" # whatever it left running
    end_session "${stage_watcher[$name]}"
    unset "stage_pid[$name]" "stage_watcher[$name]"
    # A stage that was killed has left no times.
    if [[ -s $work/stages/$name.times ]]; then
        end=$(sed -n 3p "$work/stages/$name.times") end=$((${end/[.,]/} / 1000))
        cpu=$(awk -F'[ms ]+' 'NR == 2 { printf "%.1f", 60 * ($1 + $3) + $2 + $4 }' "$work/stages/$name.times")
    fi
    wall=$((end - stage_start[$name]))
    if [[ -n ${stage_is_quiet[$name]:-} ]]; then
        header "$name, which ran beside the stages above: ${stage_rerun[$name]}"
        cat "$work/stages/$name.log"
    fi
    if [[ $code != 0 ]]; then
        result=FAILED
        if [[ -e $work/stages/$name.overdue ]]; then
            result="KILLED after ${bounds[$name]} s"
            complain "stage $name did not end within ${bounds[$name]} s; its stacks are above"
        fi
        failures+=("$name")
        complain "stage failed: $name. To run it alone: ${stage_rerun[$name]}"
    fi
    rows+=("$(printf '%-16s %8d.%d %9s  %s' "$name" $((wall / 1000)) $((wall % 1000 / 100)) "$cpu" "$result")")
    ((code == 0))
}

stage() { # stage NAME LINE [RERUN]
    begin "$@"
    finish "$1"
}

# CPU time of the services that ./check started, with the children that they waited for.
services_cpu() {
    local roots=("${services[@]}") pid
    { read -r pid <"$work/postgres/data/postmaster.pid"; } 2>/dev/null && roots+=("$pid")
    cat /proc/[0-9]*/stat 2>/dev/null | awk -v roots=" ${roots[*]} " -v tick="$(getconf CLK_TCK)" '
        { pid = $1; sub(/.*\) /, ""); if (index(roots, " " pid " ") || index(roots, " " $2 " ")) sum += $12 + $13 + $14 + $15 }
        END { printf "%.1f", sum / tick }'
}

report() { # the last lines: where the time went, and the counts
    local row logs=() file
    for file in "$work"/stages/*.log; do [[ -e $file ]] && logs+=("$file"); done
    header 'where the time went'
    printf '%-16s %10s %9s\n' stage 'wall s' 'CPU s'
    for row in "${rows[@]}"; do echo "$row"; done
    if ((${#services[@]} > 0)); then printf '%-16s %10s %9s  %s\n' services - "$(services_cpu)" '(PostgreSQL, NATS, Redis)'; fi
    printf '%-16s %8d.0\n' 'all of it' "$SECONDS"
    scripts/test-report slowest "$slowest" "$slow_seconds" .config/slow-tests "${logs[@]}" || true
    if ((${#failures[@]} > 0)); then header "failed: ${failures[*]}"; else header 'every stage passed'; fi
    scripts/test-report counts "${logs[@]}"
    ((${#failures[@]} == 0))
}
