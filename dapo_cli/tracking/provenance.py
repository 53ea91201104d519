"""Which code, model, packages and machine a run has: what a manifest is filled with."""

import hashlib
import json
import os
import platform
import re
import subprocess
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import dapo_cli
from dapo_cli.errors import UserError

PACKAGE_FOLDER = Path(dapo_cli.__file__).parent
DISTRIBUTION = "dapo-cli"

# Whose version may change a run's numbers. vllm and deepspeed are extras.
PACKAGES = (
    "torch",
    "transformers",
    "numpy",
    "hydra-core",
    "omegaconf",
    "math-verify",
    "sympy",
    "latex2sympy2_extended",
    "datasets",
    "tokenizers",
    "safetensors",
    "vllm",
    "deepspeed",
)

# What from_pretrained may read out of a model folder; a changed README is no other model.
MODEL_SUFFIXES = {".json", ".safetensors", ".bin", ".model", ".txt", ".jinja", ".py"}


@dataclass(frozen=True)
class Code:
    """`record` goes into the manifest, `patch` into code.patch (empty where nothing differs from the commit)."""

    record: dict[str, Any]
    patch: bytes


def read_code(package: Path = PACKAGE_FOLDER) -> Code:
    """The code this process runs: of a git checkout its commit and all uncommitted changes, else the installed version.

    `package_sha256` is over the package's Python sources alone, so that a change in the docs is no change of the run.
    """
    in_checkout = checkout_of(package) is not None
    commit = head_commit(package) if in_checkout else installed_commit()
    untracked = untracked_sources(package) if in_checkout else []
    patch = b"".join(_diff(package, "--no-index", "/dev/null", name) for name in untracked)
    if in_checkout and commit:
        patch = _diff(package, "HEAD") + patch
    record = {
        "version": version(DISTRIBUTION),
        "package_sha256": package_sha256(package),
        "checkout": in_checkout,
        "commit": commit,
        "dirty": bool(patch),
        "untracked": untracked,
        "patch_sha256": hashlib.sha256(patch).hexdigest() if patch else None,
    }
    return Code(record, patch)


def checkout_of(package: Path = PACKAGE_FOLDER) -> Path | None:
    """The work tree whose own code the package is. A wheel in the .venv of some other checkout lies inside a work tree,
    too, but is none of its code."""
    top = _git(package, "rev-parse", "--show-toplevel")
    parent = package.resolve().parent
    return parent if top is not None and Path(os.fsdecode(top.rstrip(b"\n"))) == parent else None


def uncommitted(package: Path = PACKAGE_FOLDER) -> list[str]:
    """The files, relative to the checkout, for which a manifest calls the code dirty; none of an installed version.

    Raises UserError where no commit or version names the code at all.
    """
    checkout = checkout_of(package)
    if checkout is None and ((package.resolve().parent / ".git").exists() or version(DISTRIBUTION) is None):
        raise UserError(
            f"{package}: neither git nor an installed version says which code this is; install git, or the package"
        )
    if checkout is None:
        return []
    if head_commit(package) is None:
        raise UserError(f"{checkout}: a git repository without a commit; commit the code first")
    listing = _git(checkout, "diff", "--name-only", "--no-ext-diff", "-z", "HEAD") or b""
    changed = [os.fsdecode(name) for name in listing.split(b"\0") if name]
    return [*changed, *untracked_sources(package)]


def head_commit(package: Path) -> str | None:
    """None in a repository without a commit."""
    head = _git(package, "rev-parse", "--verify", "--quiet", "HEAD")
    return head.decode().strip() if head else None


def package_sha256(package: Path = PACKAGE_FOLDER) -> str:
    """One hash over names and contents of all *.py below `package`, in the order of their names."""
    digest = hashlib.sha256()
    for name in sorted(path.relative_to(package).as_posix() for path in package.rglob("*.py")):
        digest.update(f"{name}\0{file_sha256(package / name)}\n".encode())
    return digest.hexdigest()


def untracked_sources(package: Path) -> list[str]:
    """Files of the package that git neither tracks nor ignores, relative to the checkout."""
    listing = _git(package.parent, "ls-files", "--others", "--exclude-standard", "-z", "--", package.name) or b""
    names = [os.fsdecode(name) for name in listing.split(b"\0") if name]
    return sorted(name for name in names if name.endswith((".py", ".yaml")))


def installed_commit() -> str | None:
    """The commit that pip recorded when it installed from a repository; None for a wheel from an index."""
    try:
        recorded = metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return None
    origin = json.loads(recorded) if recorded else {}
    return origin["vcs_info"]["commit_id"] if "vcs_info" in origin else None


def model_folder_record(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Path and the sha256 of each file that loading may read. Raises UserError where there is none."""
    path = Path(folder)
    files = sorted(path.iterdir()) if path.is_dir() else []
    hashes = {file.name: file_sha256(file) for file in files if file.is_file() and file.suffix in MODEL_SUFFIXES}
    if not hashes:
        raise UserError(f"model.path={folder}: no model files there; give a Hugging Face folder or a hub id")
    return {"path": str(folder), "files": hashes}


def hub_model_record(hub_id: str, commit: str) -> dict[str, Any]:
    """A model of the hub; a commit hash names every byte of it."""
    return {"hub_id": hub_id, "commit": commit}


def package_versions() -> dict[str, str | None]:
    """Installed versions; None where a package is not installed."""
    return {name: version(name) for name in PACKAGES}


@cache
def requirements() -> bytes:
    """requirements.lock: `name==version` of each installed distribution, a line each, sorted; names as in PEP 503.

    Of two copies of a distribution the one is listed that comes first on sys.path, which is the one that is imported.
    """
    found: dict[str, str] = {}
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"]
        if name:  # a folder that a broken removal left behind has none
            found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), distribution.version)
    return "".join(f"{name}=={found[name]}\n" for name in sorted(found)).encode()


def version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def hardware() -> dict[str, Any]:
    import torch  # by the time of a manifest the run has loaded it; `dapo --help` must not

    gpus = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    return {
        "platform": platform.platform(),
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpus": [torch.cuda.get_device_name(index) for index in gpus],
        "cuda": torch.version.cuda,
    }


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def file_sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _diff(package: Path, *what: str) -> bytes:
    """A patch that `git apply` takes, whatever the user's own settings for diffs are."""
    plain = ("--binary", "--no-color", "--no-ext-diff", "--no-textconv", "--src-prefix=a/", "--dst-prefix=b/")
    # Between files (--no-index) git exits 1 for "they differ".
    return _git(package.parent, "diff", *plain, *what, good_exits=(0, 1)) or b""


def _git(folder: Path, *arguments: str, good_exits: tuple[int, ...] = (0,)) -> bytes | None:
    """What git prints; None where there is no git, no checkout, or no such thing in it."""
    try:
        done = run_git(folder, *arguments)
    except FileNotFoundError:
        return None
    return done.stdout if done.returncode in good_exits else None


def run_git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Raises FileNotFoundError where there is no git."""
    # Inside a git hook these variables point to another repository's state.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-C", str(folder), "-c", "core.quotePath=false", *arguments]
    return subprocess.run(command, capture_output=True, env=environment, stdin=subprocess.DEVNULL)
