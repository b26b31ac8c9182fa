# Sourced by demo.sh and test.sh: a virtual environment of this repository's own, with tpo in it.
# Usage: make_environment EXTRA...   (sets $PY to the environment's Python)
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

find_python() {
  for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11 python3.10; do
    if [ -n "$candidate" ] && command -v "$candidate" >/dev/null &&
      "$candidate" -c 'import sys, venv; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  echo "error: Python 3.10 or newer with the venv module is needed; install it (apt-get install python3-venv)" \
    "or name one with PYTHON=..." >&2
  return 2
}

install_debian_packages() { # package:command or package:file ...; installs what is missing, where that is allowed
  local missing=()
  for entry in "$@"; do
    command -v "${entry#*:}" >/dev/null || [ -e "${entry#*:}" ] || missing+=("${entry%%:*}")
  done
  [ ${#missing[@]} -eq 0 ] && return
  local sudo=""
  [ "$(id -u)" -eq 0 ] || sudo="sudo -n"
  if ! { command -v apt-get >/dev/null && $sudo apt-get update -qq &&
    DEBIAN_FRONTEND=noninteractive $sudo apt-get install -qq -y "${missing[@]}" >/dev/null; }; then
    echo "note: could not install ${missing[*]}; what needs them will say so" >&2
  fi
}

make_environment() {
  local extras=${1:-}
  local python
  python=$(find_python) || return 2
  local folder=${TPO_VENV:-.venv} # relative, so that what the demo prints can be pasted
  [ -x "$folder/bin/python" ] || "$python" -m venv "$folder"
  PY=$folder/bin/python
  "$PY" -m pip install --quiet --disable-pip-version-check --editable "$repository${extras:+[$extras]}"
}
