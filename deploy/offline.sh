#!/bin/sh
# Build the images where no registry can be reached, from Debian packages and pip's wheels alone.
#
#   deploy/offline.sh [base] [service] [trainer]      default: all
#
# base     a root file system of Debian packages, by deploy/runner/build.sh --debian (root, debootstrap)
# service  agent-rl-sandbox:offline
# trainer  agent-rl-trainer:offline
#
# Wheels come from wherever this machine's pip is configured to look, for PYTHON, which must be of the base's version
# (3.11 on bookworm); they lie in deploy/offline/ and are kept for the next build. PIP_ARGS goes to pip.
set -eu
cd "$(dirname "$0")/.."
base=agent-rl-base:${SUITE:-bookworm}
python=${PYTHON:-python3}

wheels() { # wheels FOLDER PIP ARGUMENT...
  folder=deploy/offline/$1
  shift
  if ls "$folder"/pip-*.whl >/dev/null 2>&1; then return; fi
  # shellcheck disable=SC2086  # PIP_ARGS is a list of words
  "$python" -m pip wheel -q ${PIP_ARGS:-} -c constraints.txt -w "$folder" "$@"
  # shellcheck disable=SC2086
  "$python" -m pip wheel -q ${PIP_ARGS:-} --no-deps -w "$folder" pip setuptools
}

image() { # image FOLDER TAG BUILD_OPTION...: from what that image needs of the tree, and no more
  folder=$1 tag=$2
  shift 2
  tar -c --owner=0 --group=0 --exclude=__pycache__ "deploy/$folder" "deploy/offline/$folder" deploy/offline/debs agent_rl sandbox configs \
    pyproject.toml constraints.txt constraints-vllm.txt README.md LICENSE \
    | docker build -q --network none -f "deploy/$folder/Dockerfile" -t "$tag" \
      --build-arg "BASE=$base" --build-arg "PIP_ARGS=--no-index" "$@" -
}

[ $# -gt 0 ] || set -- base service trainer
for what in "$@"; do
  case $what in
    base)
      docker image inspect "$base" >/dev/null 2>&1 || deploy/runner/build.sh --debian
      ;;
    service)
      if ! ls deploy/offline/debs/bubblewrap_*.deb >/dev/null 2>&1; then
        docker run --rm --network host -v "$PWD/deploy/offline/debs:/debs" -w /debs "$base" \
          sh -c 'apt-get update -qq && apt-get download -qq -o APT::Sandbox::User=root bubblewrap'
      fi
      wheels service -r deploy/service/requirements.txt
      image service agent-rl-sandbox:offline
      ;;
    trainer)
      wheels trainer .
      rm -f deploy/offline/trainer/agent_rl-*.whl
      image trainer agent-rl-trainer:offline --build-arg EXTRAS=
      ;;
    *) echo "unknown: $what (base, service, trainer)" >&2; exit 2 ;;
  esac
done
