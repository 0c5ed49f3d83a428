"""Small C programs for the device tests, compiled for ARM64 without libraries to depend on."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from android_harness.bundles.debian_packages import missing_programs

CACHE = Path(__file__).parents[3] / "cache"

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

# A loop whose length is known to the instruction: three instructions per turn.
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

# Needs the C++ library at run time, throws to prove that it is the right one, and tells its peak memory.
CPP_CLIENT = """
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>
int main(int, char **arguments) try {
  std::vector<char> memory(std::stoul(arguments[1]) << 20, 1);
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmHWM", 0) == 0) std::cout << line << std::endl;
  }
  throw std::runtime_error("thrown and caught");
} catch (const std::exception &error) {
  std::cerr << error.what() << std::endl;
  return 9;
}
"""


def require_programs(*programs: str) -> None:
    """Skips a test where Debian's packages are not installed, and says which; in CI that is a failure (`skips`)."""
    missing = missing_programs(*programs)
    if missing:
        pytest.skip(f"needs: apt-get install {' '.join(missing)}")


def compile_for_arm64(source: str, program: Path) -> Path:
    require_programs("aarch64-linux-gnu-g++")
    compiler = "aarch64-linux-gnu-gcc"  # of a package that the C++ compiler depends on
    options = ["-O1", "-static", "-s", "-xc", "-"]
    subprocess.run([compiler, *options, "-o", str(program)], input=source, text=True, check=True)
    return program


def self_contained_bundle(source: str, bundle: Path) -> list[str]:
    """A folder with a C++ program, its loader and libraries; returns the command line that starts it in the parent."""
    require_programs("aarch64-linux-gnu-g++")
    (bundle / "lib").mkdir(parents=True)
    compiler = "aarch64-linux-gnu-g++"
    subprocess.run(
        [compiler, "-O1", "-xc++", "-", "-o", str(bundle / "program")], input=source, text=True, check=True
    )
    for library in ("ld-linux-aarch64.so.1", "libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1"):
        command = [compiler, f"-print-file-name={library}"]
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        shutil.copy(found, bundle / "lib" / library)
    (bundle / "lib" / "ld-linux-aarch64.so.1").chmod(0o755)
    name = bundle.name
    return [f"./{name}/lib/ld-linux-aarch64.so.1", "--library-path", f"./{name}/lib", f"./{name}/program"]
