# shellcheck shell=bash
# A minimal root of Debian 12 or 13, made from the archive that this machine's own apt uses. It stands
# for a newcomer's fresh machine, and for the image debian:trixie-slim.
#
# Sourced by the tests of this folder, which run as root in namespaces of their own: mounts and
# processes end with them, whichever way they end.

REPOSITORY=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=deploy/lib.sh
. "$REPOSITORY/deploy/lib.sh"
answer_help "$0" "$@"

WORK=$REPOSITORY/build/deploy

# choose_release 12|13
choose_release() {
    case $1 in
    12) RELEASE=bookworm ;;
    13) RELEASE=trixie ;;
    *) die "there is no Debian \"$1\" here; there are 12 and 13" ;;
    esac
    BASE=$WORK/base-$RELEASE
}

# The release of this machine: its number, and its name.
own_version() {
    # shellcheck source=/dev/null
    (. /etc/os-release && echo "$VERSION_ID")
}
own_release() {
    # shellcheck source=/dev/null
    (. /etc/os-release && echo "$VERSION_CODENAME")
}

# enter_namespaces ARGUMENT... starts the calling script again with private mounts and processes.
enter_namespaces() {
    [ "$(id -u)" = 0 ] || die "this test makes a Debian root and runs in it, which takes root"
    if [ -z "${BAG_TEST_NAMESPACES:-}" ]; then
        install_packages image
        exec env BAG_TEST_NAMESPACES=1 \
            unshare --mount --pid --fork --kill-child --mount-proc "$0" "$@"
    fi
    trap 'exit 130' INT TERM
}

# step WHAT COMMAND... runs a part of the test and says how long it took. The first that fails ends
# the test. The command is run on its own line, or `set -e` would not hold within it.
step() {
    local what=$1 started=$SECONDS
    shift
    heading "$what"
    current_step=$what
    "$@"
    say "($((SECONDS - started)) s)"
    current_step=
}

# verdict CLEAN_UP is for an EXIT trap: cleans up and prints the last line.
verdict() {
    local code=$?
    "$@"
    if [ $code = 0 ]; then
        printf '\nPASS %s\n' "$(basename "$0")"
    else
        printf '\nFAIL %s%s\n' "$(basename "$0")" "${current_step:+ at: $current_step}"
    fi
    exit $code
}

# expect WHAT ACTUAL EXPECTED
expect() {
    [ "$2" = "$3" ] || die "$1 is \"$2\", expected \"$3\""
    say "ok: $1: $2"
}

# wait_for SECONDS COMMAND... until it succeeds; fails when the time is over.
wait_for() {
    local deadline=$((SECONDS + $1))
    shift
    until "$@"; do
        [ $SECONDS -lt $deadline ] || die "waited too long for: $*"
        sleep 0.02
    done
}

# Prints a port that no outgoing connection is given.
free_port() {
    shuf --input-range=10000-29999 --head-count=1
}

# --- the root ------------------------------------------------------------------------------------

# The archive that apt here takes its release's main packages from: it has all releases.
archive() {
    # shellcheck disable=SC2016  # it is apt-get that fills this in
    apt-get indextargets --format '$(REPO_URI)' \
        "Codename: $(own_release)" "Component: main" "Created-By: Packages" | head -n 1
}

# Makes BASE if it is not there yet. Remove build/deploy for a new one.
make_base() {
    local uri
    [ ! -e "$BASE.done" ] || return 0
    uri=$(archive)
    [ -n "$uri" ] || die "apt on this machine knows no archive to build a root from"
    rm -rf "$BASE"
    mkdir -p "$BASE"
    debootstrap --variant=minbase "$RELEASE" "$BASE" "$uri" > "$WORK/debootstrap.log" ||
        die "debootstrap failed, see $WORK/debootstrap.log"
    copy_apt_configuration "$BASE"
    touch "$BASE.done"
}

# copy_apt_configuration ROOT lets apt in there reach what apt here reaches: sources, keys,
# credentials, and how to fetch. Hooks of this machine's own programs stay behind.
copy_apt_configuration() {
    local root=$1 file
    rm -f "$root/etc/apt/sources.list"
    for file in sources.list sources.list.d trusted.gpg trusted.gpg.d keyrings auth.conf auth.conf.d; do
        [ ! -e "/etc/apt/$file" ] || cp -a "/etc/apt/$file" "$root/etc/apt/"
    done
    mkdir -p "$root/usr/share/keyrings"
    cp -an /usr/share/keyrings/. "$root/usr/share/keyrings/"
    # The root's apt has the same sources, of its own release.
    find "$root/etc/apt" \( -name '*.list' -o -name '*.sources' \) \
        -exec sed -i "s/\b$(own_release)\b/$RELEASE/g" {} +
    apt-config dump | grep '^Acquire::' > "$root/etc/apt/apt.conf.d/90-machine"
    cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
    if [ -r /etc/ssl/certs/ca-certificates.crt ]; then
        install -D -m 644 -t "$root/etc/ssl/certs" /etc/ssl/certs/ca-certificates.crt
    fi
}

# fresh_root DIRECTORY makes an untouched copy of the base, with what a running system mounts.
fresh_root() {
    rm -rf --one-file-system "$1"
    cp -a --reflink=auto "$BASE" "$1"
    mount --bind /proc "$1/proc"
    mount --rbind /sys "$1/sys"
    mount --rbind /dev "$1/dev"
}

# --- a network of its own ------------------------------------------------------------------------

has_own_network() { [ "$(readlink "/proc/$network/ns/net")" != "$(readlink /proc/self/ns/net)" ]; }

# make_network makes one with nothing but loopback, which the process `network` holds;
# nsenter --net=/proc/$network/ns/net enters it.
make_network() {
    unshare --net sleep infinity &
    network=$!
    wait_for 10 has_own_network
    nsenter --net="/proc/$network/ns/net" ip link set lo up
}
