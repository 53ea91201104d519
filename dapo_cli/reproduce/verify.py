"""Whether what a rerun would be made of is what the run was made of."""

from typing import Any

from dapo_cli.config.load import LoadedRecipe, plain_tree
from dapo_cli.reproduce.recorded import Recorded, patch_differences, with_recorded_keys
from dapo_cli.tracking.manifest import Manifest, changed, difference, differences
from dapo_cli.tracking.provenance import requirements
from dapo_cli.tracking.run_folder import RunFolder

MACHINE_KEYS = ("cpu", "gpus", "cuda")  # of the manifest's hardware: others follow from these, or change no number
SHOWN_PACKAGES = 8


def manifest_now(loaded: LoadedRecipe) -> Manifest:
    """The manifest that a run of this recipe would have here and now. Reads and hashes data and model.

    Raises UserError where they cannot be read.
    """
    from dapo_cli.inputs import manifest_of, read_inputs
    from dapo_cli.tracking.provenance import read_code

    launch = loaded.recipe.launch
    inputs = read_inputs(loaded.recipe)
    return manifest_of(loaded, plain_tree(loaded.config), inputs, read_code(), launch.nodes * launch.processes_per_node)


def refusals(recorded: Recorded, now: Manifest) -> list[str]:
    """What differs and decides numbers, a line each; empty if a rerun is the same run."""
    then = recorded.manifest
    return [
        *differences(then, with_recorded_keys(now, then)),
        *_changed("python", then.get("python"), now["python"]),
        *_changed("processes", then.get("processes", 1), now["processes"]),
        *patch_differences(recorded.source, then),
    ]


def notes(recorded: Recorded, now: Manifest) -> list[str]:
    """What differs beside that: it should change no number, and is where to look if one changes."""
    then = recorded.manifest
    same_sources = then["code"]["package_sha256"] == now["code"]["package_sha256"]
    lines = _changed("commit", then["code"]["commit"], now["code"]["commit"]) if same_sources else []
    if lines:
        lines = [f"{lines[0]} (the package's sources are the same)"]
    machine = [{key: each["hardware"].get(key) for key in MACHINE_KEYS} for each in (then, now)]
    lines += [difference(key, *pair) for key, pair in changed(machine[0], machine[1], "hardware").items()]
    packages = environment_changes(_locked(recorded.source), requirements().decode())
    # Those that the manifest lists are compared there.
    packages = [line for line in packages if line.partition(":")[0] not in then["packages"]]
    if len(packages) > SHOWN_PACKAGES:
        packages = [*packages[:SHOWN_PACKAGES], f"and {len(packages) - SHOWN_PACKAGES} more packages"]
    return [*lines, *packages]


def environment_changes(before: str | None, now: str) -> list[str]:
    """The distributions that two lock files have in other versions, or one of them lacks; none without a `before`.

    >>> environment_changes("a==1\\nb==1\\n", "a==2\\nb==1\\nc==3\\n")
    ['a: 1 in the run folder, 2 now', 'c: not there in the run folder, 3 now']
    """
    if before is None:
        return []
    trees: list[dict[str, Any]] = [dict(line.split("==", 1) for line in text.splitlines()) for text in (before, now)]
    return [difference(key, *pair) for key, pair in sorted(changed(trees[0], trees[1]).items()) if key]


def _locked(source: RunFolder) -> str | None:
    return source.requirements_file.read_text() if source.requirements_file.exists() else None


def _changed(name: str, before: Any, now: Any) -> list[str]:
    return [] if before == now else [difference(name, before, now)]
