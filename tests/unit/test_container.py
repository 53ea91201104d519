"""The Dockerfile, which no test builds: what it copies is there, and what it pins is what the package asks for."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "scripts" / "docker"
DOCKERFILE = (FOLDER / "Dockerfile").read_text()


def test_what_is_copied_exists_and_is_sent_to_the_builder() -> None:
    copied = {word for line in re.findall(r"^COPY (.+) \S+$", DOCKERFILE, re.M) for word in line.split()}
    sent = {line[1:] for line in (FOLDER / "Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")}
    assert copied == sent and all((ROOT / name).exists() for name in copied)


def test_pins_are_within_the_packages_ranges() -> None:
    lines = (FOLDER / "constraints-cuda.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (extras,) = re.findall(r'pip install -c constraints-cuda.txt "\.\[([\w,]+)\]"', DOCKERFILE)
    wanted = project["dependencies"] + [
        each for extra in extras.split(",") for each in project["optional-dependencies"][extra]
    ]
    for requirement in map(Requirement, wanted):
        version = pins[requirement.name.lower().replace("_", "-")]
        assert requirement.specifier.contains(version), f"{requirement} is pinned to {version}"
