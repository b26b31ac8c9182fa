#!/usr/bin/env bash
# Every check of the project on a fresh machine: lint, format, types, tests. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/env.sh
install_debian_packages g++:g++ g++-aarch64-linux-gnu:aarch64-linux-gnu-g++ qemu-user:qemu-aarch64 \
  gcc-riscv64-linux-gnu:riscv64-linux-gnu-gcc libc6-dev-riscv64-cross:/usr/riscv64-linux-gnu/include/stdio.h \
  openssh-server:/usr/sbin/sshd openssh-client:ssh
make_environment dev

bin=$(dirname "$PY")
"$bin/ruff" check .
"$bin/ruff" format --check .
"$bin/mypy"
# Two test processes, one TVM thread each: more would fight over the cores of a small machine.
TVM_NUM_THREADS=1 "$bin/pytest" -n "${TEST_PROCESSES:-2}" --dist worksteal "$@"
