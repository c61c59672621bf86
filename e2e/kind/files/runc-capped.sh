#!/bin/sh
# Docker's --privileged asks for every capability that the kernel knows. On a machine whose own bounding set lacks
# CAP_SYS_RESOURCE (number 24), runc then fails with "unable to apply caps: operation not permitted". So that one is taken
# out of what runc is asked for; where the machine has it, nothing is changed.
bounding=$(awk '/^CapBnd/ { print $2 }' /proc/self/status)
if [ $((0x$bounding >> 24 & 1)) = 0 ]; then
  previous=
  for word; do
    case $previous in
      --bundle) spec=$word/config.json ;;
      --process) spec=$word ;;
    esac
    previous=$word
  done
  if [ -n "${spec-}" ] && [ -f "$spec" ]; then
    sed -i -e 's/"CAP_SYS_RESOURCE",//g' -e 's/,"CAP_SYS_RESOURCE"//g' "$spec"
  fi
fi
exec runc "$@"
