"""Listening sockets of processes, as the kernel reports them."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterable
from pathlib import Path


def family(pid: int) -> list[int]:
    """Return a process and its descendants."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def listening(pids: Iterable[int]) -> set[str]:
    """Return the addresses on which these processes listen."""
    inodes = set()
    for pid in pids:
        try:
            links = [os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir()]
        except OSError:
            continue
        inodes |= {m[1] for link in links if (m := re.fullmatch(r"socket:\[(\d+)\]", link))}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in inodes:
                found.add(_address(words[1].partition(":")[0]))
    return found


def _address(text: str) -> str:
    """The kernel writes words of four bytes in host byte order."""
    raw = b"".join(bytes.fromhex(text[i : i + 8])[::-1] for i in range(0, len(text), 8))
    address = ipaddress.ip_address(raw)
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


def only_loopback(pids: Iterable[int]) -> bool:
    """Whether these processes listen only on loopback."""
    return all(ipaddress.ip_address(a).is_loopback for a in listening(pids))
