# shellcheck shell=bash
# Sourced by the other scripts: finds a python, installs what the host lacks, makes a virtual environment.
# Quiet unless something fails. It changes nothing but the environment it is asked for and, as root or with
# a sudo that asks no password, the distribution's packages named in host_packages.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
umask 022
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

# could_not "<verb object>: <cause>" "<remedy>" [exit code]
could_not() {
    printf 'could not %s\n%s\n' "$1" "$2" >&2
    exit "${3:-1}"
}

note() { printf 'stockade: %s\n' "$1" >&2; }

# quietly "<verb object>" command...: no output, unless it fails; then all of it
quietly() {
    local what=$1 log status
    shift
    log=$(mktemp) || could_not "$what: no temporary file" "make room in ${TMPDIR:-/tmp}"
    "$@" >"$log" 2>&1 </dev/null && { rm -f "$log"; return 0; }
    status=$?
    cat "$log" >&2
    rm -f "$log"
    could_not "$what: it ended with $status, its output is above" "mend what it names, then run this again; by hand: $*"
}

# elevated command...: as root, or through a sudo that asks nothing
elevated() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

may_elevate() {
    [ "$(id -u)" = 0 ] || { command -v sudo >/dev/null && sudo -n true 2>/dev/null; }
}

# as_root <command>: what an ordinary user types for it
as_root() {
    if command -v sudo >/dev/null; then echo "sudo $1"; else echo "su -c '$1'"; fi
}

# The distribution's own interpreter first: one of a version manager may lie where only its owner can read.
find_python() {
    local candidate found
    for candidate in /usr/bin/python3 /usr/bin/python3.{14,13,12,11} python3 python3.{14,13,12,11}; do
        found=$(command -v "$candidate") || continue
        found=$("$found" -c 'import sys
if sys.version_info >= (3, 11): print(sys.executable)' 2>/dev/null)
        [ -n "$found" ] && { printf '%s\n' "$found"; return 0; }
    done
    return 1
}

package_family() {
    local tool
    for tool in apt-get dnf pacman zypper apk; do
        command -v "$tool" >/dev/null && { printf '%s\n' "$tool"; return 0; }
    done
    return 1
}

has_libseccomp() {
    local file
    ldconfig -p 2>/dev/null | grep -q 'libseccomp\.so\.2' && return 0
    for file in /lib*/libseccomp.so.2 /usr/lib*/libseccomp.so.2 /usr/lib/*/libseccomp.so.2; do
        [ -e "$file" ] && return 0
    done
    return 1
}

# package_name <thing> <family>: what this distribution calls the package that brings it
package_name() {
    case $2:$1 in
        *:bwrap) echo bubblewrap ;;
        *:nft) echo nftables ;;
        *:pasta) echo passt ;;
        *:node) echo nodejs ;;
        dnf:ip) echo iproute ;;
        *:ip) echo iproute2 ;;
        apt-get:libseccomp | zypper:libseccomp) echo libseccomp2 ;;
        apk:setpriv) echo setpriv ;;
        apk:nsenter) echo util-linux-misc ;;
        *:setpriv | *:nsenter | *:flock) echo util-linux ;;
        apt-get:python) echo python3 python3-venv ;;
        apt-get:venv) echo python3-venv ;;
        pacman:python | pacman:venv) echo python ;;
        zypper:python | zypper:venv) echo python313 ;;
        *:python | *:venv) echo python3 ;;
        *) echo "$1" ;;
    esac
}

missing_things() {
    local tool python
    for tool in bwrap slirp4netns nft setpriv flock git ${extra_tools:-}; do
        command -v "$tool" >/dev/null || echo "$tool"
    done
    has_libseccomp || echo libseccomp
    [ -x "$root/.venv/bin/python" ] && return 0
    if ! python=$(find_python); then
        echo python
    elif ! "$python" -c 'import venv, ensurepip' 2>/dev/null && ! "$python" -m pip --version >/dev/null 2>&1; then
        echo venv
    fi
}

# install_command <family> package...: the words to run, or to type
install_command() {
    local family=$1
    shift
    case $family in
        apt-get) echo "apt-get install -y --no-install-recommends $*" ;;
        dnf) echo "dnf install -y $*" ;;
        pacman) echo "pacman -S --needed --noconfirm $*" ;;
        zypper) echo "zypper --non-interactive install $*" ;;
        apk) echo "apk add $*" ;;
    esac
}

host_packages() {
    local things thing family packages="" command
    things=$(missing_things)
    [ -n "$things" ] || return 0
    things=$(echo $things)
    family=$(package_family) || could_not "install $things: no package manager that this script knows" \
        "install $things with the one this system has" 3
    for thing in $things; do packages="$packages $(package_name "$thing" "$family")"; done
    packages=$(printf '%s\n' $packages | sort -u | tr '\n' ' ')
    command=$(install_command "$family" ${packages% })
    may_elevate || could_not "install $things: that needs root, and there is no sudo that asks nothing" \
        "$(as_root "$command")" 3
    note "installing ${packages% }"
    # Old lists may name versions that are gone; a failed refresh may still leave lists that do.
    [ "$family" = apt-get ] && { elevated apt-get update >/dev/null 2>&1 </dev/null || true; }
    quietly "install ${packages% }" elevated env DEBIAN_FRONTEND=noninteractive $command
    hash -r
    things=$(missing_things)
    [ -z "$things" ] || could_not "find $(echo $things) after installing ${packages% }: this release may be too old" \
        "use a release with python 3.11 or later and bubblewrap"
}

# stamp_of <extras> <place>: changes when what is installed should
stamp_of() {
    { printf '%s\n%s\n' "$1" "$2"; cat "$root/pyproject.toml" "$root/requirements/dev.txt"; } | cksum
}

# An interpreter that was upgraded in place leaves an environment whose packages it no longer looks at.
venv_works() {
    [ -x "$1/bin/python" ] && "$1/bin/python" -I -c 'import sys
sys.exit(not any(p.startswith(sys.prefix) and p.endswith("site-packages") for p in sys.path))' 2>/dev/null
}

make_venv() {
    local venv=$1 python
    python=$(find_python) || could_not "find python 3.11 or later: none is installed" "install one, then run this again"
    if "$python" -c 'import venv, ensurepip' 2>/dev/null; then
        quietly "make $venv" "$python" -m venv --clear "$venv"
        return
    fi
    # Debian keeps ensurepip in a package of its own; a pip outside can fill the environment just as well.
    "$python" -m pip --version >/dev/null 2>&1 || could_not "make $venv: $python has neither ensurepip nor pip" \
        "$(as_root "$(install_command "$(package_family)" "$(package_name venv "$(package_family)")")")" 3
    quietly "make $venv" "$python" -m venv --clear --without-pip "$venv"
    quietly "put pip into $venv" "$python" -m pip --python "$venv/bin/python" install --quiet pip
}

# locked_install <venv> <name>: what requirements/<name>.txt lists, at its versions and hashes
locked_install() {
    local log
    log=$(mktemp)
    if "$1/bin/python" -m pip install --quiet --disable-pip-version-check --no-input --require-hashes \
        -r "$root/requirements/$2.txt" >"$log" 2>&1 </dev/null; then
        rm -f "$log"
        return 0
    fi
    note "the locked requirements can't be had here, so that those of pyproject.toml are taken, without hashes:"
    tail -n 3 "$log" >&2
    rm -f "$log"
    return 1
}

# setup_venv <venv> <extras or ""> <source> [place]: an editable install of source, redone only when
# pyproject.toml, the extras or the place changed
setup_venv() {
    local venv=$1 extras=$2 source=$3 stamp want
    stamp=$venv/.stockade-stamp-${extras:-plain}
    want=$(stamp_of "$extras" "${4:-$source}")
    if venv_works "$venv"; then
        [ "$(cat "$stamp" 2>/dev/null)" = "$want" ] && return 0
    else
        note "setting up $venv (once)"
        make_venv "$venv"
    fi
    # compat: a plain path entry, so that edited sources are what runs
    set -- "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input \
        --config-settings editable_mode=compat
    if [ -n "$extras" ] && locked_install "$venv" dev; then
        quietly "install stockade into $venv" "$@" --no-deps --no-build-isolation --editable "$source"
    else
        quietly "install stockade into $venv" "$@" --editable "$source${extras:+[$extras]}"
    fi
    printf '%s\n' "$want" >"$stamp"
}

# setup_edge_venv <venv>: an environment for the edge's proxy alone (its packages and those of mcp exclude each
# other on some versions of python), named to the product by STOCKADE_EDGE_PYTHON
setup_edge_venv() {
    local venv=$1 stamp want
    stamp=$venv/.stockade-stamp
    want=$(cksum <"$root/requirements/edge.txt")
    if ! venv_works "$venv" || [ "$(cat "$stamp" 2>/dev/null)" != "$want" ]; then
        note "setting up $venv (once)"
        make_venv "$venv"
        if ! locked_install "$venv" edge; then
            quietly "install mitmproxy into $venv" "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
                --no-input 'mitmproxy>=11,<13'
        fi
        printf '%s\n' "$want" >"$stamp"
    fi
    export STOCKADE_EDGE_PYTHON=$venv/bin/python
}

# setup_repository <extras or "">: everything that scripts/demo and scripts/test need, in $root/.venv
setup_repository() {
    host_packages
    [ -w "$root" ] || could_not "set up $root/.venv: $(id -un) can't write to $root" "make a clone of your own"
    [ ! -e "$root/.venv" ] || [ -w "$root/.venv" ] || could_not "use $root/.venv: it belongs to $(stat -c %U "$root/.venv")" \
        "remove it as that user, or make a clone of your own"
    exec 9<"$root/pyproject.toml"
    flock 9
    setup_venv "$root/.venv" "$1" "$root"
    exec 9<&-
}
