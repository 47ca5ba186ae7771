#!/bin/sh
# Build the image that slots of the `docker` backend run in.
#
#   deploy/runner/build.sh [--debian] [--tag NAME] [BUILD OPTION...]
#
# --debian needs no registry: a base of Debian packages alone (debootstrap, root), imported once as
# agent-rl-base:bookworm and kept for the next build; MIRROR and SUITE choose where it comes from.
# Every other option goes to `docker build`, e.g. --build-arg BASE=registry.example/python@sha256:...
set -eu
here=$(cd "$(dirname "$0")" && pwd)
inside=$(cd "$here/../../sandbox" && pwd)
tag=agent-rl-runner:latest
debian=
while [ $# -gt 0 ]; do
  case $1 in
    --debian) debian=1 ;;
    --tag) tag=$2; shift ;;
    *) break ;;
  esac
  shift
done

debian_base() {
  suite=${SUITE:-bookworm}
  base=agent-rl-base:$suite
  if docker image inspect "$base" >/dev/null 2>&1; then return; fi
  if [ "$(id -u)" != 0 ]; then echo "--debian makes a root file system: run it as root" >&2; exit 1; fi
  if ! command -v debootstrap >/dev/null; then echo "--debian needs the package debootstrap" >&2; exit 1; fi
  root=$(mktemp -d)
  trap 'rm -rf "$root"' EXIT
  debootstrap --variant=minbase "$suite" "$root" "${MIRROR:-http://deb.debian.org/debian}" >"$root.log" 2>&1 \
    || { tail -n 20 "$root.log" >&2; exit 1; }
  DEBIAN_FRONTEND=noninteractive chroot "$root" apt-get install -y -qq --no-install-recommends \
    python3 python3-numpy python3-scipy python3-sympy python3-mpmath python3-networkx python3-pandas \
    >"$root.log" 2>&1 || { tail -n 20 "$root.log" >&2; exit 1; }
  # SciPy's package depends on a compiler, which no program needs and half the image would be
  chroot "$root" sh -c "dpkg-query -W -f '\${Package}\n' | grep -E \
    '(-dev\$|^binutils|^g[+][+]|^gcc(-[0-9]+)?\$|^cpp|^python3-(pythran|gast|beniget|ply)\$|^lib(asan|tsan|ubsan|lsan|itm|cc1|ctf|binutils|gprofng|js-))' \
    | xargs dpkg --purge --force-depends" >"$root.log" 2>&1 || { tail -n 20 "$root.log" >&2; exit 1; }
  rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/usr/share/doc "$root"/usr/share/man "$root.log"
  tar -C "$root" -c . | docker import - "$base" >/dev/null
  rm -rf "$root"
}

if [ -n "$debian" ]; then
  debian_base
  set -- --network none --build-arg "BASE=$base" --build-arg INSTALL=none "$@"
fi
tar -c --exclude=__pycache__ -C "$here" Dockerfile requirements.txt -C "$inside" inside \
  | docker build -q -t "$tag" "$@" -
