# Part of ./check: sessions of processes. ./check and scripts/watch-stage source it.
#
# Each command that ./check starts gets a session of its own; its leader is the pid that we know. We end a
# session by ending its members. This includes grandchildren whose parent died, and nothing that we did not start.
# It also keeps a Ctrl-C at the terminal away from the services: only ./check receives it, and ends things in order.
# shellcheck shell=bash

# Replaces the calling background subshell. Bash makes background commands ignore SIGINT and
# SIGQUIT, and tests that send these signals would inherit that: back to the defaults.
lead() { exec env --default-signal=INT,QUIT setsid -- "$@"; }

members() { # members SID: prints the pids
    local file line state parent session
    for file in /proc/[0-9]*/stat; do
        { read -r line <"$file"; } 2>/dev/null || continue # gone in the meantime
        read -r state parent _ session _ <<<"${line##*) }" # the name before ')' may hold anything
        # The second case is a child of ours that has not called setsid yet.
        if [[ $state != Z ]] && ((session == $1 || (${line%% *} == $1 && parent == $$))); then
            echo "${line%% *}"
        fi
    done
}

end_session() { # end_session SID
    local alive deadline=$((SECONDS + 5)) signal=TERM
    while alive=$(members "$1") && [[ -n $alive ]]; do
        # SIGTERM once: to some programs a second one means not to end in order any more.
        # shellcheck disable=SC2086 # one word for each pid
        if [[ -n $signal ]]; then kill -"$signal" $alive 2>/dev/null || true; fi
        if ((SECONDS < deadline)); then signal=''; else signal=KILL; fi
        sleep 0.05
    done
}
