"""What the machine is, and how quiet."""

import os
import platform
import time
from pathlib import Path


def cpu_ticks():
    fields = [int(n) for n in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    idle = fields[3] + fields[4]  # waiting for a disk is idle
    return sum(fields[:8]), idle


def busy(seconds=0.4):
    """The share of the processors in use, by whomever, while the benchmark does nothing."""
    total, idle = cpu_ticks()
    time.sleep(seconds)
    total2, idle2 = cpu_ticks()
    return round(1 - (idle2 - idle) / max(1, total2 - total), 3)


def load_average():
    return os.getloadavg()[0]


def fdatasync_per_second(directory, seconds=1.0):
    """4 KiB over what is there already, and a sync, one after the other: what a durable write costs here and now."""
    path = Path(directory) / "probe"
    block = b"x" * 4096
    fd = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        os.pwrite(fd, block * 256, 0)
        os.fsync(fd)
        count, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            os.pwrite(fd, block, (count % 256) * 4096)
            os.fdatasync(fd)
            count += 1
        return round(count / seconds)
    finally:
        os.close(fd)
        path.unlink()


def filesystem(directory):
    """The type of the file system that holds a directory."""
    best, kind = "", "unknown"
    where = os.path.realpath(directory)
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, fs = line.split()[:3]
        if (where == mount or where.startswith(mount.rstrip("/") + "/")) and len(mount) >= len(best):
            best, kind = mount, fs
    return kind


def describe(directory):
    cpu = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
            break
    memory = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "memory_gib": round(memory / 2**30),
        "kernel": platform.release(),
        "filesystem": filesystem(directory),
    }
