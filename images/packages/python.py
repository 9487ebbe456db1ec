"""Installs wheels for the user with pip, in a machine that becomes a template. Argument: an order as JSON. Output: the answer as JSON.

There is a network meanwhile, and a wheel may hold anything: nothing of it is imported or executed here. So this runs with `-I -S`,
without which Python executes the .pth files and the sitecustomize module of what is installed."""

import json
import os
import sys

order = json.loads(sys.argv[1])
# Where Debian has pip. Not the user's packages.
sys.path.append("/usr/lib/python3/dist-packages")
# pip prints for people: its output goes to stderr.
out = os.dup(1)
os.dup2(2, 1)


def answer(status, **fields):
    os.write(out, json.dumps({"status": status, **fields}).encode())
    sys.exit(0)


def normal(name):
    import re

    return re.sub(r"[-_.]+", "-", name).lower()


def trouble(code, problem):
    """Ends with what a registry's answer means: after a refusal another try is useless."""
    answer("refused" if code in (401, 403) else "registry", problem=problem)


def look_up(name):
    """The versions in the index of a package that pip could not find. A page that cannot be read is not a missing package."""
    import urllib.error
    import urllib.request

    from pip._internal.models.index import PyPI
    from pip._vendor.packaging.version import InvalidVersion, Version

    index = os.environ.get("PIP_INDEX_URL") or PyPI.simple_url
    accept = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"
    request = urllib.request.Request(f"{index.rstrip('/')}/{normal(name)}/", headers={"Accept": accept})
    try:
        with urllib.request.urlopen(request, timeout=30) as page:
            data = page.read(64 << 20)
    except urllib.error.HTTPError as error:
        if error.code in (404, 410):
            return []
        trouble(error.code, f"the index answers {error.code}")
    except OSError as error:
        answer("registry", problem=f"the index cannot be reached: {error}")
    known = []
    try:
        for text in json.loads(data).get("versions", []):
            try:
                known.append(Version(text))
            except InvalidVersion:
                pass
    except ValueError:
        pass  # an index that speaks HTML only
    return [str(version) for version in sorted(known, reverse=True)[:10]]


def importable(names):
    """The modules of these packages, as their own metadata lists them."""
    import importlib.metadata
    import inspect
    import site

    wanted = {normal(name) for name in names}
    found = set()
    # The path is given, and not part of sys.path: metadata is read, and nothing can be imported from there.
    for distribution in importlib.metadata.distributions(path=[site.getusersitepackages()]):
        if normal(distribution.metadata["Name"] or "") not in wanted:
            continue
        declared = (distribution.read_text("top_level.txt") or "").split()
        parts = [file.parts for file in distribution.files or []]
        inferred = [it[0] if len(it) > 1 else inspect.getmodulename(it[0]) for it in parts]
        found.update(declared or filter(None, inferred))
    return sorted(module for module in found if module.isidentifier() and not module.startswith("_"))


def install():
    import site

    # `-S` leaves it undecided, and pip then refuses to install for the user.
    site.ENABLE_USER_SITE = True
    from pip._internal.commands import create_command
    from pip._internal.index import collector
    from pip._internal.exceptions import DistributionNotFound, HashMismatch, InstallationError, NetworkConnectionError
    from pip._vendor.requests.exceptions import RequestException
    from pip._vendor.urllib3.exceptions import HTTPError

    # pip treats a page that it cannot read as one without files.
    unread = []

    def missed(_, reason, *__, **___):
        code = getattr(getattr(reason, "response", None), "status_code", None)
        if code not in (404, 410):
            unread.append((code, f"the index {f'cannot be read: {reason}' if code is None else f'answers {code}'}"))

    collector._handle_get_simple_fail = missed
    report = "/tmp/.exec-sandbox-report.json"
    options = ["--user", "--only-binary", ":all:", "--no-cache-dir", "--no-input", "--no-warn-script-location"]
    # A keyring is a program found by PATH.
    options += ["--keyring-provider", "disabled"]
    # What is imported before sealing is compiled then; the rest of a large package would take minutes under emulation.
    options += ["--no-compile"]
    options += ["--progress-bar", "off", "--retries", "2", "--timeout", "30", "--report", report]
    try:
        # With --debug an error is an exception, not a line of text.
        status = create_command("install").main([*options, "--debug", *order["specs"]])
    except DistributionNotFound as error:
        if unread:
            trouble(*unread[0])
        causes = getattr(error.__cause__, "causes", [])
        own = [cause.requirement for cause in causes if cause.parent is None]
        if len(causes) == 1 and own:
            answer("not-found", name=normal(own[0].project_name), available=look_up(own[0].project_name))
        answer("conflict", problem="; ".join(cause.requirement.format_for_error() for cause in causes) or str(error))
    except (NetworkConnectionError, HashMismatch, RequestException, HTTPError) as error:
        trouble(getattr(getattr(error, "response", None), "status_code", None), str(error))
    except InstallationError as error:
        answer("conflict", problem=str(error))
    if status != 0:
        answer("failed", problem=f"pip ended with {status}")
    with open(report) as file:
        installed = json.load(file)["install"]
    os.unlink(report)
    resolved = []
    for item in installed:
        hashes = item["download_info"].get("archive_info", {}).get("hashes", {})
        sha256 = hashes.get("sha256")
        metadata = item["metadata"]
        integrity = None if sha256 is None else f"sha256={sha256}"
        resolved.append({"name": normal(metadata["name"]), "version": metadata["version"], "integrity": integrity})
    answer("installed", resolved=resolved, modules=importable(order["names"]))


install()
