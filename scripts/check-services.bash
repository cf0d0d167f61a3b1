# Part of ./check, which sources it: installs the programs that the tests need and starts private
# instances of the services. Uses header, die, lead, members, and the variables work, pg_ctl and
# services of ./check.
# shellcheck shell=bash
# shellcheck disable=SC2154 # those variables

readonly patience=30 # seconds for a service to start

# --- Installation --------------------------------------------------------------------------------

chromium_path() {
    local name
    for name in "${TENURE_TEST_CHROMIUM:-}" chromium chromium-browser google-chrome-stable; do
        if [[ -n $name ]] && type -P "$name"; then return; fi
    done
    return 1
}

missing() { # prints the Debian packages that are missing
    command -v cc >/dev/null || echo gcc libc6-dev # rustc links with it; SQLite is compiled with it
    "$pg_ctl" bin-dir >/dev/null 2>&1 || echo postgresql
    command -v python3 >/dev/null || echo python3 # the benchmark runner's own tests, the Python package
    python3 -c 'import ensurepip, venv' 2>/dev/null || echo python3-venv # the package is installed and tested in one
    command -v nats-server >/dev/null || echo nats-server
    command -v redis-server >/dev/null || echo redis-server
    command -v openssl >/dev/null || echo openssl # the documented commands that make certificates
    command -v nginx >/dev/null || echo nginx-light # a proxy in front of the server
    [[ -n ${TENURE_CHECK_FAST:-} ]] || chromium_path >/dev/null || echo chromium
}

install_missing() {
    local packages root=() tries=0
    read -r -d '' -a packages < <(missing) || true
    ((${#packages[@]} > 0)) || return 0
    header "installing ${packages[*]}"
    local by_hand="install by hand what these Debian packages hold: ${packages[*]}"
    command -v apt-get >/dev/null || die "there is no apt-get here; $by_hand"
    if ((EUID != 0)); then
        command -v sudo >/dev/null || die "neither root nor sudo; $by_hand"
        root=(sudo)
        [[ -t 0 ]] || root+=(-n) # nobody to type a password: fail instead of hanging
    fi
    # Where systemd runs, Debian starts the services of the packages it installs. We do not use them.
    # DPkg::Lock::Timeout waits for another apt-get that installs; `update` takes a lock without a
    # timeout, hence the loop.
    root+=(env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=600)
    until "${root[@]}" update >&2; do
        ((++tries < 5)) || die "apt-get update failed; $by_hand"
        sleep 3
    done
    "${root[@]}" install -y --no-install-recommends "${packages[@]}" </dev/null >&2 ||
        die "apt-get install failed; $by_hand"
    hash -r
    read -r -d '' -a packages < <(missing) || true
    ((${#packages[@]} == 0)) || die "still missing after the installation: ${packages[*]}"
}

# --- Services ------------------------------------------------------------------------------------

# A port that nobody listens on, from below the range from which Linux takes the ports of outgoing
# connections. Another process may still take it before our service does: the callers try again.
free_port() {
    local port
    while port=$((20000 + SRANDOM % 12000)); do
        (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || break
    done
    echo "$port"
}

answers() { # answers PORT TEXT PATTERN: sends TEXT, succeeds if a line of the answer is like PATTERN
    (
        exec 3<>"/dev/tcp/127.0.0.1/$1" && printf '%s' "$2" >&3
        # shellcheck disable=SC2053 # it is a pattern
        while IFS= read -r -t 2 line <&3; do if [[ $line == $3 ]]; then exit 0; fi; done
        exit 1
    ) 2>/dev/null
}

# Both questions also ask who answers: at a lost race for the port, it would be a stranger's service.
start_redis() { lead redis-server --bind 127.0.0.1 --port "$1" --save '' --appendonly no --dir "$work"; }
redis_is_up() { answers "$1" $'PING\r\nINFO server\r\n' "process_id:$2"$'\r'; }
# JetStream is off unless asked for.
start_nats() { lead nats-server --addr 127.0.0.1 --port "$1" --name "${work##*/}"; }
nats_is_up() { answers "$1" '' "INFO *\"server_name\":\"${work##*/}\"*"; }

start_service() { # start_service NAME: sets `port`
    local log=$work/$1.log attempt pid deadline
    for attempt in {1..10}; do
        port=$(free_port) deadline=$((SECONDS + patience))
        "start_$1" "$port" >"$log" 2>&1 </dev/null &
        pid=$!
        services+=("$pid")
        while [[ -n $(members "$pid") ]] && ((SECONDS < deadline)); do
            if "$1_is_up" "$port" "$pid"; then return; fi
            sleep 0.05
        done
        grep -qi 'address already in use' "$log" || break
    done
    echo "--- the end of the log of $1 (attempt $attempt, port $port):" >&2
    tail -n 25 "$log" >&2
    die "$1 did not start. To try it alone: ./check with -- true"
}

start_postgres() { # sets `port`
    local code
    for _ in {1..10}; do
        port=$(free_port) code=0
        # In its own session, too: a Ctrl-C would end initdb with pages of complaints.
        setsid --wait "$pg_ctl" start "$work/postgres" "$port" >/dev/null || code=$?
        ((code != 75)) || continue # the port was taken after all
        ((code == 0)) || break
        return
    done
    die "PostgreSQL did not start. To try it alone: ./check with -- true"
}

start_services() {
    header "services: PostgreSQL, NATS, Redis"
    local port
    export TENURE_TEST_PG_CTL=$pg_ctl TENURE_TEST_PG_REGISTRY=$work/postgres-dirs
    TENURE_TEST_PG_BIN=$("$pg_ctl" bin-dir)
    TENURE_TEST_CHROMIUM=$(chromium_path) || true # install_missing has seen to it where it is needed
    start_postgres
    TENURE_TEST_POSTGRES=postgres://tenure@127.0.0.1:$port/tenure
    start_service nats
    TENURE_TEST_NATS=nats://127.0.0.1:$port
    start_service redis
    TENURE_TEST_REDIS=redis://127.0.0.1:$port
    export TENURE_TEST_PG_BIN TENURE_TEST_CHROMIUM TENURE_TEST_POSTGRES TENURE_TEST_NATS TENURE_TEST_REDIS
    if [[ -n ${TENURE_CHECK_FAST:-} ]]; then unset TENURE_TEST_CHROMIUM; fi
}
