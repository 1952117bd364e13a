# shellcheck shell=bash
# What the scripts share: messages, and installing packages from packages.txt by group.
#
# Sourced, never run; it changes nothing until a function is called.

BAG_PACKAGE_LIST=$(dirname "${BASH_SOURCE[0]}")/packages.txt

say() { printf '%s\n' "$@"; }

heading() { printf '\n== %s\n' "$*"; }

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
    local packages missing as_root=()
    packages=$(packages_of "$@" | paste -sd ' ')
    command -v dpkg-query > /dev/null || die "this is not Debian. Install what stands for these" \
        "packages of Debian 12, then build with cmake: $packages"
    # shellcheck disable=SC2086  # one word per package
    missing=$(missing_of $packages)
    [ -n "$missing" ] || return 0

    if [ "$(id -u)" != 0 ]; then
        command -v sudo > /dev/null || cannot_install "$missing" "not root, and there is no sudo"
        as_root=(sudo)
    fi
    say "Installing $missing"
    # shellcheck disable=SC2086
    apt_install "${as_root[@]}" -- $missing || cannot_install "$missing" "apt-get failed, see above"
}

# apt_install [sudo] -- PACKAGE... waits for another apt-get to finish instead of failing beside it.
apt_install() {
    local as_root=() options=(-qq -o DPkg::Lock::Timeout=300)
    while [ "$1" != -- ]; do
        as_root+=("$1")
        shift
    done
    shift
    # Lists that cannot be brought up to date may still do: the installation is what decides.
    "${as_root[@]}" apt-get "${options[@]}" update || true
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get "${options[@]}" install \
        --yes --no-install-recommends "$@" < /dev/null > /dev/null
}

# cannot_install "PACKAGE..." WHY says what to do by hand, and stops.
cannot_install() {
    die "cannot install packages ($2). As root, run
    apt-get update && apt-get install --yes --no-install-recommends $1
and then $0 again."
}
