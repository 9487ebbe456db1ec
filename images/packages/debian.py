"""Installs Debian packages with apt-get, as root in a machine that becomes a template. Argument: an order as JSON, whose step is
`fetch`, with a network, or `install`, without one, in which the packages' own scripts run. Output: the answer as JSON."""

import collections
import glob
import gzip
import hashlib
import json
import lzma
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.parse

order = json.loads(sys.argv[1])
# Everything that apt keeps between the steps; it is removed in the end.
work = "/var/tmp/.exec-sandbox-apt"
policy = "/usr/sbin/policy-rc.d"
# dpkg leaves these out too: the image has no manuals and no translations.
left_out = ["doc/*", "man/*", "info/*", "locale/*", "lintian/*", "bug/*"]
settings = f"""
Dir::State::lists "{work}/lists";
Dir::Cache "{work}/cache";
Dir::Cache::srcpkgcache "";
Dir::Log "{work}/log";
Dir::Etc::sourcelist "{work}/sources.list";
Dir::Etc::sourceparts "/dev/null";
APT::Get::Assume-Yes "true";
APT::Get::Remove "false";
APT::Install-Recommends "false";
APT::Sandbox::User "root";
APT::Update::Error-Mode "any";
Acquire::Languages "none";
Acquire::EnableSrvRecords "false";
Acquire::Retries "2";
Acquire::http::Timeout "30";
Acquire::https::Timeout "30";
DPkg::Use-Pty "false";
DPkg::Options {{ "--log=/dev/null"; "--force-unsafe-io"; "--force-confdef"; "--force-confold"; }};
""" + "".join(f'DPkg::Options:: "--path-exclude=/usr/share/{it}";\n' for it in left_out)
settings += 'DPkg::Options:: "--path-include=/usr/share/doc/*/copyright";\n'
# Programs of the image only: /usr/local is where other packages put theirs.
environment = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LC_ALL": "C.UTF-8",
    "DEBIAN_FRONTEND": "noninteractive",
    "APT_CONFIG": f"{work}/apt.conf",
}


def answer(status, **fields):
    sys.stdout.write(json.dumps({"status": status, **fields}))
    sys.exit(0)


def trouble(problem):
    """Ends with what a mirror's answer means, as apt or curl report it: after a refusal another try is useless."""
    answer("refused" if re.search(r"(?:  |error: )40[13]\b", problem) else "registry", problem=problem)


def run(*command):
    """Runs a program: whether it succeeded, its output, and its errors."""
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    return done.returncode == 0, done.stdout, f"{done.stderr.strip()[-2000:] or done.stdout.strip()[-2000:]}"


def write(file, text):
    with open(file, "w") as opened:
        opened.write(text)


def archives():
    """URL and suite of each part of Debian, as images/build.sh has them."""
    with open("/etc/os-release") as file:
        suite = re.search(r"^VERSION_CODENAME=(\w+)$", file.read(), re.MULTILINE)[1]
    main = os.environ.get("EXEC_SANDBOX_DEBIAN_MIRROR", "").rstrip("/")
    if not main:
        answer("refused", problem="this host's mirror of Debian is no address of http:// or https://")
    security = os.environ.get("EXEC_SANDBOX_DEBIAN_SECURITY_MIRROR", "").rstrip("/")
    return [(main, suite), (main, f"{suite}-updates")] + ([(security, f"{suite}-security")] if security else [])


def proxy(scheme):
    return os.environ.get({"http": "EXEC_SANDBOX_DEBIAN_PROXY", "https": "EXEC_SANDBOX_DEBIAN_HTTPS_PROXY"}[scheme])


def download(url, sha256):
    """A file whose hash is known."""
    through = ["--proxy", proxy(url.split(":")[0])] if proxy(url.split(":")[0]) else []
    curl = ["/usr/bin/curl", "-q", "-fsSL", "--retry", "2", "--connect-timeout", "30", "--max-time", "300", *through, url]
    done = subprocess.run(curl, stdin=subprocess.DEVNULL, capture_output=True)
    if done.returncode != 0:
        trouble(done.stderr.decode(errors="replace").strip())
    if hashlib.sha256(done.stdout).hexdigest() != sha256:
        answer("registry", problem=f"a list of packages is not the one that was signed ({sha256})")
    return done.stdout


def packages_of(url, suite, release, arch):
    """A list of packages, as stanzas. Its hash is in `release`, whose signature apt has checked."""
    place = f"main/binary-{arch}"
    for kind, unpack in (("gz", gzip.decompress), ("xz", lzma.decompress)):
        found = re.search(rf"^ ([0-9a-f]{{64}}) +\d+ {place}/Packages\.{kind}$", release, re.MULTILINE)
        if found:
            by_hash = re.search("^Acquire-By-Hash: yes$", release, re.MULTILINE)
            file = f"by-hash/SHA256/{found[1]}" if by_hash else f"Packages.{kind}"
            return unpack(download(f"{url}/dists/{suite}/{place}/{file}", found[1])).split(b"\n\n")
    answer("registry", problem=f"{suite} has no list of packages for {arch}")


def names_in(stanza, *fields):
    """The names of packages in some fields of a stanza."""
    found = []
    for field in fields:
        at = stanza.find(b"\n" + field + b": ")
        if at >= 0:
            found += re.findall(rb"[:,|] *([^ ,|:(]+)", stanza[at : stanza.find(b"\n", at + 1)])
    return found


def lists():
    """Tells apt only about packages that the requested and the installed ones can need. With all of Debian's packages, every
    question to apt takes half a minute under emulation."""
    updated, _, problem = run("apt-get", "update", "-o", "Acquire::IndexTargets::deb::Packages::DefaultEnabled=false")
    if not updated:
        trouble(problem)
    arch = run("dpkg", "--print-architecture")[1].strip()
    files = {}
    for url, suite in archives():
        (release,) = glob.glob(f"{work}/lists/*_dists_{suite}_*Release")
        with open(release) as file:
            stanzas = packages_of(url, suite, file.read(), arch)
        files[re.sub("(In)?Release$", f"main_binary-{arch}_Packages", release)] = stanzas
    known = collections.defaultdict(list)
    for stanzas in files.values():
        for stanza in stanzas:
            known[stanza[9 : stanza.find(b"\n")]].append(stanza)
            for name in names_in(stanza, b"Provides"):
                known[name].append(stanza)
    here = run("dpkg-query", "-W", "-f", "${Package}\n")[1].encode().split()
    names = {name.encode() for name in order["names"]}.union(here)
    left, needed = list(names), set()
    while left:
        for stanza in known.get(left.pop(), []):
            if stanza not in needed:
                needed.add(stanza)
                more = set(names_in(stanza, b"Depends", b"Pre-Depends")) - names
                names |= more
                left += more
    for file, stanzas in files.items():
        with open(file, "wb") as opened:
            opened.write(b"".join(stanza.strip() + b"\n\n" for stanza in stanzas if stanza in needed))


def look_up():
    """Ends with the first package that does not exist, and the versions of it that do."""
    known = {}
    for line in run("apt-cache", "madison", *order["names"])[1].splitlines():
        name, version, *_ = (part.strip() for part in line.split("|"))
        known.setdefault(name, []).append(version)
    for package in order["packages"]:
        name, _, version = package["spec"].partition("=")
        versions = list(dict.fromkeys(known.get(name, [])))
        if not versions or version and version not in versions:
            answer("not-found", name=name, available=versions[:10])


def installable():
    """The packages that were downloaded; apt has checked them against its lists."""
    for file in sorted(glob.glob(f"{work}/cache/archives/*.deb")):
        name, version, _ = urllib.parse.unquote(os.path.basename(file)).split("_")
        with open(file, "rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        yield {"name": name, "version": version, "integrity": f"sha256={digest}"}


def fetch():
    shutil.rmtree(work, ignore_errors=True)
    for name in ["lists", "cache", "log"]:
        os.makedirs(f"{work}/{name}")
    keys = "/usr/share/keyrings/debian-archive-keyring.pgp"
    through = "".join(f'Acquire::{it}::Proxy "{proxy(it)}";\n' for it in ("http", "https") if proxy(it))
    write(f"{work}/apt.conf", settings + through)
    write(f"{work}/sources.list", "".join(f"deb [signed-by={keys}] {url} {suite} main\n" for url, suite in archives()))
    lists()
    look_up()
    possible, plan, problem = run("apt-get", "install", "--simulate", *order["specs"])
    if not possible:
        reasons = plan.partition("The following packages have unmet dependencies:")[2]
        answer("conflict", problem=" ".join(f"{reasons} {problem}".split()))
    fetched, _, problem = run("apt-get", "install", "--download-only", *order["specs"])
    if not fetched:
        trouble(problem)
    resolved = list(installable())
    there = set(order["names"]).difference(it["name"] for it in resolved)
    for line in run("dpkg-query", "-W", "-f", "${Package} ${Version}\n", *there)[1].splitlines() if there else []:
        name, version = line.split()
        resolved.append({"name": name, "version": version, "integrity": None})
    answer("installed", resolved=resolved, modules=[])


def alone():
    """Ends what the packages' scripts left running."""
    with open("/proc/self/cgroup") as file:
        group = file.read().strip().split("::", 1)[1]
    while True:
        with open(f"/sys/fs/cgroup{group}/cgroup.procs") as file:
            others = [int(line) for line in file if int(line) != os.getpid()]
        if not others:
            return
        for process in others:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                pass


def unprivileged(lists):
    """Removes setuid and setgid bits and capabilities: no program may have more rights than its user."""
    run("find", "/", "-xdev", "-perm", "/6000", "!", "-type", "l", "-exec", "chmod", "ug-s", "{}", "+")
    for listed in lists:
        with open(listed) as file:
            for path in file.read().splitlines():
                try:
                    os.removexattr(path, "security.capability", follow_symlinks=False)
                except OSError:
                    pass


def install():
    denied = os.path.lexists(policy)
    if not denied:
        write(policy, "#!/bin/sh\nexit 101\n")
        os.chmod(policy, 0o755)
    # Some scripts put links to manuals there, although the manuals are left out.
    for section in range(1, 9):
        os.makedirs(f"/usr/share/man/man{section}", exist_ok=True)
    before = os.stat(work).st_mtime
    installed, _, problem = run("apt-get", "install", "--no-download", *order["specs"])
    alone()
    if not installed:
        answer("conflict", problem=problem)
    if not denied:
        os.unlink(policy)
    info = glob.glob("/var/lib/dpkg/info/*.list")
    unprivileged(file for file in info if os.stat(file).st_mtime >= before)
    shutil.rmtree(work)
    answer("installed", resolved=[], modules=[])


fetch() if order["step"] == "fetch" else install()
