#!/bin/bash
# Starts the bash that keeps its state between executions: `bash bash.sh DIR`.
#
# The loop itself is a loadable builtin (bash.c explains why). It needs a shell without a script, so that $0, BASH_SOURCE and the line
# numbers of messages are the user's own; and it is preloaded as well, to see which file the kernel refused to execute. The builtin
# removes both traces (BASH_EXECUTION_STRING, LD_PRELOAD) before any user code runs.
library=${BASH_SOURCE[0]%/*}/bash.so
export LD_PRELOAD=$library
# shellcheck disable=SC2016 # expanded by the new shell
exec -a bash "$BASH" --norc --noprofile -c 'enable -f "$1" exec_sandbox && exec_sandbox "$2"' bash "$library" "$1"
