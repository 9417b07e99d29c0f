"""Refuse what must not be in the repository: package registries' host names and paths of one person's machine.

A checkout must work wherever it is cloned, behind whatever mirror, and tell nothing about where it was written. Three
rules, over every tracked file: a URL's host is a known public place of documentation or a stand-in; no host name that
this machine's package clients (apt, pip) are set to appears, scheme or not; no absolute path into one person's home.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

URL_HOST = re.compile(r"\b(?:https?|ftp)://(?:[^/\s@\"'<>]*@)?(?P<host>[A-Za-z0-9._-]+)")
# Where documentation, licences and schemas are; loopback; names reserved for examples (RFC 2606).
ALLOWED_HOSTS = re.compile(
    r"""(?:
        localhost | 127(?:\.\d+){3} | 0\.0\.0\.0
      | (?:[a-z0-9-]+\.)*(?:example|invalid|test)(?:\.(?:com|net|org))?
      | (?:www|kafka|zookeeper|cwiki|issues|spark)\.apache\.org
      | github\.com | docs\.python\.org | peps\.python\.org | semver\.org | keepachangelog\.com | www\.w3\.org
      | prometheus\.io | grafana\.com | opentelemetry\.io | akhq\.io | docs\.conduktor\.io
    )\.?""",
    re.VERBOSE | re.IGNORECASE,
)
MACHINE_PATH = re.compile(r"(?<![\w./$})-])/(?:root|work|Users/\w+|home/\w+)/\w[^\s\"'`]*")


def tracked_files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    return [ROOT / name for name in listed.stdout.decode().split("\0") if name]


def package_client_hosts() -> set[str]:
    """Host names that apt and pip on this machine are set to, pip's built-in ones included; empty where neither is."""
    settings = [*Path("/etc/apt").glob("sources.list.d/*"), Path("/etc/apt/sources.list"), Path("/etc/pip.conf")]
    text = "\n".join(path.read_text(errors="replace") for path in settings if path.is_file())
    pip = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False)
    hosts = {match["host"].lower() for match in URL_HOST.finditer(text + pip.stdout)}
    try:
        from pip._internal.models.index import PyPI, TestPyPI
    except ImportError:
        pass
    else:
        for index in (PyPI, TestPyPI):
            hosts |= {index.netloc, index.file_storage_domain}
    return {host for host in hosts if "." in host and not ALLOWED_HOSTS.fullmatch(host)}


def faults_in(text: str, forbidden_hosts: set[str]) -> Iterator[tuple[int, str]]:
    """Yield (line number, what is wrong) for every fault in the text of one file."""
    for number, line in enumerate(text.splitlines(), start=1):
        for match in URL_HOST.finditer(line):
            host = match["host"]
            if "." in host and not ALLOWED_HOSTS.fullmatch(host):
                yield number, f"URL of a host that is not on the list in .ci/check_names.py: {host}"
        lowered = line.lower()
        yield from ((number, f"package registry's host name: {host}") for host in forbidden_hosts if host in lowered)
        for match in MACHINE_PATH.finditer(line):
            yield number, f"path of one machine: {match[0]}"


def main() -> int:
    forbidden_hosts = package_client_hosts()
    found = 0
    for path in tracked_files():
        if not path.is_file() or path == Path(__file__).resolve():
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue  # a picture or another binary
        name = path.relative_to(ROOT)
        for number, fault in faults_in(text, forbidden_hosts):
            sys.stdout.write(f"{name}:{number}: {fault}\n")
            found += 1
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
