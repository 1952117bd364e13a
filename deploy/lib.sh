# shellcheck shell=bash
# What the scripts share: messages, and installing packages from packages.txt by group.
#
# Sourced, never run; it changes nothing until a function is called.

BAG_PACKAGE_LIST=$(dirname "${BASH_SOURCE[0]}")/packages.txt

say() { printf '%s\n' "$@"; }

heading() { printf '\n== %s\n' "$*"; }

# usage SCRIPT prints the lines at its head.
usage() { sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "$1"; }

# answer_help SCRIPT ARGUMENT... prints these lines and ends the script, if the first argument asks for it.
answer_help() {
    case ${2:-} in
    -h | --help)
        usage "$1"
        exit
        ;;
    esac
}

die() {
    printf '%s: %s\n' "$0" "$*" >&2
    exit 1
}

# packages_of GROUP... prints the groups' packages, each once, one a line.
packages_of() {
    local group
    for group in "$@"; do
        awk -v group="$group" '$1 == group { print $2; found = 1 } END { exit !found }' \
            "$BAG_PACKAGE_LIST" || die "no group \"$group\" in $BAG_PACKAGE_LIST"
    done | sort -u
}

# missing_of PACKAGE... prints those that are not installed, on one line. It asks dpkg's own
# records, so that the usual answer (nothing) takes milliseconds and no network.
missing_of() {
    comm -23 <(printf '%s\n' "$@" | sort -u) \
        <(dpkg-query -W -f '${db:Status-Status} ${Package}\n' | sed -n 's/^installed //p' | sort -u) |
        paste -sd ' '
}

# install_packages GROUP... installs what is missing of the groups, or says what is and stops.
install_packages() {
    local packages missing
    packages=$(packages_of "$@" | paste -sd ' ')
    command -v dpkg-query > /dev/null || die "this is not Debian. Install what stands for these" \
        "packages of Debian 12 or 13, then build with cmake: $packages"
    # shellcheck disable=SC2086  # one word per package
    missing=$(missing_of $packages)
    [ -n "$missing" ] || return 0

    [ "$(id -u)" = 0 ] || command -v sudo > /dev/null ||
        cannot_install "$missing" "not root, and there is no sudo"
    heading "Installing $missing"
    # shellcheck disable=SC2086
    apt_install $missing || cannot_install "$missing" "apt-get failed, see above"
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

# apt_install PACKAGE... waits for another apt-get to finish instead of failing beside it. It shows what is fetched
# and how far it is; every line of apt-get is in build/packages.log.
apt_install() {
    # Without a network each server is tried once, not four times with growing pauses.
    local options=(-o DPkg::Lock::Timeout=300 -o Acquire::Retries=0)
    mkdir -p build
    # Lists that cannot be brought up to date may still do: the installation is what decides.
    as_root apt-get "${options[@]}" update | apt_progress || true
    as_root env DEBIAN_FRONTEND=noninteractive DEBCONF_NOWARNINGS=yes apt-get "${options[@]}" \
        install --yes --no-install-recommends "$@" < /dev/null | apt_progress
}

# Passes on the lines of apt-get that tell how long it takes, and counts the packages that are set up.
apt_progress() {
    local line total='' done=0
    while read -r line; do
        printf '%s\n' "$line" >> build/packages.log
        case $line in
        *" newly installed"*) total=$(awk '{ print $3 }' <<< "$line") ;;
        "Need to get"* | "After this operation"* | Fetched* | Waiting* | "Err:"*) say "$line" ;;
        "Setting up"*)
            done=$((done + 1))
            ((done % 20 != 0 && done != total)) || say "set up $done of $total packages"
            ;;
        esac
    done
}

# cannot_install "PACKAGE..." WHY says what to do by hand, and stops.
cannot_install() {
    die "cannot install packages ($2). As root, run
    apt-get update && apt-get install --yes --no-install-recommends $1
and then $0 again."
}
