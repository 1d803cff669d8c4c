#!/bin/sh
# Install the service without Docker: the steps of the Dockerfile.
#   deploy/install.sh [PREFIX [OPTIONS]]    PREFIX is /opt/dragoman unless given; it becomes a virtual environment.
#                                           OPTIONS are pip's, such as --extra-index-url.
set -eu
prefix=${1:-/opt/dragoman}
[ $# -eq 0 ] || shift
here=$(cd "$(dirname "$0")/.." && pwd)
${PYTHON:-python3} -m venv "$prefix"
"$prefix/bin/python" -m pip install --quiet --disable-pip-version-check \
  --constraint "$here/constraints.txt" "$@" "$here[serve,documents]"
"$prefix/bin/dragoman" --version
echo "installed; start it with $prefix/bin/dragoman serve --settings $here/deploy/serve.toml"
