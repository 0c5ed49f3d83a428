#!/bin/sh
# Android's getprop: with a name its value (an empty line if there is none), without one all of them.
while IFS='=' read -r name value; do
  if [ $# -eq 0 ]; then echo "[$name]: [$value]"; elif [ "$name" = "$1" ]; then echo "$value"; exit; fi
done < /system/build.prop
[ $# -eq 0 ] || echo
