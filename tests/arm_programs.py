"""Small C programs for the device tests, compiled for ARM64 without libraries to depend on."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from android_harness.debian_packages import missing_programs

CACHE = Path(__file__).parents[1] / "cache"

# Touches as many megabytes as its first argument says, one after the other.
MEMORY_HOG = """
#include <stdlib.h>
#include <string.h>
int main(int count, char **arguments) {
  for (int megabytes = atoi(arguments[1]); megabytes > 0; megabytes--) {
    char *block = malloc(1 << 20);
    if (!block) return 3;
    memset(block, count, 1 << 20);
  }
  return 0;
}
"""

# A loop whose length is known to the instruction: three instructions a turn.
COUNTED_LOOP = """
#include <stdio.h>
#include <stdlib.h>
int main(int count, char **arguments) {
  (void)count;
  long turns = atol(arguments[1]);
  __asm__ volatile("1: nop\\n subs %0, %0, #1\\n b.ne 1b" : "+r"(turns) : : "cc");
  char line[64];
  FILE *cpuinfo = fopen("/proc/cpuinfo", "r");
  while (fgets(line, sizeof line, cpuinfo)) fputs(line, stdout);
  return 7;
}
"""


def require_programs(*programs: str) -> None:
    """Skips a test where Debian's packages are not installed, and says which."""
    missing = missing_programs(*programs)
    if missing:
        pytest.skip(f"needs: apt-get install {' '.join(missing)}")


def compile_for_arm64(source: str, program: Path) -> Path:
    require_programs("aarch64-linux-gnu-g++")
    compiler = "aarch64-linux-gnu-gcc"  # of a package that the C++ compiler depends on
    options = ["-O1", "-static", "-s", "-xc", "-"]
    subprocess.run([compiler, *options, "-o", str(program)], input=source, text=True, check=True)
    return program
